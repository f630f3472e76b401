"""Makes loops of scatters that write one element of each row of a tensor of equal elements, as the gradient of a
cross-entropy does.

scatter (i: n) into zeros (n x m) { yield [i, t(i)], v(i) }   →   loop (i: n, j: m) { yield j == t(i) ? v(i) : 0 }

Such a loop is part of what reads it; the zeros, and the scatter, would be kernels of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int1, int64
from tessera.graph.ir.ops import LoopOp, ScatterOp, yielded
from tessera.graph.passes import cost
from tessera.ir import Block, Builder, Rewriter, RuleSet, Value, rule
from tessera.ops import AddOp, AndOp, CmpOp, ConstOp, SelectOp, YieldOp

SCATTERS = RuleSet()
MOST_WORK = 16  # scalar ops of a body that runs for each element of a row


@rule(SCATTERS, ScatterOp)
def scatter_of_rows(op: ScatterOp, rw: Rewriter) -> Sequence[Value] | None:
    """scatter one element a row into equal elements → a loop over all elements"""
    fill, free = equal_elements(op.base), _free_coordinate(op)
    if fill is None or free is None or op.mode not in ("set", "add"):
        return None
    t, values = op.result.type, yielded(op.body)
    body = Block([int64] * t.rank)
    mapping: dict[Value, Value] = {}
    for k, v in enumerate(values[: t.rank]):
        if k != free:
            mapping[v] = body.args[k]
    b = Builder(body, loc=op.loc)
    for x in op.body:
        if not x.terminator:
            b.insert(x.clone(mapping))
    at, value, *mask = (mapping.get(v, v) for v in (values[free], *values[t.rank :]))
    before = b.insert(fill.clone()).result
    hit = b.emit(CmpOp(body.args[free], at, predicate="eq", results=[int1]))
    if mask:
        hit = b.emit(AndOp(hit, mask[0]))
    new = value if op.mode == "set" else b.emit(AddOp(before, value))
    b.insert(YieldOp([b.emit(SelectOp(hit, new, before))]))
    loop = rw.insert(LoopOp(extents=t.shape, regions=[body], results=[t], loc=op.loc))
    return list(loop.results)


@rule(SCATTERS, ScatterOp)
def own_fill(op: ScatterOp, rw: Rewriter) -> ScatterOp | None:
    """scatter into equal elements that others read, too → into some of its own, which it changes in place"""
    fill = equal_elements(op.base)
    if fill is None or len(op.base.uses) == 1:
        return None
    t = op.base.type
    body = Block([int64] * t.rank)
    b = Builder(body, loc=op.loc)
    b.insert(YieldOp([b.insert(fill.clone()).result]))
    own = rw.insert(LoopOp(extents=t.shape, regions=[body], results=[t], loc=op.loc))
    rw.set_operands(op, own.results[0])
    return op


def equal_elements(base: Value) -> ConstOp | None:
    """The number that all elements of a tensor are; None if there is none that is known."""
    loop = base.op
    if not isinstance(loop, LoopOp):
        return None
    value = yielded(loop.body)[base.index].op
    return value if isinstance(value, ConstOp) else None


def _free_coordinate(op: ScatterOp) -> int | None:
    """Which coordinate of a scatter is computed, where the others are its indices, each once."""
    rank = op.result.type.rank
    if len(op.extents) != rank - 1 or not cost.is_pointwise(op.body):
        return None
    places = yielded(op.body)[:rank]
    free = [k for k, v in enumerate(places) if v not in op.body.args]
    others = [v for v in places if v in op.body.args]
    if len(free) != 1 or len(set(others)) != rank - 1:
        return None
    shape = op.result.type.shape
    fits = all(op.extents[v.index] == shape[k] for k, v in enumerate(places) if k != free[0])
    light = sum(map(cost.weight, op.body)) <= MOST_WORK
    return free[0] if fits and light else None
