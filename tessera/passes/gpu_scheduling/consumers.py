"""Writes the consumers' role: regions that read rings, with the rings' state carried through all ops around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tessera.analysis.provenance import untransposed
from tessera.dtypes import int1
from tessera.ir import Block, Builder, Op, Value
from tessera.ops import (
    CmpOp,
    ForOp,
    LocalIndexOp,
    MbarrierArriveOp,
    MbarrierWaitOp,
    SelectOp,
    SubOp,
    WgmmaOp,
    WgmmaWaitOp,
)  # fmt: skip
from tessera.passes.gpu_mma.mma_chains import Shifted, drop_view, shifted_view
from tessera.passes.gpu_scheduling.loop_carried import Carrying, carry
from tessera.passes.gpu_scheduling.rings import Reader, Ring, advance, runs_at_all
from tessera.passes.neutral.loops import const, const32


def consume_once(r: Ring, zero: Value) -> None:
    """Read tiles that are loaded only once."""
    b = Builder.before_op(r.loads[0])
    b.insert(MbarrierWaitOp(r.full, zero, zero, data=True))
    _replace_loads(r, [b.emit(LocalIndexOp(ring, zero)) for ring in r.buffers])


@dataclass(slots=True)
class Plan:
    """How a loop with rings is rewritten: its readers, the MMA that runs on, those that are shifted by an iteration,
    and (found by `consume`) the ops that move with these."""

    readers: list[Reader]
    running: WgmmaOp | None
    shifted: list[Shifted]
    moved: set[Op] = field(default_factory=lambda: set())
    finished: Op | None = None  # the wait for the MMA that runs on, after the loop


def consume(rings: Sequence[Ring], plans: dict[Block, Plan], top: Block, zero: Value) -> None:
    """Make loops read the rings, which share buffers; all ops around the loops carry the rings' state."""
    _Thread(rings, plans, top).block(top, [zero, zero])


def _body(readers: Sequence[Reader], loop: ForOp, state: list[Value], plan: Plan) -> list[Value]:
    out: list[Value] = []
    if plan.running is not None:
        plan.running.pending = 1
    for n, r in enumerate(readers):
        slot, phase = state[2 * n : 2 * n + 2]
        before = set(loop.body)
        if r.shifted:
            views = _shifted_views(r.ring, r.shifted, slot, phase)
            plan.moved |= {d.mma for d in r.shifted}
        else:
            b = Builder.before_op(r.ring.loads[0])
            b.insert(MbarrierWaitOp(r.ring.full, slot, phase, data=True))
            views = [b.emit(LocalIndexOp(ring, slot)) for ring in r.ring.buffers]
            for alloc, view in zip(r.ring.allocs, views, strict=True):
                alloc.result.replace_all_uses(view)
        end = Builder.before_op(loop.body.terminator)
        if r.last:
            _replace_loads(r.ring, views)
            _give_back(r.ring, end, loop, slot, views, plan.running)
        out += advance(end, slot, phase, r.ring.stages)
        if r.shifted:
            plan.moved |= set(loop.body) - before
    return out


def _shifted_views(r: Ring, shifted: Sequence[Shifted], slot: Value, phase: Value) -> list[Value]:
    """Return views for MMAs that are to be shifted by an iteration, right before them."""
    at = Builder.before_op(shifted[0].mma)
    at.insert(MbarrierWaitOp(r.full, slot, phase, data=True))
    views = [at.emit(LocalIndexOp(ring, slot)) for ring in r.buffers]
    for d in shifted:
        old = d.mma.b
        root = untransposed(old).op
        number = next(
            i
            for i, a in enumerate(r.allocs)
            if a is root or _ring_of(untransposed(old)) is r.buffers[i]
        )
        at = Builder.before_op(d.mma)
        d.mma.set_operand(1, shifted_view(at, old, views[number]))
        drop_view(old)
    return views


def _replace_loads(r: Ring, views: list[Value]) -> None:
    for load, alloc, view in zip(r.loads, r.allocs, views, strict=True):
        alloc.replace_by([view])
        load.erase()


def _give_back(
    r: Ring, end: Builder, loop: ForOp, slot: Value, views: list[Value], running: WgmmaOp | None
) -> None:
    if running is not None and any(v in views for v in _roots(running)):
        before = _previous(end, slot, r.stages)
        begun = end.emit(CmpOp(loop.induction, loop.lb, predicate="ne"))
        end.insert(MbarrierArriveOp(r.empty, before, begun, [], **r.arrivals))
    else:
        yes = const(end, True, int1)
        end.insert(MbarrierArriveOp(r.empty, slot, yes, views, **r.arrivals))


def _roots(mma: WgmmaOp) -> list[Value]:
    return [untransposed(v) for v in (mma.a, mma.b)]


def _previous(b: Builder, slot: Value, stages: int) -> Value:
    first = b.emit(CmpOp(slot, const32(b, 0), predicate="eq"))
    before = b.emit(SubOp(slot, const32(b, 1)))
    return b.emit(SelectOp(first, const32(b, stages - 1), before))


def _after(r: Ring, loop: ForOp, slot: Value, plan: Plan, wanted: bool) -> None:
    """After the loop, wait for the MMA that runs on, then release the last buffer if that is `wanted`."""
    running = plan.running
    if running is None:
        return
    if plan.finished is None:
        result = loop.results[running.acc.index - 1]
        uses = list(result.uses)
        plan.finished = Builder.after_op(loop).insert(WgmmaWaitOp(result, []))
        for user, index in uses:
            user.set_operand(index, plan.finished.result)
    if wanted and any(_ring_of(v) in r.buffers for v in _roots(running)):
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
        readers: list[Reader] = []
        if ring is not None:
            readers = [x for x in self.plans[op.body].readers if x.ring is ring]
            state = state * len(readers)

        def body(new: ForOp, args: list[Value]) -> list[Value]:
            if ring is None:
                return self.block(new.body, args)
            plan = self.plans[new.body]
            out = _body(readers, new, args, plan)
            again = new.parent is not self.top or len(self.rings) > 1
            wanted = again or ring.ctas > 1  # other CTAs write to its buffers: it waits
            _after(ring, new, new.results[-2], plan, wanted)
            return out

        return carry(op, state, body)[-2:]  # of the reader that releases buffers


def _is_inside(block: Block, op: Op) -> bool:
    return block.parent is not None and block.parent.is_inside(op)
