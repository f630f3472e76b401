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
