"""Decides how a GPU walks through long rows that a nest needs more than once, as a softmax and a norm do.

    up to 16 elements a thread      the row stays in registers: it is read once
    longer, much of it in bytes     32 warps of one program walk, so that rows which are read again are still in L2

A row of 50257 fp32, with what is written, takes 400 kB. With four programs on each of 132 SMs these are 212 MB, of
which the L2 of an H200 holds a quarter: each walk then reads memory. Of one program an SM all walks but one read L2.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.graph.emit.accesses import INNER, Access, inner_ops
from tessera.graph.index import Dim, dim
from tessera.graph.ir.ops import LoopOp, ReduceOp
from tessera.ir import Block, Op, Value

MOST_WARPS = 32  # of a program
ELEMENTS = 16384  # of a row that so many warps have
AGAIN = 2  # how much longer rows are kept that are needed again; twice as long ones spill in half of the kernels tried
WIDE = 128 << 10  # bytes of a row of which four programs on each SM would not fit in L2


def walks_again(op: Op) -> bool:
    """Whether an inner loop of a nest needs what another one has reduced its row to."""
    block: Block = op.regions[0]
    inner, reduced = set(inner_ops(block)), set[Value]()
    for x in block:
        needs = any(v in reduced for y in x.walk() for v in y.operands)
        if x in inner and needs:
            return True
        if needs or isinstance(x, ReduceOp):
            reduced.update(x.results)
    return False


def kept_whole(op: Op, accesses: Sequence[Access], longest: int, row: int) -> int:
    """The most elements of a row that a program keeps, at least `row`."""
    if longest <= row or not isinstance(op, LoopOp) or not walks_again(op):
        return row
    loads = sum(not a.store for a in _of_rows(accesses))
    return max(row, AGAIN * row // max(1, loads))


def is_wide(accesses: Sequence[Access], longest: int) -> bool:
    """Whether rows of many programs are too much for L2."""
    return longest * sum(a.width for a in _of_rows(accesses)) >= WIDE


def _of_rows(accesses: Sequence[Access]) -> list[Access]:
    """What each program reads and writes of its own row, each place once."""
    found: dict[object, Access] = {}
    for a in accesses:
        inner = [d for d in a.offset.dims if d >= INNER]
        if a.width and len(inner) < len(a.offset.dims) and inner:
            names = {d: INNER + k for k, d in enumerate(sorted(inner))}
            found[a.of, a.offset.subs({Dim(d): dim(n) for d, n in names.items()})] = a
    return list(found.values())
