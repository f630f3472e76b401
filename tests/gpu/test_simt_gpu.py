"""Hardware approximations and lowered kernels on a real GPU, against NumPy and the simulator."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.language.extra import libdevice
from tests.simt_kit import Compiled
from tests.unit.simt_math_kit import BOUNDS, apply_kernel, inputs, reference, worst

pytestmark = pytest.mark.gpu
C = "constexpr"


@pytest.mark.parametrize("elem", ["fp32", "fp64"])
@pytest.mark.parametrize("name", BOUNDS)
def test_functions_on_hardware(device, name, elem):
    """One ulp more than in the simulator, for the hardware's approximations; they flush subnormals."""
    dtype = np.float32 if elem == "fp32" else np.float64
    x = inputs(dtype)
    if elem == "fp32" and name in ("sqrt", "rsqrt", "exp", "exp2"):
        x = np.where(np.abs(x) < 2e-38, np.float32(1), x)
        if name.startswith("exp"):
            x = np.clip(x, -80, None)
    fn = getattr(tl, name, None) or getattr(libdevice, name)
    out = device.zeros(len(x), elem)
    apply_kernel[(1,)](device.array(x, elem), out, F=fn, N=len(x))
    bound = BOUNDS[name][0 if elem == "fp32" else 1] + (2 if elem == "fp32" else 0)
    assert worst(device.numpy(out), [reference(name, float(v)) for v in x]) <= bound


@tessera.jit
def mixed_kernel(x, out, rows, n, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    at = i[:, None] * N + j[None, :]
    acc = tl.zeros((M, N), tl.float32)
    for k in range(n):
        a = tl.load(x + at + k * M * N, mask=at < M * N - k, other=1.0)
        acc += tl.cumsum(a, 1) * tl.sum(a, 0)[None, :]
        if k % 2 == 1:
            acc = tl.trans(tl.reshape(tl.trans(acc), (N, M)))
    tl.store(out + at, acc)
    tl.store(rows + i, tl.argmax(acc, 1))


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize(("m", "n"), [(16, 32), (64, 16), (4, 256)])
def test_hardware_agrees_with_the_simulator(device, warps, m, n):
    rng = np.random.default_rng(m + n)
    x = rng.integers(-3, 4, (3, m, n)).astype(np.float32)  # exact sums: any order gives the same
    out, rows = device.zeros((m, n), "fp32"), device.zeros(m, "i32")
    mixed_kernel[(1,)](device.array(x), out, rows, 3, M=m, N=n, num_warps=warps)
    signature = {"x": "*fp32", "out": "*fp32", "rows": "*i32", "n": "i32", "M": C, "N": C}
    want, want_rows = np.zeros((m, n), np.float32), np.zeros(m, np.int32)
    found = Compiled(mixed_kernel, signature, {"M": m, "N": n}, num_warps=warps)
    found.run(x.copy(), want, want_rows, 3)
    np.testing.assert_array_equal(device.numpy(out), want)
    np.testing.assert_array_equal(device.numpy(rows), want_rows)
