"""Programs spread over the blocks of a cluster, on a Hopper GPU, against torch in float32."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
from tessera.tools.tensor_descriptor import TensorDescriptor
from tests.gpu.hopper import needs_hopper
from tests.unit.clusters_kit import counted, scaled_rows
from tests.unit.mma_chains_kit import inputs, reference, softmax_chain
from tests.unit.pointer_tma_kit import wrapped
from tests.unit.tensor_maps_kit import persistent

torch = pytest.importorskip("torch")
pytestmark = needs_hopper


def normal(*shape: int):
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


@pytest.mark.parametrize("shape", [(1000, 1000, 520), (72, 64, 8), (8192, 256, 64)])
@pytest.mark.parametrize(
    ("bm", "bn", "warps", "ctas"),
    [(256, 256, 8, 2), (256, 128, 4, 2), (512, 256, 8, 4), (64, 256, 4, 2), (1024, 64, 4, 8), (1024, 32, 4, 16)],
)  # fmt: skip
@pytest.mark.parametrize("trans", [False, True])
def test_products(trans: bool, bm: int, bn: int, warps: int, ctas: int, shape):
    m, n, k = shape
    torch.manual_seed(0)
    a, b = normal(m, k), normal(*((n, k) if trans else (k, n)))
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    blocks = ([bm, 64], [bn, 64] if trans else [64, bn], [bm, bn])
    descriptors = [TensorDescriptor.from_tensor(x, s) for x, s in zip((a, b, c), blocks)]
    want = a.float() @ (b.T if trans else b).float()
    for _ in range(3):  # the first launch and those that go the short way
        c.fill_(float("nan"))
        kernel = persistent[(9,)](
            *descriptors, m, n, k, bm, bn, 64, trans, num_warps=warps, num_stages=3, num_ctas=ctas
        )
        assert (c.float() - want).abs().max() <= 3e-3 * want.abs().max()
    assert tuple(kernel.metadata.cluster_dims) == (ctas, 1, 1)


@pytest.mark.parametrize("ctas", [2, 4])
def test_products_through_pointers(ctas: int):
    m, n, k = 1000, 520, 264
    a, b = normal(m, k), normal(n, k)
    c = torch.empty(m, n, device="cuda", dtype=torch.float16)
    bm = 64 * ctas
    grid = (-(-m // bm) * -(-n // 128),)
    wrapped[grid](
        a, b, c, m, n, k, k, 1, 1, k, n, "rem", True, bm, 128, 64, num_warps=4, num_ctas=ctas
    )  # fmt: skip
    want = a.float() @ b.float().T
    assert (c.float() - want).abs().max() <= 3e-3 * want.abs().max()


@pytest.mark.parametrize("causal", [False, True])
def test_chained_products(causal: bool):
    n, m, step, d = 1024, 256, 128, 128
    arrays = inputs(n, n, d)
    devices = [torch.from_numpy(x).cuda() for x in arrays]
    sizes = (m, step, step, m)
    descriptors = [TensorDescriptor.from_tensor(x, [s, d]) for x, s in zip(devices, sizes)]
    for _ in range(3):
        softmax_chain[(n // m,)](
            *descriptors, n, causal, m, step, d, num_warps=8, num_stages=2, num_ctas=2
        )  # fmt: skip
    found = devices[3].cpu().numpy().astype(np.float64)
    want = reference(softmax_chain, arrays, n, m, step, causal)
    assert np.abs(found - want).max() <= 4e-3 * np.abs(want).max()


@pytest.mark.parametrize("ctas", [1, 2, 8, 16])
def test_a_kernel_without_products(ctas: int):
    x, scale = torch.randn(32, 32, device="cuda"), torch.randn(32, device="cuda")
    out = torch.zeros_like(x)
    scaled_rows[(1,)](x, scale, out, 27, 32, 32, num_warps=2, num_ctas=ctas)
    want = x * scale
    want = want - want.max(1, keepdim=True).values
    want[27:] = 0
    assert (out - want).abs().max() < 1e-6


@pytest.mark.parametrize("what", ["", "elements", "reduce", "atomic", "barrier"])
def test_many_programs(what: str):
    """A whole grid, along all its axes: each program is one, however many blocks run it."""
    x = torch.arange(64, device="cuda", dtype=torch.float32)
    out, total = torch.zeros_like(x), torch.zeros_like(x)
    counted[(5, 3, 2)](x, out, total, 64, what, num_warps=1, num_ctas=2)
    assert (out == (x - 63 if what == "reduce" else x)).all()
    assert total[0] == (30 if what == "atomic" else 0)
    assert total[5] == (150 if what == "elements" else 0)


def test_the_autotuner_takes_numbers_of_blocks():
    m = n = k = 512
    a, b, c = normal(m, k), normal(n, k), torch.empty(m, n, device="cuda", dtype=torch.float16)
    descriptors = [
        TensorDescriptor.from_tensor(x, s) for x, s in zip((a, b, c), ([256, 64], [128, 64], [256, 128]))
    ]  # fmt: skip
    configs = [tessera.Config({}, num_warps=4, num_ctas=ctas) for ctas in (1, 2, 4)]
    tuned = tessera.autotune(configs=configs, key=["M"])(persistent)
    tuned[(4,)](*descriptors, m, n, k, 256, 128, 64, True)
    want = a.float() @ b.float().T
    assert (c.float() - want).abs().max() <= 3e-3 * want.abs().max()
    assert tuned.best_config is not None and tuned.best_config.num_ctas in (1, 2, 4)
