"""Reductions and scans over dtypes, axes and sizes, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.kit import FLOATS, INTS, sample


@tessera.jit
def rows_kernel(
    x, out, index, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, WHAT: tl.constexpr
):
    i = tl.arange(0, M)
    j = tl.arange(0, N)
    a = tl.load(x + i[:, None] * N + j[None, :])
    k = j if AXIS == 0 else i
    if WHAT == "sum":
        r = tl.sum(a, axis=AXIS)
    elif WHAT == "max":
        r = tl.max(a, axis=AXIS)
    elif WHAT == "min":
        r = tl.min(a, axis=AXIS)
    elif WHAT == "xor":
        r = tl.xor_sum(a, axis=AXIS)
    elif WHAT == "or":
        r = tl.reduce_or(a, axis=AXIS)
    elif WHAT == "argmax":
        r = tl.argmax(a, axis=AXIS)
    elif WHAT == "argmin":
        r = tl.argmin(a, axis=AXIS)
    elif WHAT == "max_with_index":
        r, at = tl.max(a, axis=AXIS, return_indices=True)
        tl.store(index + k, at)
    tl.store(out + k, r)


@pytest.mark.parametrize("what", ["sum", "max", "argmax"])
@pytest.mark.parametrize("warps", [1, 8, 16, 32])
def test_rows_in_many_warps(device, warps, what):
    x = sample("i32", (2, 2048)) // 1024
    x[:, [7, 9]] = x.max()
    out, index = device.zeros(2, "i32"), device.zeros(2, "i32")
    rows_kernel[(1,)](device.array(x), out, index, M=2, N=2048, AXIS=1, WHAT=what, num_warps=warps)
    np.testing.assert_array_equal(device.numpy(out), getattr(np, what)(x, axis=1))


@tessera.jit
def all_kernel(x, out, M: tl.constexpr, N: tl.constexpr):
    a = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out, tl.sum(a))
    tl.store(out + 1, tl.max(a))
    tl.store(out + 2, tl.min(a))
    kept = tl.sum(a, keep_dims=True)
    tl.static_assert(len(kept.shape) == 2)
    tl.store(out + 3, tl.sum(kept))


SHAPES = [(1, 8), (8, 1), (4, 16), (32, 32), (2, 256)]


def run(device, what, x, dtype, axis, out_dtype):
    m, n = x.shape
    out, index = device.zeros(m if axis else n, out_dtype), device.zeros(m if axis else n, "i32")
    rows_kernel[(1,)](device.array(x, dtype), out, index, M=m, N=n, AXIS=axis, WHAT=what)
    return device.numpy(out), device.numpy(index)


def sum_dtype(dtype):
    """What `tl.sum` accumulates in: small ints widen, floats stay."""
    if dtype in ("i8", "i16"):
        return "i32"
    return "u32" if dtype in ("i1", "u8", "u16") else dtype


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["i1", *INTS, *FLOATS])
def test_sum(device, dtype, shape, axis):
    x = sample(dtype, shape, small=True)
    got, _ = run(device, "sum", x, dtype, axis, sum_dtype(dtype))
    if dtype in FLOATS:
        limit = {"fp16": 2e-3, "bf16": 2e-2}.get(dtype, 1e-5) * shape[1 - (axis == 0)]
        np.testing.assert_allclose(got, x.astype(np.float64).sum(axis), rtol=limit, atol=limit)
    else:
        want = x.astype(np.int64).sum(axis)
        np.testing.assert_array_equal(got.astype(np.int64), want)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("what", ["max", "min"])
@pytest.mark.parametrize("dtype", ["i1", *INTS, *FLOATS])
def test_extrema(device, dtype, what, axis):
    x = sample(dtype, (16, 32))
    wide = {"fp16": "fp32", "bf16": "fp32"}.get(dtype, dtype)
    wide = "i32" if dtype in ("i1", "i8", "u8", "i16", "u16") else wide
    got, _ = run(device, what, x, dtype, axis, wide)
    np.testing.assert_array_equal(got, getattr(x, what)(axis))


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp64"])
def test_extrema_ignore_nan(device, dtype):
    x = sample(dtype, (8, 32))
    x[:, 5] = np.nan
    x[3, :] = np.nan
    x[3, 17] = 2.0
    wide = "fp32" if dtype == "fp16" else dtype
    got, _ = run(device, "max", x, dtype, 1, wide)
    np.testing.assert_array_equal(got, np.nanmax(x, 1))
    got, _ = run(device, "argmin", x, dtype, 1, "i32")
    np.testing.assert_array_equal(got, np.nanargmin(x, 1))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("what", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["i8", "i32", "u32", "i64", "fp16", "bf16", "fp32", "fp64"])
def test_index_of_extrema_takes_the_first_among_equals(device, dtype, what, axis):
    x = sample(dtype, (16, 64))
    x = np.round(x.astype(np.float64) / max(1, np.abs(x.astype(np.float64)).max()) * 3).astype(
        x.dtype
    )
    got, _ = run(device, what, x, dtype, axis, "i32")
    np.testing.assert_array_equal(got, getattr(np, what)(x, axis))


@pytest.mark.parametrize("dtype", ["i8", "u16", "fp16", "fp32"])
def test_max_with_index_keeps_the_dtype(device, dtype):
    x = sample(dtype, (8, 16))
    got, index = run(device, "max_with_index", x, dtype, 1, dtype)
    np.testing.assert_array_equal(got, x.max(1))
    np.testing.assert_array_equal(index, x.argmax(1))


@pytest.mark.parametrize("what", ["xor", "or"])
@pytest.mark.parametrize("dtype", INTS)
def test_bitwise(device, dtype, what):
    x = sample(dtype, (8, 32))
    got, _ = run(device, what, x, dtype, 1, dtype)
    fn = np.bitwise_xor if what == "xor" else np.bitwise_or
    np.testing.assert_array_equal(got, fn.reduce(x, 1))


def test_all_elements(device):
    x = np.arange(64, dtype=np.float32).reshape(4, 16) - 7
    out = device.zeros(4)
    all_kernel[(1,)](device.array(x), out, M=4, N=16)
    np.testing.assert_array_equal(device.numpy(out), [x.sum(), x.max(), x.min(), x.sum()])


# --- own combine functions -------------------------------------------------------------------------------------
@tessera.jit
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n == 0, 0.0, n_b / n)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@tessera.jit
def welford_kernel(x, out, N: tl.constexpr):
    a = tl.load(x + tl.arange(0, N))
    mean, m2, n = tl.reduce((a, tl.zeros_like(a), tl.zeros_like(a) + 1.0), 0, welford)
    tl.store(out, mean)
    tl.store(out + 1, m2 / n)
    tl.store(out + 2, n)


def test_reduce_of_a_tuple(device):
    x = sample("fp32", (256,))
    out = device.zeros(3)
    welford_kernel[(1,)](device.array(x), out, N=256)
    np.testing.assert_allclose(device.numpy(out), [x.mean(), x.var(), 256], rtol=1e-4)


@tessera.jit
def scan_kernel(
    x,
    out,
    M: tl.constexpr,
    N: tl.constexpr,
    AXIS: tl.constexpr,
    REVERSE: tl.constexpr,
    WHAT: tl.constexpr,
):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + at)
    if WHAT == "cumsum":
        r = tl.cumsum(a, axis=AXIS, reverse=REVERSE)
    else:
        r = tl.cumprod(a, axis=AXIS, reverse=REVERSE)
    tl.store(out + at, r)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["i8", "u16", "i32", "i64", "fp16", "bf16", "fp32", "fp64"])
def test_cumsum(device, dtype, axis, reverse):
    x = sample(dtype, (8, 32), small=True)
    wide = "fp32" if dtype == "bf16" else sum_dtype(dtype)
    out = device.zeros(x.shape, wide)
    scan_kernel[(1,)](
        device.array(x, dtype), out, M=8, N=32, AXIS=axis, REVERSE=reverse, WHAT="cumsum"
    )
    flipped = np.flip(x, axis) if reverse else x
    want = np.cumsum(flipped.astype(np.float64 if dtype in FLOATS else np.int64), axis)
    want = np.flip(want, axis) if reverse else want
    limit = 2e-2 if dtype == "fp16" else 1e-4
    np.testing.assert_allclose(device.numpy(out).astype(want.dtype), want, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", ["i32", "u8", "fp32", "bf16"])
def test_cumprod(device, dtype):
    x = np.where(sample("fp32", (4, 16)) > 0, 1, 2).astype(sample(dtype, (1,)).dtype)
    out = device.zeros(x.shape, "fp32" if dtype == "bf16" else dtype)
    scan_kernel[(1,)](device.array(x, dtype), out, M=4, N=16, AXIS=1, REVERSE=False, WHAT="cumprod")
    want = np.cumprod(x, axis=1, dtype=x.dtype)
    np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def last_nonzero(a, b):
    return tl.where(b != 0, b, a)


@tessera.jit
def forward_fill_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.associative_scan(tl.load(x + i), 0, last_nonzero))


def test_scan_keeps_the_order_of_its_operands(device):
    x = np.array([0, 3, 0, 0, 5, 0, 7, 0, 0, 0, 0, 2, 1, 0, 0, 0], np.int32)
    out = device.zeros(16, "i32")
    forward_fill_kernel[(1,)](device.array(x), out, N=16)
    want = [0, 3, 3, 3, 5, 5, 7, 7, 7, 7, 7, 2, 1, 1, 1, 1]
    assert device.numpy(out).tolist() == want


@tessera.jit
def mean_of_means(a, n, b, m):
    total = n + m
    return a + (b - a) * (m / total), total


@tessera.jit
def one_result_kernel(x, found, mean, N: tl.constexpr):
    """Every thread must see the same index and the same mean: they are compared with what each tile element sees."""
    i = tl.arange(0, N)
    v = tl.load(x + i)
    at = tl.argmax((v > 0).to(tl.int32), 0, tie_break_left=False)
    tl.store(found + i, (i == at).to(tl.int32) * (v > 0).to(tl.int32))
    means = tl.reduce((v, tl.full((N,), 1.0, tl.float32)), 0, mean_of_means)
    tl.store(mean + i, means[0] + tl.zeros((N,), tl.float32))


@pytest.mark.parametrize("warps", [1, 4, 16])
@pytest.mark.parametrize("n", [16, 512])
def test_all_threads_see_one_result(device, n, warps):
    x = sample("fp32", (n,))
    found, mean = device.zeros(n, "i32"), device.zeros(n)
    one_result_kernel[(1,)](device.array(x), found, mean, N=n, num_warps=warps)
    assert device.numpy(found).sum() == 1
    assert len(np.unique(device.numpy(mean))) == 1
    np.testing.assert_allclose(device.numpy(mean)[0], x.mean(), atol=1e-6)
