"""Kernels that people run, whole: paged attention, mixtures of experts, 4-bit weights, recurrences, convolution."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.kit import sample


@tessera.jit
def paged_attention(
    q_ptr, keys, values, pages, lengths, out_ptr, scale, stride_pages,
    HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    seq, head = tl.program_id(0), tl.program_id(1)
    g, d, t = tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, PAGE)
    real = g < GROUP
    rows = (seq * HEADS + head) * GROUP + g
    q = tl.load(q_ptr + rows[:, None] * D + d[None, :], mask=real[:, None], other=0.0)
    length = tl.load(lengths + seq)
    peak = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    acc = tl.zeros([ROWS, D], dtype=tl.float32)
    for j in range(0, tl.cdiv(length, PAGE)):
        page = tl.load(pages + seq * stride_pages + j).to(tl.int64)
        base = (page * HEADS + head) * PAGE * D
        k = tl.load(keys + base + t[None, :] * D + d[:, None])
        v = tl.load(values + base + t[:, None] * D + d[None, :])
        at = j * PAGE + t
        seen = at < length
        if WINDOW > 0:
            seen &= length - 1 - at < WINDOW
        s = tl.where(real[:, None] & seen[None, :], scale * tl.dot(q, k), float("-inf"))
        new = tl.maximum(peak, tl.max(s, axis=1))
        new = tl.where(new > float("-inf"), new, 0.0)
        p = tl.exp(s - new[:, None])
        shrink = tl.exp(peak - new)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        total = total * shrink + tl.sum(p, axis=1)
        peak = new
    acc = acc / tl.where(real, total, 1.0)[:, None]
    tl.store(out_ptr + rows[:, None] * D + d[None, :], acc, mask=real[:, None])


@pytest.mark.parametrize("window", [0, 20])
def test_paged_attention(device, window):
    seqs, heads, group, d, page = 3, 2, 5, 64, 16
    lengths = np.array([5, 33, 48])
    q = sample("fp16", (seqs, heads, group, d), seed=1)
    k, v = (sample("fp16", (12, heads, page, d), seed=s) for s in (2, 3))
    pages = np.random.default_rng(0).permutation(12).reshape(seqs, 4)
    out = device.zeros(q.shape, "fp16")
    paged_attention[(seqs, heads)](
        device.array(q), device.array(k), device.array(v), device.array(pages, "i32"),
        device.array(lengths, "i32"), out, 0.125, 4,
        HEADS=heads, GROUP=group, ROWS=16, D=d, PAGE=page, WINDOW=window,
    )  # fmt: skip
    want = np.zeros(q.shape)
    for s, n in enumerate(lengths):
        start = max(0, n - window) if window else 0
        for h in range(heads):
            ks, vs = (
                np.concatenate([x[p, h] for p in pages[s]])[start:n].astype(float) for x in (k, v)
            )
            scores = q[s, h].astype(float) @ ks.T * 0.125
            weights = np.exp(scores - scores.max(1, keepdims=True))
            want[s, h] = weights / weights.sum(1, keepdims=True) @ vs
    np.testing.assert_allclose(device.numpy(out), want, atol=4e-3)


@tessera.jit
def _leave_empty(c_ptr, tokens, real, columns, N, BM: tl.constexpr, BN: tl.constexpr):
    tl.store(
        c_ptr + tokens[:, None] * N + columns[None, :],
        tl.zeros((BM, BN), dtype=c_ptr.dtype.element_ty),
        mask=real[:, None] & (columns[None, :] < N),
    )


@tessera.jit
def experts(
    a_ptr, b_ptr, c_ptr, weights, order, owners, padded, N, K, EM, count,
    TOP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    tall, wide = tl.cdiv(EM, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * wide) * GROUP
    height = min(tall - first, GROUP)
    pid_m = first + ((pid % (GROUP * wide)) % height)
    pid_n = (pid % (GROUP * wide)) // height
    if pid_m * BM >= tl.load(padded):
        return
    tokens = tl.load(order + pid_m * BM + tl.arange(0, BM).to(tl.int64)).to(tl.int64)
    real = tokens < count
    columns = pid_n * BN + tl.arange(0, BN)
    expert = tl.load(owners + pid_m).to(tl.int64)
    if expert == -1:
        _leave_empty(c_ptr, tokens, real, columns, N, BM, BN)
        return
    ks = tl.arange(0, BK)
    a_ptrs = a_ptr + (tokens[:, None] // TOP * K + ks[None, :])
    b_ptrs = b_ptr + expert * N * K + (ks[:, None] + (columns.to(tl.int64) % N)[None, :] * K)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        inside = ks < K - k * BK
        a = tl.load(a_ptrs, mask=real[:, None] & inside[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=inside[:, None], other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BK
        b_ptrs += BK
    acc *= tl.load(weights + tokens, mask=real, other=0.0)[:, None]
    c_ptrs = c_ptr + N * tokens[:, None] + columns[None, :]
    tl.store(c_ptrs, acc.to(tl.float16), mask=real[:, None] & (columns[None, :] < N))


@pytest.mark.parametrize("k", [64, 72])
def test_mixture_of_experts(device, k):
    tokens, top, count, n, bm = 10, 2, 4, 96, 16
    a, b = sample("fp16", (tokens, k), seed=1), sample("fp16", (count, n, k), seed=2)
    rng = np.random.default_rng(3)
    chosen, weights = rng.integers(0, count - 1, tokens * top), rng.random(tokens * top, np.float32)
    order: list[int] = []
    owners: list[int] = []
    for e in range(count - 1):
        mine = np.flatnonzero(chosen == e).tolist()
        mine += [tokens * top] * (-len(mine) % bm)
        order += mine
        owners += [e] * (len(mine) // bm)
    owners[0] = -1  # an expert that lives elsewhere
    out = device.full((tokens * top, n), 7, "fp16")
    blocks = len(order) // bm + 1  # the last one is past the padded tokens
    experts[lambda meta: (blocks * tessera.cdiv(n, meta["BN"]),)](
        device.array(a), device.array(b), out, device.array(weights),
        device.array(order + [tokens * top] * bm, "i32"), device.array([*owners, 0], "i32"),
        device.array([len(order)], "i32"), n, k, blocks * bm, tokens * top,
        TOP=top, BM=bm, BN=32, BK=32, GROUP=2,
    )  # fmt: skip
    away = set(order[:bm])
    want = np.stack([
        np.zeros(n) if i in away else weights[i] * (b[chosen[i]].astype(float) @ a[i // top].astype(float))
        for i in range(tokens * top)
    ])  # fmt: skip
    np.testing.assert_allclose(device.numpy(out), want, atol=2e-2)


@tessera.jit
def four_bits(
    a, packed, scales, zeros, out, M, N, K,
    GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    shift = (ks % 8) * 4
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, K, BK, num_stages=2):
        k = start + ks
        x = tl.load(a + rows[:, None] * K + k[None, :], mask=rows[:, None] < M, other=0.0)
        w = (tl.load(packed + (k // 8)[:, None] * N + columns[None, :]) >> shift[:, None]) & 0xF
        scale = tl.load(scales + (k // GROUP)[:, None] * N + columns[None, :])
        zero = tl.load(zeros + (k // GROUP)[:, None] * N + columns[None, :])
        acc = tl.dot(x, ((w.to(tl.float16) - zero) * scale).to(tl.float16), acc)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(out + rows[:, None] * N + columns[None, :], acc.to(tl.float16), mask=inside)


def test_four_bit_weights(device):
    m, n, k, group = 20, 64, 128, 32
    rng = np.random.default_rng(0)
    a, w = sample("fp16", (m, k), seed=1), rng.integers(0, 16, (k, n))
    packed = (
        w.reshape(k // 8, 8, n).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))[:, None]
    ).sum(1, dtype=np.uint32)
    scales, zeros = (
        rng.random((k // group, n)).astype(np.float16),
        rng.integers(0, 16, (k // group, n)),
    )
    out = device.zeros((m, n), "fp16")
    four_bits[(1, 1)](
        device.array(a), device.array(packed.view(np.int32)), device.array(scales),
        device.array(zeros, "fp16"), out, m, n, k, GROUP=group, BM=32, BN=64, BK=32,
    )  # fmt: skip
    real = (w - np.repeat(zeros, group, 0)) * np.repeat(scales.astype(float), group, 0)
    want = a.astype(float) @ real
    np.testing.assert_allclose(device.numpy(out), want, atol=2e-3 * np.abs(want).max())


@tessera.jit
def linear_attention(q, k, v, g, out, T, scale, D: tl.constexpr, C: tl.constexpr):
    """A gated recurrence, chunk by chunk: the state is D×D, inside a chunk it is a masked product."""
    head = tl.program_id(0)
    at = head * T * D
    t = tl.arange(0, C)
    state = tl.zeros((D, D), tl.float32)
    for chunk in range(0, tl.cdiv(T, C)):
        qp = tl.make_block_ptr(q + at, (T, D), (D, 1), (chunk * C, 0), (C, D), (1, 0))
        kp = tl.make_block_ptr(k + at, (D, T), (1, D), (0, chunk * C), (D, C), (0, 1))
        vp = tl.make_block_ptr(v + at, (T, D), (D, 1), (chunk * C, 0), (C, D), (1, 0))
        op = tl.make_block_ptr(out + at, (T, D), (D, 1), (chunk * C, 0), (C, D), (1, 0))
        bq = tl.load(qp, boundary_check=(0,), padding_option="zero")
        bk = tl.load(kp, boundary_check=(1,), padding_option="zero")
        bv = tl.load(vp, boundary_check=(0,), padding_option="zero")
        inside = chunk * C + t < T
        decay = tl.cumsum(tl.load(g + head * T + chunk * C + t, inside, 0.0), axis=0)
        last = tl.sum(tl.load(g + head * T + chunk * C + t, inside, 0.0), axis=0)
        a = tl.dot(bq, bk) * tl.exp(decay[:, None] - decay[None, :])
        a = tl.where(t[:, None] >= t[None, :], a, 0.0)
        o = tl.dot(a.to(bv.dtype), bv)
        o += tl.dot((bq * tl.exp(decay)[:, None]).to(bq.dtype), state.to(bq.dtype))
        tl.store(op, (o * scale).to(op.dtype.element_ty), boundary_check=(0,))
        state *= tl.exp(last)
        state += tl.dot((bk * tl.exp(last - decay)[None, :]).to(bv.dtype), bv)


@pytest.mark.filterwarnings("ignore:make_block_ptr")
@pytest.mark.parametrize("length", [64, 75])
def test_linear_attention(device, length):
    heads, d = 2, 32
    q, k, v = (sample("fp16", (heads, length, d), seed=s) / np.float16(4) for s in (1, 2, 3))
    g = -np.random.default_rng(4).random((heads, length), np.float32) / 4
    out = device.zeros(q.shape, "fp32")
    linear_attention[(heads,)](
        device.array(q),
        device.array(k),
        device.array(v),
        device.array(g),
        out,
        length,
        0.5,
        D=d,
        C=32,
    )
    want = np.zeros(q.shape)
    for h in range(heads):
        state = np.zeros((d, d))
        for t in range(length):
            state = state * np.exp(g[h, t]) + np.outer(k[h, t].astype(float), v[h, t].astype(float))
            want[h, t] = q[h, t].astype(float) @ state * 0.5
    np.testing.assert_allclose(device.numpy(out), want, atol=1e-2)


@tessera.jit
def convolution(
    x, w, out, H, W, P, Q, C: tl.constexpr, KO: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """NHWC, as a product over patches that are never stored."""
    image = tl.program_id(1)
    pixel = tl.program_id(0) * BM + tl.arange(0, BM)
    p, q = pixel // Q, pixel % Q
    c, ko = tl.arange(0, BC), tl.arange(0, KO)
    acc = tl.zeros((BM, KO), tl.float32)
    for rs in range(R * S):
        y = p * STRIDE - PAD + rs // S
        z = q * STRIDE - PAD + rs % S
        inside = (y >= 0) & (y < H) & (z >= 0) & (z < W) & (pixel < P * Q)
        for start in range(0, C, BC):
            at = ((image * H + y) * W + z) * C
            a = tl.load(x + at[:, None] + (start + c)[None, :], mask=inside[:, None], other=0.0)
            b = tl.load(w + (rs * C + start + c)[:, None] * KO + ko[None, :])
            acc = tl.dot(a, b, acc)
    where = (image * P * Q + pixel)[:, None] * KO + ko[None, :]
    tl.store(out + where, acc, mask=(pixel < P * Q)[:, None])


@pytest.mark.parametrize(("stride", "pad"), [(1, 1), (2, 0)])
def test_convolution(device, stride, pad):
    n, h, wd, c, ko, r, s = 2, 9, 7, 32, 16, 3, 3
    x, w = sample("fp16", (n, h, wd, c), seed=1), sample("fp16", (r, s, c, ko), seed=2)
    p, q = (h + 2 * pad - r) // stride + 1, (wd + 2 * pad - s) // stride + 1
    out = device.zeros((n, p, q, ko), "fp32")
    convolution[(tessera.cdiv(p * q, 32), n)](
        device.array(x), device.array(w), out, h, wd, p, q,
        C=c, KO=ko, R=r, S=s, STRIDE=stride, PAD=pad, BM=32, BC=16,
    )  # fmt: skip
    wide = np.pad(x.astype(float), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    want = np.zeros((n, p, q, ko))
    for i in range(r):
        for j in range(s):
            part = wide[
                :, i : i + stride * (p - 1) + 1 : stride, j : j + stride * (q - 1) + 1 : stride
            ]
            want += part @ w[i, j].astype(float)
    np.testing.assert_allclose(device.numpy(out), want, atol=1e-2)
