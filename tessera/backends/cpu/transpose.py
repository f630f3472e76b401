"""Reads tiles whose memory order is not their own: blocks of vectors are transposed in registers instead of gathered.

A block of n x n is read as n vectors along the dimension in which memory is contiguous. log2(n) rounds of two-operand
shuffles exchange the off-diagonal sub-blocks of ever smaller blocks; then the vectors run along the last dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.loops import Nest, each
from tessera.backends.cpu.lowering import Buffer, Lowering
from tessera.backends.cpu.memory import to_buffer
from tessera.backends.cpu.values import Coord, Point, Val
from tessera.ir import Value, shape_of
from tessera.ir.applications import apply

Convert = Callable[[Val], Val]
T = TypeVar("T")


def gathers(lo: Lowering, v: Value, dim: int, lanes: int) -> int:
    """Return how many loads of single elements a vector of `v` along `dim` takes."""
    before = lo.gathers
    lo.probe(v, dim, 0, lanes)
    return lo.gathers - before


def transposed_dimension(lo: Lowering, v: Value) -> int | None:
    """Return the dimension along which `v` is read without gathers; None if it is the last one, or there is none."""
    shape, lanes = shape_of(v.type), lo.facts.lanes
    if len(shape) < 2 or shape[-1] % lanes or not gathers(lo, v, len(shape) - 1, lanes):
        return None
    for d in reversed(range(len(shape) - 1)):
        if shape[d] % lanes == 0 and not gathers(lo, v, d, lanes):
            return d if apply("transposed-tiles", what=v.name) else None
    return None


def transpose(lo: Lowering, e: str, rows: list[str]) -> list[str]:
    """Return the columns of a matrix whose rows are n vectors of n lanes."""
    n = len(rows)
    step = 1
    while step < n:
        upper = [k if not k & step else n + k - step for k in range(n)]
        lower = [k + step if not k & step else n + k for k in range(n)]
        for i in range(n):
            if not i & step:
                a, b = rows[i], rows[i + step]
                rows[i] = lo.em.shuffle(e, a, b, n, upper)
                rows[i + step] = lo.em.shuffle(e, a, b, n, lower)
        step *= 2
    return rows


def fold_vectors(
    rows: list[T], lanes: int, shuffle: Callable[[T, T, list[int]], T], combine: Callable[[T, T], T]
) -> T:
    """Combine the lanes of each of `lanes` vectors, into one: lane r is the result of row r.

    A step folds two rows in one vector, the lower halves of both against the upper ones:

        a0 a1 a2 a3, b0 b1 b2 b3  →  a0 a1 b0 b1 · a2 a3 b2 b3
    """
    size = lanes
    while size > 1:
        half = size // 2
        low = [
            q + i + source
            for q in range(0, lanes, size)
            for source in (0, lanes)
            for i in range(half)
        ]
        high, middle = [i + half for i in low], len(rows) // 2
        rows = [
            combine(shuffle(a, b, low), shuffle(a, b, high))
            for a, b in zip(rows[:middle], rows[middle:], strict=True)
        ]
        size = half
    return rows[0]


def transposed_fill(lo: Lowering, buffer: Buffer, v: Value, dim: int, convert: Convert) -> None:
    """Write `v` into `buffer`: read it along `dim` and transpose blocks in registers."""
    shape, n = buffer.shape, lo.facts.lanes
    last = len(shape) - 1
    blocks = tuple(s // n if d in (dim, last) else s for d, s in enumerate(shape))
    e = scalar_type(buffer.elem)

    def body(at: Point) -> None:
        first = [c.times(n) if d in (dim, last) else c for d, c in enumerate(at.coords)]
        rows: list[str] = []
        for j in range(n):
            where = list(first)
            c = first[dim]
            where[dim] = Coord(c.base, c.terms, tuple(range(n)), shape[dim])
            where[last] = first[last].shifted(j)
            rows.append(lo.text(convert(lo.value(v, Point(tuple(where), n))), n))
        for i, text in enumerate(transpose(lo, e, rows)):
            where = list(first)
            where[dim] = first[dim].shifted(i)
            c = first[last]
            where[last] = Coord(c.base, c.terms, tuple(range(n)), shape[last])
            to_buffer(lo, buffer, Point(tuple(where), n), Val(buffer.elem, n, text))

    each(lo, Nest(blocks, tuple(range(len(blocks))), (), 1), body, unroll=False)
