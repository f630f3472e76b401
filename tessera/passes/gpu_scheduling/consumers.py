"""Writes the consumers' role: regions that read rings, with the rings' state carried through all ops around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tessera.analysis.allocation import memory_users
from tessera.analysis.provenance import buffer_of, untransposed
from tessera.dtypes import int1
from tessera.ir import Block, Builder, Op, Value
from tessera.ops import (
    CmpOp,
    ForOp,
    LocalIndexOp,
    MbarrierArriveOp,
    MbarrierWaitOp,
    SelectOp,
    SharedView,
    SubOp,
    WgmmaOp,
)  # fmt: skip
from tessera.passes.gpu_loops.chains import Shifted, run_on
from tessera.passes.gpu_loops.slots import advance
from tessera.passes.gpu_scheduling.rings import Ring
from tessera.passes.neutral.loop_carried import Carrying, carry
from tessera.passes.neutral.loops import const, const32, runs_at_all


def consume_once(r: Ring, zero: Value) -> None:
    """Read tiles that are loaded only once."""
    b = Builder.before_op(r.loads[0])
    b.insert(MbarrierWaitOp(r.full, zero, zero, data=True))
    _replace_loads(r, [b.emit(LocalIndexOp(ring, zero)) for ring in r.buffers])


@dataclass(slots=True)
class Plan:
    """How a loop with rings is rewritten: the MMAs that run on, those that are shifted by an iteration, and (found by
    `consume`) what waits for the buffers of the latter and releases them, which is late, too."""

    running: list[WgmmaOp]
    shifted: list[Shifted]
    late: list[Op] = field(default_factory=lambda: [])
    finished: Op | None = None  # the last wait for MMAs that run on, after the loop


def consume(rings: Sequence[Ring], plans: dict[Block, Plan], top: Block, zero: Value) -> None:
    """Make loops read the rings, which share buffers; all ops around the loops carry the rings' state."""
    _Thread(rings, plans, top).block(top, [zero, zero])


def _body(r: Ring, loop: ForOp, slot: Value, phase: Value, plan: Plan) -> list[Value]:
    b, end = Builder.before_op(r.loads[0]), Builder.before_op(loop.body.terminator)
    users = {user for a in r.allocs for user in memory_users(a.result)}
    before = set(loop.body)
    b.insert(MbarrierWaitOp(r.full, slot, phase, data=True))
    views = [b.emit(LocalIndexOp(ring, slot)) for ring in r.buffers]
    _replace_loads(r, views)
    arrive = _give_back(r, end, loop, slot, views, plan.running)
    following = advance(end, slot, phase, r.stages)
    late = {d.mma for d in plan.shifted}
    if users <= late:  # so are the wait, the views, and the ring's state
        plan.late += [op for op in loop.body if op not in before or _shows(op, r.buffers)]
    elif users & late:
        plan.late.append(arrive)
    return list(following)


def _shows(op: Op, buffers: Sequence[Value]) -> bool:
    return isinstance(op, SharedView) and buffer_of(op.result) in buffers


def _replace_loads(r: Ring, views: list[Value]) -> None:
    for load, alloc, view in zip(r.loads, r.allocs, views, strict=True):
        alloc.replace_by([view])
        load.erase()


def _give_back(
    r: Ring, end: Builder, loop: ForOp, slot: Value, views: list[Value], running: list[WgmmaOp]
) -> Op:
    if any(v in views for mma in running for v in _roots(mma)):
        before = _previous(end, slot, r.stages)
        begun = end.emit(CmpOp(loop.induction, loop.lb, predicate="ne"))
        return end.insert(MbarrierArriveOp(r.empty, before, begun, [], **r.arrivals))
    yes = const(end, True, int1)
    return end.insert(MbarrierArriveOp(r.empty, slot, yes, views, **r.arrivals))


def _roots(mma: WgmmaOp) -> list[Value]:
    return [untransposed(v) for v in (mma.a, mma.b)]


def _previous(b: Builder, slot: Value, stages: int) -> Value:
    first = b.emit(CmpOp(slot, const32(b, 0), predicate="eq"))
    before = b.emit(SubOp(slot, const32(b, 1)))
    return b.emit(SelectOp(first, const32(b, stages - 1), before))


def _after(r: Ring, loop: ForOp, slot: Value, plan: Plan, wanted: bool) -> None:
    """After the loop, wait for the MMAs that run on, then release the last buffer if that is `wanted`."""
    if not plan.running:
        return
    if plan.finished is None:
        plan.finished = run_on(loop, plan.running)[-1]
    if wanted and any(_ring_of(v) in r.buffers for mma in plan.running for v in _roots(mma)):
        b = Builder.after_op(plan.finished)
        ran = runs_at_all(b, loop.lb, loop.ub, loop.step)
        last = _previous(b, slot, r.stages)
        b.insert(MbarrierArriveOp(r.empty, last, ran, [], **r.arrivals))


def _ring_of(view: Value) -> Value | None:
    return view.op.ring if isinstance(view.op, LocalIndexOp) else None


class _Thread(Carrying):
    """Carries the state of rings, a buffer's index and its phase, through all loops and branches around them."""

    def __init__(self, rings: Sequence[Ring], plans: dict[Block, Plan], top: Block):
        self.rings, self.plans, self.top = {r.block: r for r in rings}, plans, top

    def block(self, block: Block, state: list[Value]) -> list[Value]:
        """Return the state after the block."""
        for op in list(block):
            if any(inner.parent is op or _is_inside(inner, op) for inner in self.rings):
                state = self.through(op, state)
        return state

    def through_for(self, op: ForOp, state: list[Value]) -> list[Value]:
        ring = self.rings.get(op.body)

        def body(new: ForOp, args: list[Value]) -> list[Value]:
            if ring is None:
                return self.block(new.body, args)
            plan = self.plans[new.body]
            slot, phase = args
            out = _body(ring, new, slot, phase, plan)
            again = new.parent is not self.top or len(self.rings) > 1
            wanted = again or ring.ctas > 1  # other CTAs write to its buffers: it waits
            _after(ring, new, new.results[-2], plan, wanted)
            return out

        return carry(op, state, body)


def _is_inside(block: Block, op: Op) -> bool:
    return block.parent is not None and block.parent.is_inside(op)
