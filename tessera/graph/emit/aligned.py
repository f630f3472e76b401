"""Decides where walks through long rows begin, so that they read and write vectors though rows' lengths are odd.

    rows of 50257 fp32         row 1 begins 4 bytes before a multiple of 16
    edges                      elements 0 to 2, and the 2 behind the last whole vector: one small tile
    steps                      from element 3 on, as many as whole vectors hold

A GPU reads 16 bytes by one instruction only from a multiple of 16. Without this a thread reads and writes elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.graph.emit.accesses import INNER, Access, Accesses, inner_ops
from tessera.graph.emit.tiling import Size, Tiling, inner_spaces
from tessera.graph.index import Dim, Expr, dim
from tessera.graph.ir.ops import LoopOp, ReduceOp
from tessera.ir import Block, Op
from tessera.ir.applications import apply
from tessera.ops import arith

VECTOR = 16  # bytes
MOST_STEPS = 256  # of a walk, all added up one after the other
COMMUTATIVE = (arith.AddOp, arith.MulOp, arith.MaxOp, arith.MinOp)


def aligned(tiling: Tiling, op: Op, extents: Sequence[Size]) -> Tiling:
    """The tiling with the start of rows, where steps through them had better begin at multiples of vectors."""
    if tiling.inner is None or tiling.whole or tiling.inner != tiling.rank - 1:
        return tiling
    spaces = inner_spaces(op, op.regions[0])
    if len(spaces) != 1 or len(spaces[0]) != 1 or any(a.block != 1 for a in tiling.axes):
        return tiling
    (n,) = spaces[0]
    if not isinstance(n, int) or n > MOST_STEPS * tiling.step or not _in_any_order(op):
        return tiling
    found = _starts(Accesses(op, extents).found)
    if not found:
        return tiling
    start = max(found, key=lambda e: sum(_bytes(a) for a in found[e]))
    mine = found.pop(start)
    unit = VECTOR // min(a.width for a in mine)
    if n < unit:  # no vector may begin in a row
        return tiling
    odd = any(c % unit for _, c in start.terms)
    rest = sum(_bytes(a) for others in found.values() for a in others)
    if unit == 1 or not odd or rest > sum(map(_bytes, mine)) or not apply("graph-align-rows", op):
        return tiling
    return replace(tiling, start=start, unit=unit)


def _bytes(a: Access) -> int:
    return a.width * (1 + a.store)


def _in_any_order(op: Op) -> bool:
    """Whether the op's inner loops may take their elements in any order: no scans or sorts, no joined results."""
    if not isinstance(op, LoopOp) or any(map(op.is_joined, range(len(op.results)))):
        return False
    inner = list(inner_ops(op.body))
    return all(isinstance(x, LoopOp) or _commutes(x) for x in inner)


def _commutes(op: Op) -> bool:
    if not isinstance(op, ReduceOp):
        return False
    combine: Block = op.combine
    ops = [x for x in combine if not x.terminator]
    return len(ops) == len(op.results) and all(
        isinstance(x, COMMUTATIVE) and set(x.operands) <= set(combine.args) for x in ops
    )


def _starts(accesses: Sequence[Access]) -> dict[Expr, list[Access]]:
    """The accesses that walk through memory along an inner index, by where a row of theirs starts: an expression of
    the nest's own indices."""
    found: dict[Expr, list[Access]] = {}
    for a in accesses:
        inner = [d for d in a.offset.dims if d >= INNER]
        if len(inner) != 1 or not a.width or a.offset.coefficient(Dim(inner[0])) != 1:
            continue
        start = a.offset - dim(inner[0])
        if not start.syms and not start.has_compound:
            found.setdefault(start, []).append(a)
    return found
