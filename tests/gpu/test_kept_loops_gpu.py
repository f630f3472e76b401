"""Loops of a known number of products whose sum changes in between, on a Hopper GPU, against exact sums."""

# pyright: basic
from __future__ import annotations

import pytest

from tests.gpu.hopper import needs_hopper
from tests.unit.kept_loops_kit import rescaled

torch = pytest.importorskip("torch")
pytestmark = needs_hopper


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize(
    ("steps", "n", "k"),
    [(1, 16, 16), (2, 16, 16), (3, 16, 16), (3, 64, 64), (4, 32, 16), (8, 16, 16)],
)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("maps", [False, True])
def test_every_product_counts(steps: int, n: int, k: int, cut: bool, stages: int, maps: bool):
    torch.manual_seed(steps)
    a = torch.randint(-2, 3, (64, steps * k), device="cuda").half()
    b = torch.randint(-2, 3, (steps * k, n), device="cuda").half()
    c = torch.empty(64, n, device="cuda")
    rescaled[(1,)](a, b, c, steps, n, k, stages, cut, num_warps=4, pointer_maps=maps)
    want = torch.zeros(64, n, device="cuda", dtype=torch.float64)
    for i in range(steps):
        part = slice(i * k, (i + 1) * k)
        kept = torch.where(want > 3, want, 0.0) if cut else want * 2
        want = kept + a[:, part].double() @ b[part].double()
    assert torch.equal(c.double(), want)
