"""Matrix products for benchmarks: operands in any order, of any type; as in the examples, `tessera` may be Triton."""

from __future__ import annotations

from typing import Any

import sources  # noqa: F401  (finds tessera)

import tessera
import tessera.language as tl
from tessera.tools.tensor_descriptor import TensorDescriptor


@tessera.jit
def tile_at(number, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile: bands of GROUP rows, each walked column by column."""
    first = number // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    within = number % (GROUP * tiles_n)
    return first + within % height, within // height


@tessera.jit
def by_pointers(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    EVEN: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    i, j = tile_at(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rows, cols = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    x_ptrs = a + (rows % M)[:, None] * sam + ks[None, :] * sak
    y_ptrs = b + ks[:, None] * sbk + (cols % N)[None, :] * sbn
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        if EVEN:
            x = tl.load(x_ptrs)
            y = tl.load(y_ptrs)
        else:
            x = tl.load(x_ptrs, mask=ks[None, :] < K - k, other=0)
            y = tl.load(y_ptrs, mask=ks[:, None] < K - k, other=0)
        acc = tl.dot(x, y, acc, out_dtype=ACC)
        x_ptrs += BK * sak
        y_ptrs += BK * sbk
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c + rows[:, None] * scm + cols[None, :], acc.to(c.dtype.element_ty), mask=inside)


@tessera.jit
def by_descriptors(
    a, b, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACC: tl.constexpr,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for number in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        i, j = tile_at(number, tiles_m, tiles_n, GROUP)
        row, col = i * BM, j * BN
        acc = tl.zeros((BM, BN), ACC)
        for k in range(0, K, BK):
            if A_TURNED:
                x = a.load([k, row]).T
            else:
                x = a.load([row, k])
            if B_TURNED:
                y = b.load([col, k]).T
            else:
                y = b.load([k, col])
            acc = tl.dot(x, y, acc, out_dtype=ACC)
        c.store([row, col], acc.to(c.dtype))


TYPES = {"torch.int8": tl.int32}
GROUP = 8


def pointer_call(a: Any, b: Any, c: Any, tile: tuple[int, ...]) -> Any:
    """A call of c = a @ b; `tile`: rows, columns, depth, warps, stages."""
    (m, k), n = a.shape, b.shape[1]
    bm, bn, bk, warps, stages = tile
    grid = (-(-m // bm) * -(-n // bn),)
    acc = TYPES.get(str(a.dtype), tl.float32)
    return lambda: by_pointers[grid](
        a, b, c, m, n, k, *a.stride(), *b.stride(), c.stride(0),
        bm, bn, bk, GROUP, k % bk == 0, acc, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def descriptor_call(a: Any, b: Any, c: Any, tile: tuple[int, ...], programs: int) -> Any:
    """The same by programs that stay."""
    (m, k), n = a.shape, b.shape[1]
    bm, bn, bk, warps, stages = tile
    a_turned, b_turned = a.stride(0) == 1, b.stride(0) == 1
    blocks = ([bk, bm] if a_turned else [bm, bk], [bn, bk] if b_turned else [bk, bn], [bm, bn])
    stored = (a.T if a_turned else a, b.T if b_turned else b, c)
    maps = [TensorDescriptor.from_tensor(x, block) for x, block in zip(stored, blocks)]
    grid = (min(programs, -(-m // bm) * -(-n // bn)),)
    acc = TYPES.get(str(a.dtype), tl.float32)
    return lambda: by_descriptors[grid](
        *maps, m, n, k, bm, bn, bk, GROUP, acc, a_turned, b_turned,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
