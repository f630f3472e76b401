"""Kernels as a first-time author writes them: one program a row, a tile of the next power of two, masks everywhere."""

from __future__ import annotations

import tessera
import tessera.language as tl
from tessera.language.extra import libdevice


@tessera.jit
def softmax(x, out, n, B: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, B)
    inside = at < n
    v = tl.load(x + row + at, mask=inside, other=-float("inf"))
    powers = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row + at, powers / tl.sum(powers, axis=0), mask=inside)


@tessera.jit
def layer_norm(x, w, b, out, n, eps, B: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, B)
    inside = at < n
    v = tl.load(x + row + at, mask=inside, other=0.0)
    centred = tl.where(inside, v - tl.sum(v, axis=0) / n, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / n + eps)
    y = centred * scale * tl.load(w + at, mask=inside) + tl.load(b + at, mask=inside)
    tl.store(out + row + at, y, mask=inside)


@tessera.jit
def cross_entropy(x, targets, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    largest = tl.max(v, axis=0)
    total = largest + tl.log(tl.sum(tl.exp(v - largest), axis=0))
    tl.store(out + row, total - tl.load(x + row * n + tl.load(targets + row)))


@tessera.jit
def row_sum(x, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    tl.store(out + row, tl.sum(tl.load(x + row * n + at, mask=at < n, other=0.0), axis=0))


@tessera.jit
def row_argmax(x, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    tl.store(out + row, tl.argmax(v, axis=0))


@tessera.jit
def cumulative_sum(x, out, n, B: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, B)
    inside = at < n
    v = tl.load(x + row + at, mask=inside, other=0.0)
    tl.store(out + row + at, tl.cumsum(v, axis=0), mask=inside)


@tessera.jit
def column_sum(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros([BN], tl.float32)
    for first in range(0, M, BM):
        rows = first + tl.arange(0, BM)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        part = tl.load(x + rows[:, None] * N + columns[None, :], mask=inside, other=0.0)
        total += tl.sum(part, axis=0)
    tl.store(out + columns, total, mask=columns < N)


@tessera.jit
def transpose(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tile = tl.load(x + rows[:, None] * N + columns[None, :], mask=inside)
    turned = (columns < N)[:, None] & (rows < M)[None, :]
    tl.store(out + columns[:, None] * M + rows[None, :], tl.trans(tile), mask=turned)


@tessera.jit
def pointwise(x, out, n, FUNCTION: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, mask=at < n)
    if FUNCTION == "sigmoid":
        v = tl.sigmoid(v)
    elif FUNCTION == "tanh":
        v = libdevice.tanh(v)
    elif FUNCTION == "gelu":
        v = 0.5 * v * (1 + tl.erf(v * 0.7071067811865476))
    elif FUNCTION == "exp":
        v = tl.exp(v)
    elif FUNCTION == "log":
        v = tl.log(v)
    elif FUNCTION == "sin":
        v = tl.sin(v)
    elif FUNCTION == "rsqrt":
        v = tl.rsqrt(v)
    elif FUNCTION == "relu":
        v = tl.maximum(v, 0.0)
    elif FUNCTION == "log1p":
        v = libdevice.log1p(v)
    elif FUNCTION == "expm1":
        v = libdevice.expm1(v)
    tl.store(out + at, v, mask=at < n)


@tessera.jit
def sort_rows(x, out, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@tessera.jit
def largest_of_rows(x, out, n: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    found = tl.topk(tl.load(x + row * n + tl.arange(0, n)), K)
    tl.store(out + row * K + tl.arange(0, K), found)


@tessera.jit
def histogram(x, out, B: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out + tl.arange(0, BINS), tl.histogram(tl.load(x + at), BINS))


@tessera.jit
def gather_rows(x, places, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + tl.load(places + row) * n + at, mask=at < n)
    tl.store(out + row * n + at, v, mask=at < n)


@tessera.jit
def scatter_rows(x, places, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + at, mask=at < n)
    tl.atomic_add(out + tl.load(places + row) * n + at, v, mask=at < n)


@tessera.jit
def convolve(x, w, out, n, K: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.zeros([B], tl.float32)
    for k in tl.static_range(K):
        total += tl.load(w + k) * tl.load(x + at + k, mask=at + k < n, other=0.0)
    tl.store(out + at, total, mask=at < n - K + 1)


@tessera.jit
def max_pool(x, out, H, W, B: tl.constexpr):
    plane, row, at = tl.program_id(0), tl.program_id(1), tl.arange(0, B)
    inside = at < W // 2
    v = tl.full([B], -float("inf"), tl.float32)
    for i in tl.static_range(2):
        for j in tl.static_range(2):
            place = plane * H * W + (2 * row + i) * W + 2 * at + j
            v = tl.maximum(v, tl.load(x + place, mask=inside, other=-float("inf")))
    tl.store(out + (plane * (H // 2) + row) * (W // 2) + at, v, mask=inside)


@tessera.jit
def scatter(x, places, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, mask=at < n)
    tl.atomic_add(out + tl.load(places + at, mask=at < n), v, mask=at < n)


@tessera.jit
def largest(a, b):
    return tl.maximum(a, b)


@tessera.jit
def cumulative_maximum(x, out, n, B: tl.constexpr):
    row, at = tl.program_id(0) * n, tl.arange(0, B)
    inside = at < n
    v = tl.load(x + row + at, mask=inside, other=-float("inf"))
    tl.store(out + row + at, tl.associative_scan(v, 0, largest), mask=inside)


@tessera.jit
def average_pool(x, out, H, W, B: tl.constexpr):
    """Windows of 3x3, one element apart, without padding."""
    plane, row, at = tl.program_id(0), tl.program_id(1), tl.arange(0, B)
    inside = at < W - 2
    total = tl.zeros([B], tl.float32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            place = plane * H * W + (row + i) * W + at + j
            total += tl.load(x + place, mask=inside, other=0.0)
    tl.store(out + (plane * (H - 2) + row) * (W - 2) + at, total / 9, mask=inside)


@tessera.jit
def convolve_planes(
    x, w, out, C: tl.constexpr, H, W, M: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    """A 3x3 convolution of C channels to M, without padding: one row of an image and all of its results a program."""
    image, row = tl.program_id(0), tl.program_id(1)
    to, at, channels = tl.arange(0, M), tl.arange(0, B), tl.arange(0, C)
    inside = at < W - 2
    total = tl.zeros([M, B], tl.float32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            weights = tl.load(w + (to[:, None] * C + channels[None, :]) * 9 + i * 3 + j)
            place = ((image * C + channels[:, None]) * H + row + i) * W + at[None, :] + j
            total = tl.dot(weights, tl.load(x + place, mask=inside[None, :], other=0.0), total)
    place = ((image * M + to[:, None]) * (H - 2) + row) * (W - 2) + at[None, :]
    tl.store(out + place, total, mask=inside[None, :])
