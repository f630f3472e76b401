"""Kernels whose tiles go through the TMA unit, on a Hopper GPU, against torch in float32."""

# pyright: basic
from __future__ import annotations

import pytest

import tessera
import tessera.language as tl
from tessera.tools.tensor_descriptor import TensorDescriptor
from tests.gpu.hopper import needs_hopper
from tests.unit.tensor_maps_kit import branching, persistent

torch = pytest.importorskip("torch")
pytestmark = needs_hopper


def expected(kernel, a, b, bk: int):
    total = a @ b
    if kernel is branching:
        for k in range(0, a.shape[1], 2 * bk):
            total = total * 0.5 + a[:, k : k + bk] @ b[k : k + bk]
    return total


@pytest.mark.parametrize(
    "shape", [(1000, 1000, 520), (72, 64, 8), (8192, 256, 64), (333, 264, 1032)]
)
@pytest.mark.parametrize(
    ("bm", "bn", "bk", "warps", "stages"),
    [(128, 256, 64, 8, 3), (128, 128, 64, 4, 4), (64, 64, 128, 4, 2), (128, 64, 32, 8, 5), (32, 64, 64, 4, 3)],
)  # fmt: skip
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("kernel", [persistent, branching], ids=["persistent", "branching"])
def test_products(kernel, trans: bool, bm: int, bn: int, bk: int, warps: int, stages: int, shape):
    m, n, k = shape
    torch.manual_seed(0)
    a = torch.randn(m, k, device="cuda", dtype=torch.float16)
    b = torch.randn(*((n, k) if trans else (k, n)), device="cuda", dtype=torch.float16)
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    blocks = ([bm, bk], [bn, bk] if trans else [bk, bn], [bm, bn])
    descriptors = [TensorDescriptor.from_tensor(x, s) for x, s in zip((a, b, c), blocks)]
    kernel[(40,)](*descriptors, m, n, k, bm, bn, bk, trans, num_warps=warps, num_stages=stages)
    want = expected(kernel, a.float(), (b.T if trans else b).float(), bk)
    assert (c.float() - want).abs().max() <= 3e-3 * want.abs().max()


@tessera.jit
def shift(x, y, i, j, M: tl.constexpr, N: tl.constexpr):
    tile = x.load([i, j])
    y.store([0, 0], tile)
    y.atomic_add([0, N], tile)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bfloat16])
@pytest.mark.parametrize("place", [(0, 0), (33, 140), (-3, -5), (100, 0)])
@pytest.mark.parametrize("block", [(16, 32), (8, 128), (4, 8), (64, 256), (1, 16)])
def test_edges_are_filled_and_clipped(dtype, place, block):
    (i, j), (m, n) = place, block
    x = torch.randn(40, 160, device="cuda").mul(100).to(dtype)
    y = torch.zeros(m, 2 * n, device="cuda", dtype=dtype)
    shift[(1,)](
        TensorDescriptor.from_tensor(x, [m, n]), TensorDescriptor.from_tensor(y, [m, n]), i, j, m, n
    )
    want = torch.zeros(m, n, device="cuda", dtype=dtype)
    rows = slice(max(i, 0), max(0, min(i + m, 40))), slice(max(0, -i), max(0, min(m, 40 - i)))
    cols = slice(max(j, 0), max(0, min(j + n, 160))), slice(max(0, -j), max(0, min(n, 160 - j)))
    want[rows[1], cols[1]] = x[rows[0], cols[0]]
    assert torch.equal(y[:, :n], want)
    assert torch.equal(y[:, n:], want)
