"""Sorting, flipping, histogram, gather, and the shape operations, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.kit import FLOATS, INTS, sample


@tessera.jit
def sort_kernel(x, out, M: tl.constexpr, N: tl.constexpr, DESCENDING: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.sort(tl.load(x + at), descending=DESCENDING))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (4, 16), (2, 64)])
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
def test_sort(device, dtype, shape, descending):
    x = sample(dtype, shape)
    out = device.zeros(shape, dtype)
    sort_kernel[(1,)](device.array(x, dtype), out, M=shape[0], N=shape[1], DESCENDING=descending)
    want = np.sort(x, axis=1)
    np.testing.assert_array_equal(device.numpy(out), want[:, ::-1] if descending else want)


def test_sort_loses_no_element(device):
    """Values that compare equal, or do not compare, still come out as often as they went in."""
    x = np.array([0.0, -0.0, np.nan, 1.0, -0.0, 0.0, np.nan, -1.0], np.float32)
    out = device.zeros((1, 8))
    sort_kernel[(1,)](device.array(x), out, M=1, N=8, DESCENDING=False)
    got = device.numpy(out).reshape(-1).view(np.uint32)
    assert sorted(got.tolist()) == sorted(x.view(np.uint32).tolist())


@tessera.jit
def topk_kernel(
    x, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, DESCENDING: tl.constexpr
):
    i = tl.arange(0, M)[:, None]
    a = tl.load(x + i * N + tl.arange(0, N)[None, :])
    tl.store(out + i * K + tl.arange(0, K)[None, :], tl.topk(a, K, descending=DESCENDING))


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("k", [1, 2, 8, 32])
@pytest.mark.parametrize("dtype", ["i32", "u32", "fp32", "i64"])
def test_topk(device, dtype, k, descending):
    x = sample(dtype, (4, 32))
    out = device.zeros((4, k), dtype)
    topk_kernel[(1,)](device.array(x, dtype), out, M=4, N=32, K=k, DESCENDING=descending)
    want = np.sort(x, axis=1)
    want = want[:, ::-1][:, :k] if descending else want[:, :k]
    np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def flip_kernel(x, out, M: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.flip(tl.load(x + at), DIM))


@pytest.mark.parametrize("dim", [0, 1, -1, None])
@pytest.mark.parametrize("dtype", ["i1", "i8", "i32", "u64", "fp16", "bf16", "fp32"])
def test_flip(device, dtype, dim):
    x = sample(dtype, (8, 16))
    out = device.zeros(x.shape, dtype)
    flip_kernel[(1,)](device.array(x, dtype), out, M=8, N=16, DIM=dim)
    np.testing.assert_array_equal(device.numpy(out), np.flip(x, -1 if dim is None else dim))


@tessera.jit
def histogram_kernel(x, out, limit, N: tl.constexpr, BINS: tl.constexpr, MASKED: tl.constexpr):
    i = tl.arange(0, N)
    if MASKED:
        h = tl.histogram(tl.load(x + i), BINS, mask=i < limit)
    else:
        h = tl.histogram(tl.load(x + i), BINS)
    tl.store(out + tl.arange(0, BINS), h)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["i32", "u32", "u8", "i64"])
def test_histogram(device, dtype, masked):
    x = np.random.default_rng(0).integers(0, 20, 128).astype(sample(dtype, (1,)).dtype)
    out = device.zeros(16, "i32")
    histogram_kernel[(1,)](device.array(x, dtype), out, 100, N=128, BINS=16, MASKED=masked)
    counted = x[:100] if masked else x
    want = np.bincount(counted[counted < 16].astype(np.int64), minlength=16)
    np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def gather_kernel(
    x,
    index,
    out,
    M: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    AXIS: tl.constexpr,
):
    a = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    at = tl.arange(0, P)[:, None] * Q + tl.arange(0, Q)[None, :]
    tl.store(out + at, tl.gather(a, tl.load(index + at), AXIS))


@pytest.mark.parametrize(
    ("axis", "shape"), [(0, (4, 16)), (0, (32, 16)), (1, (8, 4)), (1, (8, 64))]
)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "i8", "i64"])
def test_gather(device, dtype, axis, shape):
    x = sample(dtype, (8, 16))
    index = np.random.default_rng(1).integers(0, x.shape[axis], shape).astype(np.int32)
    out = device.zeros(shape, dtype)
    gather_kernel[(1,)](
        device.array(x, dtype),
        device.array(index),
        out,
        M=8,
        N=16,
        P=shape[0],
        Q=shape[1],
        AXIS=axis,
    )
    np.testing.assert_array_equal(device.numpy(out), np.take_along_axis(x, index, axis))


# --- shapes ------------------------------------------------------------------------------------------------------
@tessera.jit
def shapes_kernel(x, out, WHAT: tl.constexpr):
    a = tl.load(x + tl.arange(0, 32)).reshape(4, 8)
    if WHAT == "trans":
        r = tl.trans(a)
    elif WHAT == "T":
        r = a.T
    elif WHAT == "permute":
        r = a.reshape(2, 2, 8).permute(2, 0, 1)
    elif WHAT == "reshape":
        r = tl.reshape(a, (8, 4))
    elif WHAT == "ravel":
        r = tl.ravel(a)
    elif WHAT == "join":
        r = tl.join(a, a + 100)
    elif WHAT == "interleave":
        r = tl.interleave(a, a + 100)
    elif WHAT == "split":
        left, right = tl.split(a.reshape(16, 2))
        r = left * 100 + right
    elif WHAT == "cat":
        r = tl.cat(a, a + 100)
    elif WHAT == "cat1":
        r = tl.cat(a, a + 100, dim=1)
    elif WHAT == "broadcast":
        b, c = tl.broadcast(tl.sum(a, 1, keep_dims=True), tl.sum(a, 0, keep_dims=True))
        r = b * 1000 + c
    elif WHAT == "squeeze":
        r = tl.unsqueeze(tl.squeeze(a[None], 0), 1)
    elif WHAT == "item":
        r = tl.sum(a, keep_dims=True).item() + tl.zeros((4, 8), tl.int32)
    elif WHAT == "item of loads":
        r = tl.load(x + 5 + tl.arange(0, 1)[:, None]).item() + tl.zeros((4, 8), tl.int32)
    tl.static_assert(r.numel <= 64)
    tl.store(out + tl.arange(0, r.numel), tl.ravel(r))


A = np.arange(32, dtype=np.int32).reshape(4, 8)
SHAPES = {
    "trans": A.T, "T": A.T, "permute": A.reshape(2, 2, 8).transpose(2, 0, 1), "reshape": A, "ravel": A,
    "join": np.stack([A, A + 100], -1), "interleave": np.stack([A, A + 100], -1).reshape(4, 16),
    "split": A.reshape(16, 2)[:, 0] * 100 + A.reshape(16, 2)[:, 1], "cat": np.concatenate([A, A + 100]),
    "cat1": np.concatenate([A, A + 100], 1), "broadcast": A.sum(1)[:, None] * 1000 + A.sum(0)[None, :], "squeeze": A,
    "item": np.full((4, 8), A.sum()), "item of loads": np.full((4, 8), 5),
}  # fmt: skip


@pytest.mark.parametrize("what", SHAPES)
def test_shape_operations(device, what):
    want = SHAPES[what].reshape(-1)
    out = device.zeros(want.size, "i32")
    shapes_kernel[(1,)](device.array(A), out, WHAT=what)
    np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def swizzle_kernel(out, SI: tl.constexpr, SJ: tl.constexpr, G: tl.constexpr):
    pid = tl.program_id(0)
    i, j = tl.swizzle2d(pid // SJ, pid % SJ, SI, SJ, G)
    tl.store(out + pid, i * SJ + j)


@pytest.mark.parametrize(("si", "sj", "g"), [(4, 4, 2), (5, 3, 2), (7, 2, 4), (3, 5, 8)])
def test_swizzle2d(device, si, sj, g):
    out = device.zeros(si * sj, "i32")
    swizzle_kernel[(si * sj,)](out, SI=si, SJ=sj, G=g)
    want = []
    for n in range(si * sj):
        off = n // (g * sj) * g
        h, r = min(si - off, g), n % (g * sj)
        want.append((off + r % h) * sj + r // h)
    assert device.numpy(out).tolist() == want
    assert sorted(want) == list(range(si * sj))


@tessera.jit
def carried_kernel(x, out, n):
    """What is reversed gets its place in registers only once the loop's other values have theirs."""
    i = tl.arange(0, 64)
    a = tl.load(x + 64 + i)
    b = tl.sum(tl.reshape(a, 8, 8), 1)[:, None].broadcast_to(8, 8).reshape(64)
    for _ in range(n):
        if tl.max(b) >= 5:
            a = tl.flip(b, 0)
        b = tl.trans(tl.reshape(tl.load(x + i), 8, 8)).reshape(64)
    tl.store(out + i, a)


