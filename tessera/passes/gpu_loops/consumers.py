"""Writes the consumers' role: regions that read rings, with the rings' state carried through all ops around them."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.analysis.provenance import buffer_of, untransposed
from tessera.dtypes import int1
from tessera.ir import Block, Builder, Op, SharedType, Value
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
    WgmmaWaitOp,
)  # fmt: skip
from tessera.ops.schedule import memory_users, positions_of, set_positions, stage_of
from tessera.passes.gpu_loops.rings import Ring
from tessera.passes.gpu_loops.slots import advance
from tessera.passes.neutral.loop_carried import Carrying
from tessera.passes.neutral.loops import const, const32, runs_at_all


def consume_once(r: Ring, zero: Value) -> None:
    """Read tiles that are loaded only once."""
    b = Builder.before_op(r.loads[0])
    b.insert(MbarrierWaitOp(r.full, zero, zero, data=True))
    _replace_loads(r, [b.emit(LocalIndexOp(ring, zero)) for ring in r.buffers])


def consume(rings: Sequence[Ring], top: Block, zero: Value) -> None:
    """Make loops read the rings, which share buffers; all ops around the loops carry the rings' state."""
    _Thread(rings, top).block(top, [zero, zero])


def running(loop: ForOp) -> list[WgmmaOp]:
    """Return the MMAs of a loop that run on into its next iteration."""
    return [op for op in loop.body if isinstance(op, WgmmaOp) and op.pending]


def _body(r: Ring, loop: ForOp, slot: Value, phase: Value) -> list[Value]:
    b, end = Builder.before_op(r.loads[0]), Builder.before_op(loop.body.terminator)
    plan = _Late(r, loop)
    b.insert(MbarrierWaitOp(r.full, slot, phase, data=True))
    views = [b.emit(LocalIndexOp(ring, slot)) for ring in r.buffers]
    plan.first()
    _replace_loads(r, views)
    arrive = _give_back(r, end, loop, slot, views)
    following = advance(end, slot, phase, r.stages)
    plan.rest(arrive)
    return list(following)


class _Late:
    """Writes the stages and positions of what waits for a ring's buffers and releases them (ops/schedule.py)."""

    def __init__(self, r: Ring, loop: ForOp):
        self.r, self.loop = r, loop
        self.positions = positions_of(loop) if loop.main_stage is not None else {}
        main = loop.main_stage or 0
        users = {op for a in r.allocs for op in memory_users(a.result)}
        self.late = [op for op in users if op.attrs.get("stage", 0) > main]
        self.whole = len(self.late) == len(users)
        self.before = set(loop.body)
        # Buffers are released behind all late readers.
        late = [op for op in self.positions if _reads(op) and stage_of(op, loop) > main]
        self.behind = max((self.positions[op] for op in late), default=-1) + 1

    def first(self) -> None:
        """Place what was inserted before the readers: with the late ones if there are no others."""
        found = [op for op in self.loop.body if op not in self.before]
        if self.late and self.whole:
            buffers = self.r.allocs
            found += [op for op in self.loop.body if _shows(op, buffers)]
            self._place(found, min(self.positions[op] for op in self.late), late=True)
        elif self.positions:
            self._place(found, self.positions[self.r.loads[0]], late=False)
        self.before.update(found)

    def rest(self, arrive: Op) -> None:
        """Place what was inserted behind the readers."""
        found = [op for op in self.loop.body if op not in self.before]
        if self.late and self.whole:
            self._place(found, self.behind, late=True)
        elif self.late:
            self._place([arrive], self.behind, late=True)
        if self.behind:
            self._place([op for op in found if op not in self.positions], self.behind, late=False)
        if self.positions:
            set_positions(self.loop, self.positions)

    def _place(self, found: Sequence[Op], position: int, late: bool) -> None:
        for op in found:
            self.positions[op] = position
            if late:
                op.attrs["stage"] = self.late[0].attrs["stage"]


def _reads(op: Op) -> bool:
    used = any(isinstance(v.type, SharedType) for v in op.operands)
    return used and not isinstance(op, SharedView | MbarrierArriveOp | MbarrierWaitOp)


def _shows(op: Op, buffers: Sequence[Op]) -> bool:
    return isinstance(op, SharedView) and buffer_of(op.result).op in buffers


def _replace_loads(r: Ring, views: list[Value]) -> None:
    for load, alloc, view in zip(r.loads, r.allocs, views, strict=True):
        alloc.replace_by([view])
        load.erase()


def _give_back(r: Ring, end: Builder, loop: ForOp, slot: Value, views: list[Value]) -> Op:
    if any(v in views for mma in running(loop) for v in _roots(mma)):
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


def _after(r: Ring, loop: ForOp, slot: Value) -> None:
    """Release the last buffer after the loop, once the MMAs that run on are done."""
    if any(_ring_of(v) in r.buffers for mma in running(loop) for v in _roots(mma)):
        at: Op = loop
        while isinstance(at.next, WgmmaWaitOp):
            at = at.next
        b = Builder.after_op(at)
        ran = runs_at_all(b, loop.lb, loop.ub, loop.step)
        last = _previous(b, slot, r.stages)
        b.insert(MbarrierArriveOp(r.empty, last, ran, [], **r.arrivals))


def _ring_of(view: Value) -> Value | None:
    return view.op.ring if isinstance(view.op, LocalIndexOp) else None


class _Thread(Carrying):
    """Carries the state of rings, a buffer's index and its phase, through all loops and branches around them."""

    def __init__(self, rings: Sequence[Ring], top: Block):
        self.rings, self.top = {r.block: r for r in rings}, top
        loops = [block.parent for block in self.rings if block.parent is not None]
        self.around = {above for loop in loops for above in (loop, *loop.ancestors())}

    def block(self, block: Block, state: list[Value]) -> list[Value]:
        """Return the state after the block."""
        ring, loop = self.rings.get(block), block.parent
        if ring is None or not isinstance(loop, ForOp):
            return super().block(block, state)
        slot, phase = state
        out = _body(ring, loop, slot, phase)
        again = loop.parent is not self.top or len(self.rings) > 1
        if again or ring.ctas > 1:  # other CTAs write to its buffers: it waits
            _after(ring, loop, loop.results[-2])
        return out
