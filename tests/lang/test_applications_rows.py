"""Kernels over rows that people run, whole: rotations, routing, statistics, quantisation, scans, segments, sampling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.kit import sample


@tessera.jit
def rotate(
    q, cos, sin, T, HEADS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, BACK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64)
    q += at * HEADS * D
    d = tl.arange(0, D // 2)
    c = tl.load(cos + (at % T) * D // 2 + d)[None, :]
    s = tl.load(sin + (at % T) * D // 2 + d)[None, :]
    first = tl.arange(0, ROWS)[:, None] * D + d[None, :]
    real = (tl.arange(0, ROWS)[:, None] < HEADS) & (d[None, :] < D // 2)
    x = tl.load(q + first, mask=real, other=0).to(c.dtype)
    y = tl.load(q + first + D // 2, mask=real, other=0).to(c.dtype)
    if BACK:
        s = -s
    tl.store(q + first, x * c - y * s, mask=real)
    tl.store(q + first + D // 2, y * c + x * s, mask=real)


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_rotary_embedding(device, dtype):
    t, heads, d = 3, 3, 64
    x = sample(dtype, (2 * t, heads, d), seed=1)
    angles = np.random.default_rng(0).random((t, d // 2)) * 6
    q = device.array(x, dtype)
    args = [device.array(f(angles), "fp32") for f in (np.cos, np.sin)]
    rotate[(2 * t,)](q, *args, t, HEADS=heads, ROWS=4, D=d, BACK=False)  # pyright: ignore[reportCallIssue]
    turned = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * np.tile(angles, (2, 1)))[
        :, None
    ]
    want = np.concatenate([turned.real, turned.imag], -1)
    tolerance = {"fp16": 3e-3, "bf16": 3e-2, "fp32": 1e-5}[dtype]
    np.testing.assert_allclose(device.numpy(q), want, atol=tolerance)
    rotate[(2 * t,)](q, *args, t, HEADS=heads, ROWS=4, D=d, BACK=True)  # pyright: ignore[reportCallIssue]
    np.testing.assert_allclose(device.numpy(q), x, atol=2 * tolerance)


@tessera.jit
def route(x, weights, experts, E: tl.constexpr, TOP: tl.constexpr):
    row, e = tl.program_id(0), tl.arange(0, E)
    v = tl.softmax(tl.load(x + row * E + e).to(tl.float32))
    keyed = (v.to(tl.int32, bitcast=True).to(tl.int64) << 32) | e.to(tl.int64)
    best = tl.topk(keyed, TOP)
    chosen = (best >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    o = row * TOP + tl.arange(0, TOP)
    tl.store(weights + o, chosen / tl.sum(chosen))
    tl.store(experts + o, (best & 0xFFFFFFFF).to(tl.int32))


def test_routing(device):
    x = sample("fp32", (5, 64), seed=1)
    weights, experts = device.zeros((5, 8)), device.zeros((5, 8), "i32")
    route[(5,)](device.array(x), weights, experts, E=64, TOP=8)
    order = np.argsort(-x, axis=1)[:, :8]
    np.testing.assert_array_equal(device.numpy(experts), order)
    p = np.exp(np.take_along_axis(x, order, 1).astype(float))
    np.testing.assert_allclose(device.numpy(weights), p / p.sum(1, keepdims=True), rtol=2e-6)


@tessera.jit
def merge_moments(mean1, square1, n1, mean2, square2, n2):
    d, n = mean2 - mean1, n1 + n2
    share = tl.where(n == 0, 0.0, n2 / n)
    return mean1 + d * share, square1 + square2 + d * d * n1 * share, n


@tessera.jit
def normalise(x, out, N, BLOCK: tl.constexpr):
    row = tl.program_id(0) * N
    mean = tl.zeros([BLOCK], tl.float32)
    square = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + c, mask=c < N, other=0.0).to(tl.float32)
        m, s, n = merge_moments(
            mean, square, count, v, tl.zeros_like(v), tl.full(v.shape, 1.0, tl.float32)
        )
        mean, square, count = (
            tl.where(c < N, m, mean),
            tl.where(c < N, s, square),
            tl.where(c < N, n, count),
        )
    mu, total, n = tl.reduce((mean, square, count), 0, merge_moments)
    scale = tl.rsqrt(total / n + 1e-5)
    for start in range(0, N, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + c, mask=c < N, other=0.0, eviction_policy="evict_first")
        tl.store(out + row + c, (v - mu) * scale, mask=c < N)


@pytest.mark.parametrize("n", [17, 1000, 1024])
def test_moments_in_one_walk(device, n):
    x = sample("fp32", (5, n), seed=1) * 3 + 100
    out = device.zeros(x.shape)
    normalise[(5,)](device.array(x), out, n, BLOCK=256)
    wide = x.astype(float)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(device.numpy(out), want, atol=2e-4)


@tessera.jit
def quantise(x, q, scales, N, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """int8 with one scale for each group of columns, found by reshaping."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * N + at, mask=at < N, other=0.0).to(tl.float32)
    v = tl.reshape(v, (BLOCK // GROUP, GROUP))
    scale = tl.maximum(tl.max(tl.abs(v), axis=1), 1e-10) / 127.0
    y = tl.extra.libdevice.rint(v / scale[:, None])
    y = tl.reshape(tl.clamp(y, -127.0, 127.0), (BLOCK,))
    tl.store(q + row * N + at, y.to(tl.int8), mask=at < N)
    g = tl.arange(0, BLOCK // GROUP)
    tl.store(scales + row * (BLOCK // GROUP) + g, scale)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_quantisation_by_groups(device, dtype):
    n, block, group = 224, 256, 32
    x = sample(dtype, (4, n), seed=2)
    q, scales = device.zeros((4, n), "i8"), device.zeros((4, block // group))
    quantise[(4,)](device.array(x, dtype), q, scales, n, BLOCK=block, GROUP=group)
    grouped = np.pad(x.astype(np.float32), ((0, 0), (0, block - n))).reshape(4, -1, group)
    want = np.maximum(np.abs(grouped).max(2), 1e-10) / 127
    np.testing.assert_allclose(device.numpy(scales), want, rtol=1e-6)
    back = device.numpy(q).astype(float) * np.repeat(device.numpy(scales), group, 1)[:, :n]
    assert np.abs(back - x).max() <= 0.51 * want.max()


@tessera.jit
def first_order(f1, x1, f2, x2):
    return f2 * f1, f2 * x1 + x2


@tessera.jit
def recurrence(x, gate, out, N, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    row, t = tl.program_id(0) * N, tl.arange(0, BLOCK)
    f = tl.load(gate + row + t, mask=t < N, other=1.0)
    v = tl.load(x + row + t, mask=t < N, other=0.0)
    _, h = tl.associative_scan((f, v), 0, first_order, reverse=REVERSE)
    tl.store(out + row + t, h, mask=t < N)


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrence(device, reverse):
    n = 100
    x, f = sample("fp32", (4, n), seed=1), np.random.default_rng(0).random((4, n), np.float32)
    out = device.zeros(x.shape)
    recurrence[(4,)](device.array(x), device.array(f), out, n, BLOCK=128, REVERSE=reverse)
    want, h = np.zeros(x.shape), np.zeros(4)
    for t in reversed(range(n)) if reverse else range(n):
        h = f[:, t] * h + x[:, t]
        want[:, t] = h
    np.testing.assert_allclose(device.numpy(out), want, atol=1e-5)


@tessera.jit
def embedding_gradient(gradient, tokens, table, count, D: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, D)
    token = tl.load(tokens + at, mask=at < count, other=-1)
    g = tl.load(gradient + at[:, None] * D + d[None, :], mask=(at < count)[:, None], other=0.0)
    where = table + token[:, None].to(tl.int64) * D + d[None, :]
    tl.atomic_add(where, g, mask=(token >= 0)[:, None], sem="relaxed")


def test_embedding_gradient(device):
    count, d, vocabulary = 50, 32, 7
    g = sample("fp32", (count, d), seed=1)
    tokens = np.random.default_rng(0).integers(-1, vocabulary, count)
    table = device.zeros((vocabulary, d))
    embedding_gradient[(4,)](
        device.array(g), device.array(tokens, "i32"), table, count, D=d, BLOCK=16
    )
    want = np.zeros((vocabulary, d))
    np.add.at(want, tokens[tokens >= 0], g[tokens >= 0])
    np.testing.assert_allclose(device.numpy(table), want, atol=1e-5)


@tessera.jit
def segment_sums(x, offsets, out, D: tl.constexpr, BLOCK: tl.constexpr):
    segment = tl.program_id(0)
    start, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    d = tl.arange(0, D)
    acc = tl.zeros((D,), tl.float32)
    while start < end:
        rows = start + tl.arange(0, BLOCK)
        acc += tl.sum(
            tl.load(x + rows[:, None] * D + d[None, :], (rows < end)[:, None], 0.0), axis=0
        )
        start += BLOCK
    tl.store(out + segment * D + d, acc)


def test_segments_of_any_length(device):
    lengths = [0, 3, 16, 41, 1]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    x = sample("fp32", (int(offsets[-1]), 16), seed=1)
    out = device.zeros((len(lengths), 16))
    segment_sums[(len(lengths),)](
        device.array(x), device.array(offsets, "i32"), out, D=16, BLOCK=16
    )
    want = [x[a:b].sum(0) for a, b in itertools.pairwise(offsets)]
    np.testing.assert_allclose(device.numpy(out), want, atol=1e-5)


@tessera.jit
def pick(probabilities, draws, out, P, V: tl.constexpr):
    """Nucleus sampling: the fewest most likely words that hold a share P; of them the one that the draw falls on."""
    row, v = tl.program_id(0), tl.arange(0, V)
    p = tl.load(probabilities + row * V + v)
    keyed = (p.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | v.to(tl.uint64)
    ordered = tl.sort(keyed, descending=True)
    q = (ordered >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
    before = tl.cumsum(q, axis=0) - q
    q = tl.where(before < P, q, 0.0)
    target = tl.load(draws + row) * tl.sum(q)
    place = tl.sum((tl.cumsum(q, axis=0) <= target).to(tl.int32))
    word = tl.gather((ordered & 0xFFFFFFFF).to(tl.int32), tl.full((1,), place, tl.int32), 0)
    tl.store(out + row + tl.arange(0, 1), word)


def test_nucleus_sampling(device):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(128, 0.3), 20).astype(np.float32)
    draws = rng.random(20, np.float32) * np.float32(0.999)
    out = device.zeros(20, "i32")
    pick[(20,)](device.array(p), device.array(draws), out, 0.8, V=128)
    for row, word in enumerate(device.numpy(out)):
        order = np.argsort(-p[row], kind="stable")
        q = p[row][order].astype(float)
        q = q * (np.cumsum(q) - q < 0.8)
        edges = np.cumsum(q) / q.sum()
        place = int(np.flatnonzero(order == word)[0])
        low = edges[place - 1] if place else 0.0
        assert low - 1e-5 <= draws[row] <= edges[place] + 1e-5