def test_order_of_what_loops_carry(device):
    x = sample("i32", (128,), small=True)
    x[64:72] = 9
    out = device.zeros(64, "i32")
    for n in (1, 3):
        carried_kernel[(1,)](device.array(x), out, n)
        b = np.repeat(x[64:].reshape(8, 8).sum(1), 8)
        want = b[::-1]
        for _ in range(n - 1):
            b = x[:64].reshape(8, 8).T.ravel()
            want = b[::-1] if b.max() >= 5 else want
        np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def butterflies(x, ROWS: tl.constexpr, N: tl.constexpr, STRIDE: tl.constexpr):
    """A stage of the fast Hadamard transform of each row."""
    pairs = tl.permute(tl.reshape(x, (ROWS, N // (2 * STRIDE), 2, STRIDE)), (0, 1, 3, 2))
    a, b = tl.split(pairs)
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2)), (ROWS, N))


@tessera.jit
def hadamard_kernel(x, out, ROWS: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * N + tl.arange(0, N)[None, :]
    t = tl.load(x + at)
    for stage in tl.static_range(STAGES):
        t = butterflies(t, ROWS, N, N >> (stage + 1))
    tl.store(out + at, t)


@pytest.mark.parametrize("shape", [(2, 1024), (1, 64), (4, 8)])
def test_rows_of_splits(device, shape):
    """Each split takes another dimension from lanes and warps."""
    x = sample("i32", shape, small=True)
    out = device.zeros(shape, "i32")
    stages = shape[1].bit_length() - 1
    hadamard_kernel[(1,)](device.array(x), out, ROWS=shape[0], N=shape[1], STAGES=stages)
    signs = np.array(
        [[(-1) ** (i & j).bit_count() for j in range(shape[1])] for i in range(shape[1])]
    )
    np.testing.assert_array_equal(device.numpy(out), x @ signs)
