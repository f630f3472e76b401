"""Blocks that run several programs each, on a Hopper GPU, against torch in float32."""

# pyright: basic
from __future__ import annotations

import pytest

from tests.gpu.hopper import needs_hopper
from tests.gpu.products_kit import close, matrix, product
from tests.unit.persist_kit import on_axes

torch = pytest.importorskip("torch")
pytestmark = needs_hopper

BLOCKS = (128, 256, 64)


@pytest.mark.parametrize("orders", [("row", "row"), ("row", "column")])
@pytest.mark.parametrize(
    "shape", [(4096, 3072, 8), (3000, 5000, 200), (2304, 2816, 1096), (100, 264, 72)]
)
def test_more_programs_than_processors(shape, orders):
    m, n, k = shape
    torch.manual_seed(0)
    a = matrix(m, k, orders[0], 0, 0)
    b = matrix(k, n, orders[1], 0, 0)
    for _ in range(3):
        c, kernel = product(a, b, "rem", BLOCKS, 8)
        close(c, a, b)
    assert kernel.metadata.resident_ctas == 1


def test_launches_that_take_turns_with_other_kernels():
    """Results whose rows are no multiples of 16 bytes, then operands, too: each launch runs what serves it."""
    torch.manual_seed(0)
    for _ in range(2):
        for m, n, k, room in [(1000, 1000, 256, 0), (1000, 1001, 256, 7), (1000, 1001, 251, 0)]:
            a, b = matrix(m, k, "row", 0, 0), matrix(k, n, "row", room, 0)
            c, _ = product(a, b, "mask", BLOCKS, 8)
            close(c, a, b)


@pytest.mark.parametrize("grid", [(9, 20, 1), (3, 2, 1), (1, 1, 1)])
def test_axes_of_the_grid(grid):
    m, n, k = 128 * grid[1] - 16, 256 * grid[0] - 32, 192
    torch.manual_seed(0)
    a, b = matrix(m, k, "row", 0, 0), matrix(k, n, "row", 0, 0)
    bias = torch.randn(n, device="cuda", dtype=torch.float16)
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    kernel = on_axes[grid](a, b, c, bias, m, n, k, 0, "plain", *BLOCKS, num_warps=8)
    assert kernel.metadata.resident_ctas == 1
    want = a.float() @ b.float() + bias.float() + grid[0] + 10 * grid[1]
    assert (c.float() - want).abs().max() <= 3e-3 * want.abs().max()


def test_captured_launches():
    """A graph holds copies of the maps and of the grid."""
    torch.manual_seed(0)
    a, b = matrix(2048, 512, "row", 0, 0), matrix(512, 4096, "row", 0, 0)
    product(a, b, "rem", BLOCKS, 8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c, _ = product(a, b, "rem", BLOCKS, 8)
    a.normal_()
    graph.replay()
    close(c, a, b)
