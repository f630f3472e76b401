"""Kernels that only benchmarks use; as in the examples, `tessera` may be Triton (see sources.load)."""

from __future__ import annotations

import tessera
import tessera.language as tl


@tessera.jit
def five(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@tessera.jit
def twenty(
    a, b, c, d, e, f, g, h, s0, s1, s2, s3, s4, s5, s6, s7, s8, scale, n, BLOCK: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8
    tl.store(h + i, tl.load(a + i, i < n) * scale + total, i < n)


@tessera.jit
def single_dropout(x, out, p, seed, BLOCK: tl.constexpr):
    """A counter of the generator for each number."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, i) > p
    tl.store(out + i, tl.where(keep, tl.load(x + i) / (1 - p), 0.0))


@tessera.jit
def persistent_matmul(
    a,
    b,
    c,
    M,
    N,
    K,
    programs,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """c = a @ b for a tensor descriptor of each; each program computes tiles program_id, + programs, …"""
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * tiles_n
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs):
        first = (tile // in_group) * GROUP
        height = min(tiles_m - first, GROUP)
        at_m = (first + (tile % in_group) % height) * BM
        at_n = ((tile % in_group) // height) * BN
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            total = tl.dot(a.load([at_m, k * BK]), b.load([k * BK, at_n]), total)
        c.store([at_m, at_n], total.to(tl.float16))


@tessera.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n), i < n)


@tessera.jit
def gelu_bias(x, bias, out, cols, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """One program a row: gelu(x + bias), by erf or by its approximation with tanh."""
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0) * cols + i
    v = tl.load(x + at, i < cols).to(tl.float32) + tl.load(bias + i, i < cols).to(tl.float32)
    if TANH:
        inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
        v = v / (1 + tl.exp(-2 * inner))
    else:
        v = 0.5 * v * (1 + tl.erf(v * 0.7071067811865476))
    tl.store(out + at, v.to(out.dtype.element_ty), i < cols)


@tessera.jit
def gemv(a, x, out, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, N, BN):
        i = start + tl.arange(0, BN)
        inside = (rows[:, None] < M) & (i[None, :] < N)
        tile = tl.load(a + rows[:, None] * stride + i[None, :], inside, other=0.0)
        part = tl.load(x + i, i < N, other=0.0).to(tl.float32)
        acc += tile.to(tl.float32) * part[None, :]
    tl.store(out + rows, tl.sum(acc, axis=1).to(out.dtype.element_ty), rows < M)


@tessera.jit
def int_matmul(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    """c = a @ b for row-major int8 matrices and an int32 result."""
    per_group = GROUP * tl.cdiv(N, BN)
    first = tl.program_id(0) // per_group * GROUP
    height = tl.minimum(tl.cdiv(M, BM) - first, GROUP)
    within = tl.program_id(0) % per_group
    rows = (first + within % height) * BM + tl.arange(0, BM)
    cols = within // height * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.int32)
    for k in range(0, K, BK):
        left = (rows % M)[:, None] * K + (k + ks)[None, :]
        right = (k + ks)[:, None] * N + (cols % N)[None, :]
        acc = tl.dot(tl.load(a + left), tl.load(b + right), acc)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c + rows[:, None] * N + cols[None, :], acc, inside)
