"""Loads through pointers that become copies through tensor maps, on a Hopper GPU, against torch in float32."""

# pyright: basic
from __future__ import annotations

import pytest

from tests.gpu.hopper import needs_hopper
from tests.gpu.products_kit import close, matrix, product
from tests.unit.pointer_tma_kit import batched

torch = pytest.importorskip("torch")
pytestmark = needs_hopper


@pytest.mark.parametrize(
    "shape", [(1000, 1000, 520), (72, 65, 8), (4096, 256, 64), (333, 263, 1031), (5, 3, 1)]
)
@pytest.mark.parametrize(
    ("blocks", "warps"),
    [((128, 256, 64), 8), ((128, 128, 64), 4), ((64, 64, 128), 4), ((128, 64, 32), 8)],
)
@pytest.mark.parametrize("orders", [("row", "row"), ("row", "column"), ("column", "row")])
@pytest.mark.parametrize("how", ["rem", "where", "mask"])
def test_products(how: str, orders, blocks, warps: int, shape):
    """Rows that are multiples of 16 bytes; the precondition holds."""
    m, n, k = shape
    torch.manual_seed(0)
    a, b = (
        matrix(r, c, order, -(r if order == "column" else c) % 8 + 8, 8)
        for (r, c), order in zip(((m, k), (k, n)), orders)
    )
    c, kernel = product(a, b, how, blocks, warps)
    close(c, a, b)
    assert k == 1 or kernel.metadata.tensor_maps  # one column: both strides may be 1


@pytest.mark.parametrize(("room", "start"), [(0, 0), (3, 0), (8, 8), (8, 1), (4, 4), (1, 7)])
@pytest.mark.parametrize("how", ["rem", "mask"])
def test_arrays_that_maps_do_or_do_not_describe(how: str, room: int, start: int):
    torch.manual_seed(0)
    for m, n, k in [(256, 256, 256), (300, 260, 200), (256, 256, 256)]:
        a, b = (matrix(r, c, "row", room, start) for r, c in ((m, k), (k, n)))
        c, _ = product(a, b, how, (128, 128, 64), 4)
        close(c, a, b)


def test_strides_of_zero_and_arrays_that_overlap():
    torch.manual_seed(0)
    a = torch.randn(1, 256, device="cuda", dtype=torch.float16).expand(256, 256)
    b = torch.randn(256, 256, device="cuda", dtype=torch.float16)
    c, _ = product(a, b, "rem", (128, 128, 64), 4)
    close(c, a, b)
    line = torch.randn(4096, device="cuda", dtype=torch.float16)
    shifted = line.as_strided((256, 256), (8, 1))  # rows that overlap
    c, _ = product(shifted, b, "rem", (128, 128, 64), 4)
    close(c, shifted, b)
    c, _ = product(b, b.T, "rem", (128, 128, 64), 4)
    close(c, b, b.T)


def test_heads_and_batches():
    torch.manual_seed(0)
    z, heads, m, n, k = 3, 5, 64, 128, 200
    a = torch.randn(z, m, heads, k, device="cuda", dtype=torch.float16)
    b = torch.randn(heads, k, n, device="cuda", dtype=torch.float16)
    c = torch.zeros(z, heads, m, n, device="cuda", dtype=torch.float16)
    batched[(z * heads,)](
        a,
        b,
        c,
        k,
        *(a.stride(i) for i in (0, 2, 1)),
        b.stride(0),
        b.stride(1),
        heads,
        m,
        n,
        64,
        num_warps=4,
    )
    want = torch.einsum("zmhk,hkn->zhmn", a.float(), b.float())
    assert (c.float() - want).abs().max() <= 3e-3 * want.abs().max()


def test_one_kernel_for_launches_that_differ_in_their_grids_and_values():
    """Native launches tell them apart: values, addresses and the grid decide, not only types."""
    torch.manual_seed(0)
    for turn in range(3):
        for m in (256, 250, 192, 130):
            a = torch.randn(m, 264, device="cuda", dtype=torch.float16)[:, : 256 - 8 * turn]
            b = torch.randn(
                256 - 8 * turn, 260 + 4 * (m == 250), device="cuda", dtype=torch.float16
            )
            c, _ = product(a, b, "rem", (64, 64, 64), 4)
            close(c, a, b)
