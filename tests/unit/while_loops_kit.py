"""Kernels whose loops are inside of while loops."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import tessera
import tessera.language as tl


@tessera.jit
def strips(
    a, b, c, M, N, K, count, most, MASK: tl.constexpr, DOWN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tiles of rows from the program's own on; each adds another number of steps, often none, up to `most` in all."""
    tile, done = tl.program_id(0), 0
    ks = tl.arange(0, BK)
    while (tile < count) & (done < most):
        rows, cols = tile * BM + tl.arange(0, BM), tl.arange(0, BN)
        steps = tl.minimum(tile * 5 % 4, tl.cdiv(K, BK))
        acc = tl.zeros((BM, BN), tl.float32)
        if DOWN:
            for k in range(steps - 1, -1, -1):
                x = tl.load(a + rows[:, None] * K + (k * BK + ks)[None, :], (rows < M)[:, None])
                y = tl.load(b + (k * BK + ks)[:, None] * N + cols[None, :])
                acc = tl.dot(x, y, acc)
        else:
            for k in range(0, steps):
                at = k * BK + ks
                x = a + rows[:, None] * K + at[None, :]
                y = b + at[:, None] * N + cols[None, :]
                if MASK:
                    x = tl.load(x, (rows < M)[:, None] & (at < K)[None, :], other=0.0)
                    y = tl.load(y, (at < K)[:, None] & (cols < N)[None, :], other=0.0)
                else:
                    x, y = tl.load(x, (rows < M)[:, None]), tl.load(y)
                acc = tl.dot(x, y, acc)
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        tl.store(c + rows[:, None] * N + cols[None, :], acc.to(tl.float16), mask)
        done += steps
        tile += tl.num_programs(0)


@tessera.jit
def counting(
    a,
    b,
    c,
    M,
    N,
    K,
    flags,
    WAIT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A product whose `while` loop only counts; with WAIT each step is there when its flag says so."""
    rows, cols = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    ks = tl.arange(0, BK)
    x, y = a + rows[:, None] * K + ks[None, :], b + ks[:, None] * N + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    k = 0
    while k < K:
        if WAIT:
            while tl.atomic_add(flags + k // BK, 0) == 0:
                pass
        p = tl.load(x, (rows < M)[:, None] & (k + ks < K)[None, :], other=0.0)
        q = tl.load(y, (k + ks < K)[:, None], other=0.0)
        acc = tl.dot(p, q, acc)
        x, y = x + BK, y + BK * N
        k += BK
    tl.store(c + rows[:, None] * N + cols[None, :], acc.to(tl.float16), (rows < M)[:, None])


@tessera.jit
def layers(x, w, y, K, rows_w, count, HOW: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):
    """`count` layers, each of which reads from `x` what the one before wrote to `y`, if both are the same array."""
    rows, cols, ks = tl.arange(0, B), tl.arange(0, B), tl.arange(0, BK)
    if HOW == "descriptors":
        tile = tl.make_tensor_descriptor(x, [B, K], [K, 1], [B, BK])
        weights = tl.make_tensor_descriptor(w, [rows_w, B], [B, 1], [BK, B])
    for layer in range(count):
        acc = tl.zeros((B, B), tl.float32)
        for k in range(0, K, BK):
            if HOW == "descriptors":
                acc = tl.dot(tile.load([0, k]), weights.load([layer * K + k, 0]), acc)
            else:
                p = tl.load(x + rows[:, None] * K + (k + ks)[None, :])
                q = tl.load(w + (layer * K + k + ks)[:, None] * B + cols[None, :])
                acc = tl.dot(p, q, acc)
        tl.debug_barrier()
        tl.store(y + rows[:, None] * K + cols[None, :], (acc * 0.125).to(tl.float16))
        tl.debug_barrier()


@tessera.jit
def own_layers(x, w, K, rows_w, count, WHERE: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):
    """The same with descriptors of one array that is read and written."""
    cols = tl.arange(0, B)
    tile = tl.make_tensor_descriptor(x, [B, K], [K, 1], [B, BK])
    weights = tl.make_tensor_descriptor(w, [rows_w, B], [B, 1], [BK, B])
    layer = 0
    while layer < count:
        acc = tl.zeros((B, B), tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(tile.load([0, k]), weights.load([layer * K + k, 0]), acc)
            if WHERE == "inside":
                tl.store(x + cols, acc.to(tl.float16).sum(0))
        tl.debug_barrier()
        tl.store(x + cols[:, None] * K + cols[None, :], (acc * 0.125).to(tl.float16))
        tl.debug_barrier()
        layer += 1


@tessera.jit
def some_layers(x, w, y, K, rows_w, count, HOW: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):
    """Some layers write to what is read, others elsewhere: by a branch, by a loop that may not run,
    by one of which that is not known in advance, by data."""
    cols = tl.arange(0, B)
    tile = tl.make_tensor_descriptor(x, [B, K], [K, 1], [B, BK])
    weights = tl.make_tensor_descriptor(w, [rows_w, B], [B, 1], [BK, B])
    at = cols[:, None] * K + cols[None, :]
    for layer in range(count):
        acc = tl.zeros((B, B), tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(tile.load([0, k]), weights.load([layer * K + k, 0]), acc)
        out = (acc * 0.125).to(tl.float16)
        tl.debug_barrier()
        if HOW == "branch":
            if layer % 3 > 0:
                tl.store(x + at, out)
            else:
                tl.store(y + at, out)
        elif HOW == "loop":
            left = layer % 3
            while left > 0:
                tl.store(x + at, out)
                left = left // 2
        elif HOW == "counted":
            for _ in range(layer % 3):
                tl.store(x + at, out)
        elif HOW == "unknown":
            if layer % 3 > 0:
                left = layer
                while left > 2:
                    left = left // 2
                while left > 0:
                    tl.store(x + at, out)
                    left = left // 2
        else:
            if tl.load(y + layer) > 0.5:
                tl.store(x + at, out)
        tl.debug_barrier()
