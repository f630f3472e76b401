"""Tells what chains of lazy ops cost, and which later ops need their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from types import MappingProxyType

from tessera.backends.cpu.exchange_partners import takes_partners
from tessera.backends.cpu.lowering import EVALUATORS, Lowering
from tessera.dtypes import dtype
from tessera.ir import Op, TileType, Value, elem_of
from tessera.ops import ReduceOp, ScanOp, arith, tile

INDEX_DEPTH = 12  # operations of index arithmetic that are inspected

_INDEX_OPS = (arith.AddOp, arith.SubOp, arith.MulOp, arith.CmpOp, arith.AndOp, arith.OrOp, arith.AddPtrOp,
              arith.CastOp, arith.HintOp, arith.ShlOp, arith.ShrOp, arith.SelectOp, arith.BitcastOp)  # fmt: skip
SHAPE_OPS = (arith.ConstOp, tile.ArangeOp, tile.JoinOp, tile.Rearrangement)
_EXPENSIVE = (arith.FloatUnary, arith.PowOp, arith.Atan2Op)
_CHEAP_MATH = ("floor", "ceil", "trunc", "rint")


def op_cost(op: Op) -> float:
    """Return a rough number of vector instructions of one element-wise step."""
    if isinstance(op, SHAPE_OPS):
        return 0.0
    t = elem_of(op.results[0].type)
    if isinstance(op, _EXPENSIVE):
        return 1.0 if op.opcode in _CHEAP_MATH else 10.0
    is_float = isinstance(t, dtype) and t.is_floating()
    if isinstance(op, _INDEX_OPS) and not is_float:
        first = elem_of(op.operands[0].type)
        return 1.0 if isinstance(first, dtype) and first.is_floating() else 0.05
    if isinstance(op, (arith.DivOp, arith.RemOp)):
        return 3.0 if is_float else 0.3
    if isinstance(op, tile.GatherOp):
        return 1.0 if takes_partners(op) else 6.0
    return 1.0


def cost(lo: Lowering, v: Value, enough: float = inf) -> float:
    """Return the cost of computing an element of `v` from buffers; each op counts once. The count stops at `enough`."""
    return _sum(lo, v, enough, op_cost)


def instructions(lo: Lowering, v: Value, enough: float = inf) -> float:
    """Return `cost` with arithmetic on integers that were loaded, which no address absorbs, at its full price."""
    return _sum(lo, v, enough, lambda op: op_cost(op) if _is_free(op) else max(op_cost(op), 1.0))


def _is_free(op: Op) -> bool:
    """Whether an op moves elements, or computes what may become part of an address."""
    return isinstance(op, SHAPE_OPS) or integers_only(op.results[0], INDEX_DEPTH)


def _sum(lo: Lowering, v: Value, enough: float, price: Callable[[Op], float]) -> float:
    seen: set[Value] = set()
    waiting, total = [v], 0.0
    while waiting and total < enough:
        x = waiting.pop()
        if x not in seen and lo.lazy(x):
            seen.add(x)
            assert x.op is not None
            total += price(x.op)
            waiting += x.op.operands
    return total


def needed_after(
    lo: Lowering, v: Value, position: int, known: Mapping[Value, bool] = MappingProxyType({})
) -> bool:
    """Whether an op that uses `v`, directly or through lazy ops, is executed after `position`. A lazy op after that
    position has a user that is executed later, since dead code has been removed. `known`: the answers for values
    computed from `v`."""
    seen: set[Value] = set()
    waiting = [v]
    while waiting:
        x = waiting.pop()
        if x in seen:
            continue
        seen.add(x)
        if x in known:
            if known[x]:
                return True
            continue
        for user, _ in x.uses:
            if user not in lo.position:
                continue
            if user in lo.chained:  # runs together with the dot or store that it feeds
                waits = list(user.results)
            elif type(user) in EVALUATORS and isinstance(user.results[0].type, TileType):
                waits = [r for r in user.results if lo.lazy(r)]
            elif position_of(lo, user) > position:
                return True
            else:
                continue
            if waits and lo.position[user] > position:
                return True
            waiting += waits
    return False


def release_dead(lo: Lowering, position: int, kept: Value | None = None) -> None:
    """Let the buffers that this block has made be reused, but `kept` and those that an op needs after `position`."""
    for v, block in list(lo.buffer_blocks.items()):
        mine = block is lo.block and v not in lo.carried and v is not kept
        if mine and not needed_after(lo, v, position):
            lo.release(v)


def position_of(lo: Lowering, sink: Op | None) -> int:
    """Return the position at which a sink has used its operands: after its region, if that only combines elements."""
    if sink is None:
        return -1
    return (lo.end if isinstance(sink, (ReduceOp, ScanOp)) else lo.position)[sink]


def integers_only(v: Value, depth: int) -> bool:
    """Whether an integer tile is index arithmetic, computed without loads and floats by chains of at most `depth`
    ops."""
    level = {v}
    for _ in range(depth):
        deeper: set[Value] = set()
        for x in level:
            e, op = elem_of(x.type), x.op
            if (isinstance(e, dtype) and e.is_floating()) or op is None:
                return False
            if not isinstance(op, (*SHAPE_OPS, *_INDEX_OPS, arith.DivOp, arith.RemOp)):
                return False
            deeper.update(y for y in op.operands if isinstance(y.type, TileType))
        if not deeper:
            return True
        level = deeper
    return False
