"""Finds loops over k that only accumulate dots, and facts about the operands and accumulators of their dots."""

from __future__ import annotations

from tessera import ops
from tessera.backends.cpu.arith import TABLE
from tessera.backends.cpu.bounds import slope
from tessera.backends.cpu.target import CpuFacts
from tessera.dtypes import dtype, float32, float64, int32
from tessera.ir import Effect, Op, TileType, Value, elem_of, shape_of
from tessera.passes.neutral.loops import only_accumulates

FEW = 32  # rows or columns of an accumulator for which copying an operand costs more than it saves
LONG_STEP = 1 << 40  # several steps are less than 2^63


def accumulated_dots(facts: CpuFacts, loop: ops.ForOp) -> list[ops.DotOp]:
    """Return the dots of a loop whose operands are packed for all steps before any of them is multiplied
    (prepack_k.py); [] if there is an obstacle."""
    dots = [op for op in loop.body if isinstance(op, ops.DotOp)]
    return [] if any(prepack_obstacle(facts, loop, dot) for dot in dots) else dots


def prepack_obstacle(facts: CpuFacts, loop: ops.ForOp, dot: ops.DotOp) -> str:
    """Return why a dot of a loop is multiplied in each step; "" if the loop writes nothing, only adds the dot to a
    matrix that it carries, and packing pays."""
    step, t = constant(loop.step), dot.acc.type
    if step is not None and abs(step) >= LONG_STEP:
        return "several steps of the loop overflow"
    if any(op.regions or op.effects & (Effect.WRITE | Effect.SYNC) for op in loop.body):
        return "the loop writes, or has operations with regions"
    if len(shape_of(t)) != 2 or elem_of(t) not in (float32, float64, int32):
        return "the accumulator is no matrix of fp32, fp64 or int32"
    if not only_accumulates(loop, dot):
        return "the accumulator is not carried for this dot alone"
    (m, n), (a, b) = shape_of(t), dot.operands[:2]
    if m < FEW and elem_of(b.type) is elem_of(t) and _contiguous_load(b, masked=False):
        return "B is read in place for few rows"
    if n < FEW and not facts.tiles and _contiguous_load(a, masked=True):
        return "A is read in place for few columns where its mask allows it"
    return ""


def _contiguous_load(v: Value, masked: bool) -> bool:
    """Whether an operand is a load of contiguous rows, with a mask or without."""
    op = v.op
    return isinstance(op, ops.LoadOp) and (op.mask is not None) == masked and slope(op.ptr, 1) == 1


def scalar_ops(loop: ops.ForOp) -> list[Op]:
    """Return the operations of a loop's body that are executed once an iteration."""
    return [x for x in loop.body if x.results and not isinstance(x.results[0].type, TileType)]


def step_stride(loop: ops.ForOp, v: Value, step: int | None) -> int | None:
    """Return how much each element of a value grows from one iteration to the next if the loop's step is `step` (None:
    unknown); None if that is not one constant, or if the value is computed from a carried tile."""
    op = v.op
    if v is loop.induction:
        return step
    if op is None and v in loop.carried:
        if isinstance(v.type, TileType):
            return None
        following = loop.body.terminator.operands[v.index - 1].op
        known = isinstance(following, ops.AddOp) and following.lhs is v
        return constant(following.operands[1]) if following is not None and known else None
    if op is None or not op.is_inside(loop):
        return 0
    parts = [step_stride(loop, x, step) for x in op.operands]
    if not any(parts) and None not in parts:
        return 0
    if isinstance(op, (ops.AddOp, ops.AddPtrOp)):
        return None if None in parts else sum(x for x in parts if x is not None)
    same = isinstance(op, (ops.SplatOp, ops.BroadcastOp, ops.ExpandDimsOp, ops.HintOp))
    return parts[0] if same or (isinstance(op, ops.CastOp) and _widens(op)) else None


def _widens(op: ops.CastOp) -> bool:
    """Whether a cast of integers keeps each of them."""
    a, b = elem_of(op.x.type), elem_of(op.result.type)
    known = isinstance(a, dtype) and isinstance(b, dtype) and a.is_int() and b.is_int()
    return known and a.bits < b.bits and (b.signed or not a.signed)


def constant(v: Value) -> int | None:
    return int(v.op.value) if isinstance(v.op, ops.ConstOp) else None


def only_store(v: Value) -> ops.StoreOp | None:
    """Return the only store, in the same block, that uses a tile, through element-wise operations only."""
    found: set[ops.StoreOp] = set()
    todo, seen = [v], {v}
    while todo:
        for user, place in todo.pop().uses:
            if isinstance(user, ops.StoreOp) and place == 1:
                found.add(user)
            elif type(user) in TABLE and not isinstance(user, ops.HintOp):
                todo += [r for r in user.results if r not in seen]
                seen.update(user.results)
            else:
                return None
    (store, *more) = found or (None,)
    if store is None or more or v.op is None or store.parent is not v.op.parent:
        return None
    between = v.op.next
    while between is not store:
        if between is None or between.all_effects() & (Effect.WRITE | Effect.SYNC):
            return None
        between = between.next
    return store
