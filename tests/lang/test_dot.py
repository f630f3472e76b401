"""`tl.dot` over operand dtypes, shapes, accumulators and batches."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.kit import sample

OUT = {"fp16": "fp32", "bf16": "fp32", "fp32": "fp32", "fp64": "fp64", "i8": "i32"}


@tessera.jit
def dot_kernel(
    a,
    b,
    c,
    out,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ACC: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + i[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + j[None, :])
    at = i[:, None] * N + j[None, :]
    if ACC:
        r = tl.dot(x, y, tl.load(c + at), input_precision=PRECISION)
    else:
        r = tl.dot(x, y, input_precision=PRECISION)
    tl.store(out + at, r)


@pytest.mark.parametrize("acc", [False, True])
@pytest.mark.parametrize("shape", [(16, 16, 16), (32, 64, 32), (64, 16, 128), (128, 128, 32)])
@pytest.mark.parametrize("dtype", OUT)
def test_dot(device, dtype, shape, acc):
    m, n, k = shape
    k = max(k, 32) if dtype == "i8" else k
    a, b = sample(dtype, (m, k), seed=1), sample(dtype, (k, n), seed=2)
    c = sample(OUT[dtype], (m, n), small=True, seed=3)
    out = device.zeros((m, n), OUT[dtype])
    dot_kernel[(1,)](
        device.array(a, dtype), device.array(b, dtype), device.array(c, OUT[dtype]), out,
        M=m, N=n, K=k, ACC=acc, PRECISION="ieee",
    )  # fmt: skip
    wide = np.int64 if dtype == "i8" else np.float64
    want = a.astype(wide) @ b.astype(wide) + (c if acc else 0)
    if dtype == "i8":
        np.testing.assert_array_equal(device.numpy(out), want)
    else:
        np.testing.assert_allclose(
            device.numpy(out), want, rtol=1e-4, atol=1e-3 if dtype != "fp64" else 1e-9
        )


@pytest.mark.parametrize(("precision", "limit"), [("tf32", 2e-2), ("tf32x3", 1e-4), ("ieee", 1e-4)])
def test_precision_of_fp32(device, precision, limit):
    a, b = sample("fp32", (32, 32), seed=1), sample("fp32", (32, 32), seed=2)
    out = device.zeros((32, 32))
    dot_kernel[(1,)](
        device.array(a),
        device.array(b),
        device.zeros(1),
        out,
        M=32,
        N=32,
        K=32,
        ACC=False,
        PRECISION=precision,
    )
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(device.numpy(out), want, rtol=limit, atol=limit)


@tessera.jit
def half_kernel(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    r = tl.dot(tl.load(a + at), tl.load(b + at), out_dtype=tl.float16)
    tl.static_assert(r.dtype == tl.float16)
    tl.store(out + at, r)


def test_fp16_accumulator(device):
    a, b = sample("fp16", (16, 16), seed=1), sample("fp16", (16, 16), seed=2)
    out = device.zeros((16, 16), "fp16")
    half_kernel[(1,)](device.array(a), device.array(b), out, N=16)
    np.testing.assert_allclose(
        device.numpy(out), a.astype(np.float32) @ b.astype(np.float32), rtol=2e-2, atol=2e-2
    )


@tessera.jit
def batch_kernel(a, b, out, B: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    at = tl.arange(0, B)[:, None, None] * (N * N) + i[None, :, None] * N + i[None, None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision="ieee"))


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_batches(device, dtype):
    a, b = sample(dtype, (4, 16, 16), seed=1), sample(dtype, (4, 16, 16), seed=2)
    out = device.zeros((4, 16, 16))
    batch_kernel[(1,)](device.array(a), device.array(b), out, B=4, N=16)
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(device.numpy(out), want, rtol=1e-4, atol=1e-4)


@tessera.jit
def transposed_kernel(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out + at, tl.dot(tl.trans(tl.load(a + at)), tl.load(b + at).T, input_precision="ieee"))


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_transposed_operands(device, dtype):
    a, b = sample(dtype, (32, 32), seed=1), sample(dtype, (32, 32), seed=2)
    out = device.zeros((32, 32))
    transposed_kernel[(1,)](device.array(a), device.array(b), out, N=32)
    want = a.T.astype(np.float64) @ b.T.astype(np.float64)
    np.testing.assert_allclose(device.numpy(out), want, rtol=1e-4, atol=1e-4)


# Largest error of a product, in units of the product of magnitudes: the parts that are left out, and fp32 sums.
PRECISIONS = {
    "ieee": 2.0**-19,
    "tf32": 2.0**-9,
    "tf32x3": 2.0**-18,
    "bf16x3": 2.0**-14,
    "bf16x6": 2.0**-18,
}


@pytest.mark.parametrize("spread", [0, 8])
@pytest.mark.parametrize("shape", [(16, 16, 16), (32, 64, 32), (64, 32, 128), (128, 64, 64)])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_error_bound_of_fp32_products(device, precision, shape, spread):
    m, n, k = shape
    rng = np.random.default_rng(5)
    a = (rng.standard_normal((m, k)) * np.exp(rng.uniform(-spread, spread, (m, k)))).astype(
        np.float32
    )
    b = (rng.standard_normal((k, n)) * np.exp(rng.uniform(-spread, spread, (k, n)))).astype(
        np.float32
    )
    c, out = sample("fp32", (m, n), seed=3), device.zeros((m, n))
    dot_kernel[(1,)](
        device.array(a),
        device.array(b),
        device.array(c),
        out,
        M=m,
        N=n,
        K=k,
        ACC=True,
        PRECISION=precision,
    )
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    size = np.abs(wide_a) @ np.abs(wide_b) + np.abs(c)
    gap = np.abs(device.numpy(out) - (wide_a @ wide_b + c)) / size
    assert gap.max() <= PRECISIONS[precision]


@pytest.mark.parametrize("precision", ["TF32x3", "IEEE", "bF16x6"])
def test_precision_in_any_case(device, precision):
    a, out = np.eye(16, dtype=np.float32), device.zeros((16, 16))
    dot_kernel[(1,)](
        device.array(a),
        device.array(a),
        device.zeros(1),
        out,
        M=16,
        N=16,
        K=16,
        ACC=False,
        PRECISION=precision,
    )
    np.testing.assert_array_equal(device.numpy(out), a)


@tessera.jit
def narrow_kernel(
    a, b, c, M, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """The first tile takes 512 bytes of shared memory, swizzled, behind those of the second one."""
    left = tl.make_tensor_descriptor(a, shape=[K, M], strides=[BM, 1], block_shape=[BK, BM])
    right = tl.make_tensor_descriptor(b, shape=[K, N], strides=[BN, 1], block_shape=[BK, BN])
    acc = tl.dot(left.load([0, 0]).T, right.load([0, 0]))
    i, j = tl.arange(0, BM), tl.arange(0, BN)
    inside = (i[:, None] < M) & (j[None, :] < N)
    tl.store(c + i[:, None] * BN + j[None, :], acc, mask=inside)


@pytest.mark.parametrize(("bm", "bn", "bk"), [(16, 128, 16), (16, 64, 16), (32, 128, 16)])
def test_small_tiles_in_shared_memory(device, bm, bn, bk):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (bk, n)).astype(np.float16) for n in (bm, bn))
    c = device.zeros((bm, bn))
    narrow_kernel[(1,)](device.array(a), device.array(b), c, bm - 2, bn - 5, bk, bm, bn, bk)
    want = np.zeros((bm, bn), np.float32)
    want[: bm - 2, : bn - 5] = (a.T.astype(np.float32) @ b)[: bm - 2, : bn - 5]
    np.testing.assert_array_equal(device.numpy(c), want)
