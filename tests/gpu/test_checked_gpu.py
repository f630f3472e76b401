"""Checked launches on tensors of a GPU: they run on the host, on copies of the storages."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera import errors
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.driver import driver

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda.available(), reason="needs a CUDA device"),
]


@tessera.jit
def copy_kernel(x, out, stride, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + i, tl.load(x + i * stride, mask=i < n) * 2, mask=i < n)


@pytest.fixture(params=["cpu", "interpreter"])
def build(request):
    """Which build checks: the interpreter's only where it is active."""
    if request.param == "interpreter":
        driver.set_active("interpreter")
    yield request.param
    driver.reset_active()


def test_strided_views_and_what_is_written_back(build):
    x = torch.arange(64, dtype=torch.float32, device="cuda")
    out = torch.zeros(32, device="cuda")
    copy_kernel[(2,)](x[1::2], out[4:], 2, 24, 16, debug="check")
    want = np.zeros(32, np.float32)
    want[4:28] = np.arange(1, 49, 2) * 2
    np.testing.assert_array_equal(out.cpu().numpy(), want)


def test_views_of_one_storage(build):
    x = torch.arange(64, dtype=torch.float32, device="cuda")
    copy_kernel[(2,)](x[:32], x[32:], 1, 32, 16, debug="check")
    want = np.arange(64, dtype=np.float32)
    want[32:] = want[:32] * 2
    np.testing.assert_array_equal(x.cpu().numpy(), want)


def test_the_end_of_the_storage(build):
    x, out = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    with pytest.raises(errors.OutOfBounds, match="reads element 48 of argument `x`"):
        copy_kernel[(2,)](x[16:], out, 3, 32, 16, debug="check")
    half = torch.full((32,), 60000, dtype=torch.float16, device="cuda")
    with pytest.raises(errors.NotFinite, match="becomes infinity"):
        copy_kernel[(2,)](half, torch.zeros_like(half), 1, 32, 16, debug="check")
