"""Chains of products in loops, as in attention: any number of iterations, masks in a branch, two sums at a time."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.kit import sample


@tessera.jit
def attend(
    q, k, v, out, length, N: tl.constexpr, M: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr
):
    rows, dims, at = tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    x = tl.load(q + rows[:, None] * D + dims[None, :])
    acc = tl.zeros((M, D), tl.float32)
    total = tl.zeros((M,), tl.float32)
    peak = tl.full((M,), -float("inf"), tl.float32)
    for start in range(0, length, N):
        keys = start + at
        y = tl.load(k + keys[None, :] * D + dims[:, None])
        scores = tl.dot(x, y)
        if MASK:
            if start > 0:
                scores = tl.where(keys[None, :] <= rows[:, None] + N, scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        z = tl.load(v + keys[:, None] * D + dims[None, :])
        acc = tl.dot(weights.to(z.dtype), z, acc)
        peak = higher
    tl.store(out + rows[:, None] * D + dims[None, :], acc / total[:, None])


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
@pytest.mark.parametrize("m", [64, 128])
def test_attention(device, m, blocks, mask):
    n, d = 32, 64
    q = sample("fp16", (m, d), seed=1) / np.float16(4)
    k, v = (sample("fp16", (blocks * n, d), seed=s) for s in (2, 3))
    out = device.zeros((m, d), "fp32")
    attend[(1,)](
        device.array(q, "fp16"), device.array(k, "fp16"), device.array(v, "fp16"), out,
        blocks * n, N=n, M=m, D=d, MASK=mask, num_warps=4, num_stages=3,
    )  # fmt: skip
    scores = q.astype(np.float64) @ k.T.astype(np.float64)
    if mask:
        keys, rows = np.arange(blocks * n), np.arange(m)
        hidden = (keys[None, :] > rows[:, None] + n) & (keys >= n)
        scores = np.where(hidden, -np.inf, scores)
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    want = weights / weights.sum(1, keepdims=True) @ v
    np.testing.assert_allclose(device.numpy(out), want, atol=4e-3 * np.abs(want).max())


@tessera.jit
def two_sums(a, b, c, out, more, length, N: tl.constexpr, M: tl.constexpr):
    rows, at = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(a + rows[:, None] * M + rows[None, :])
    first = tl.zeros((M, M), tl.float32)
    second = tl.zeros((M, M), tl.float32)
    for start in range(0, length, N):
        y = tl.load(b + (start + at)[:, None] * M + rows[None, :])
        z = tl.load(c + (start + at)[:, None] * M + rows[None, :])
        s = tl.dot(x, tl.trans(y))
        t = tl.dot(x, tl.trans(z))
        first = tl.dot((s * 0.125).to(y.dtype), z, first)
        second = tl.dot((s - t).to(y.dtype), y, second)
    tl.store(out + rows[:, None] * M + rows[None, :], first)
    tl.store(more + rows[:, None] * M + rows[None, :], second)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_two_sums(device, blocks):
    n, m = 32, 64
    x = sample("fp16", (m, m), seed=1) / np.float16(8)
    y, z = (sample("fp16", (blocks * n, m), seed=s) / np.float16(2) for s in (2, 3))
    out, more = device.zeros((m, m), "fp32"), device.zeros((m, m), "fp32")
    arrays = [device.array(t, "fp16") for t in (x, y, z)]
    two_sums[(1,)](*arrays, out, more, blocks * n, N=n, M=m, num_warps=4, num_stages=3)
    wide = [t.astype(np.float64) for t in (x, y, z)]
    s, t = wide[0] @ wide[1].T, wide[0] @ wide[2].T
    for found, want in ((out, s / 8 @ wide[2]), (more, (s - t) @ wide[1])):
        np.testing.assert_allclose(device.numpy(found), want, atol=4e-3 * np.abs(want).max())


@tessera.jit
def attend_pages(
    q, k, v, pages, scales, out, length, N: tl.constexpr, M: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr
):  # fmt: skip
    """Keys and values in pages that lie anywhere, with a scale for each key."""
    rows, dims, at = tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    x = tl.load(q + rows[:, None] * D + dims[None, :])
    acc = tl.zeros((M, D), tl.float32)
    for start in range(0, length, N):
        keys = start + at
        page = tl.load(pages + keys // PAGE, mask=keys < length, other=0)
        place = (page * PAGE + keys % PAGE) * D
        y = tl.load(k + place[None, :] + dims[:, None], mask=(keys < length)[None, :], other=0.0)
        z = tl.load(v + place[:, None] + dims[None, :], mask=(keys < length)[:, None], other=0.0)
        scale = tl.load(scales + keys, mask=keys < length, other=0.0)
        weights = tl.maximum(tl.dot(x, y), 0.0) * scale[None, :]
        acc = tl.dot(weights.to(z.dtype), z, acc)
    tl.store(out + rows[:, None] * D + dims[None, :], acc)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 24, 32, 100, 160])
@pytest.mark.parametrize("warps", [4, 8])
def test_pages(device, length, stages, warps):
    """What an address is loaded from runs ahead of the copy that needs it."""
    m, n, d, page = 16 * warps, 32, 64, 8
    count = max(-(-length // page), 1)
    order = np.random.default_rng(0).permutation(count).astype(np.int32)
    q = sample("fp16", (m, d), seed=1) / np.float16(4)
    k, v = (sample("fp16", (count * page, d), seed=s) / np.float16(4) for s in (2, 3))
    scales = sample("fp32", (max(length, 1),), seed=4)
    out = device.zeros((m, d), "fp32")
    attend_pages[(1,)](
        device.array(q, "fp16"), device.array(k, "fp16"), device.array(v, "fp16"), device.array(order, "i32"),
        device.array(scales, "fp32"), out, length, N=n, M=m, D=d, PAGE=page, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    keys = np.arange(length)
    place = order[keys // page] * page + keys % page
    weights = np.maximum(q.astype(np.float32) @ k[place].T.astype(np.float32), 0) * scales[keys]
    expected = weights.astype(np.float16).astype(np.float32) @ v[place].astype(np.float32)
    found = device.numpy(out)
    assert np.abs(found - expected).max() <= 0.01 * max(np.abs(expected).max(), 1)
