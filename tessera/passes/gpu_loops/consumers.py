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
)  # fmt: skip
from tessera.ops.schedule import readers, spell_out, stage_of
from tessera.passes.gpu_loops.delay import Placing, last_position
from tessera.passes.gpu_loops.rings import Ring
from tessera.passes.gpu_loops.slots import State, behind_mmas, show
from tessera.passes.neutral.loop_carried import Carrying
from tessera.passes.neutral.loops import const, const32, runs_at_all

Place = tuple[int, int]  # in a schedule (ops/schedule.py): position and stage


def consume_once(r: Ring, zero: Value) -> None:
    """Read tiles that are loaded only once."""
    b = Builder.before_op(r.loads[0])
    r.tiles.wait_full(b, (zero, zero))
    show(r.allocs, r.tiles.views(b, zero))


def consume(rings: Sequence[Ring], top: Block, zero: Value) -> None:
    """Make loops read the rings, which share buffers; all ops around the loops carry the rings' state."""
    _Thread(rings, top).block(top, [zero, zero])


def _body(r: Ring, loop: ForOp, state: State) -> State:
    ring, slot = r.tiles, state[0]
    reads, frees, counts = _places(r, loop)
    b = Placing(r.loads[0], *reads)
    ring.wait_full(b, state)
    views = ring.views(b, slot)
    show(r.allocs, views)
    end = loop.body.terminator
    b = Placing(end, *counts)
    if _read_on(r, loop):
        slot_read, views = _previous(b, slot, r.stages), []
        is_read = b.emit(CmpOp(loop.induction, loop.lb, predicate="ne"))
    else:
        slot_read, is_read = slot, const(b, True, int1)
    ring.release(Placing(end, *frees), slot_read, is_read, views)
    return ring.advance(b, state)


def _places(r: Ring, loop: ForOp) -> tuple[Place, Place, Place]:
    """Return where in the schedule a ring's buffers are waited for, where they are released, and where the next buffer
    is computed. All of that is in the later stage if no other one reads them."""
    loop.main_stage = main = loop.main_stage or 0
    body = spell_out(loop)
    users = {op for a in r.allocs for op in readers(a.result, loop)}
    late = [op for op in users if stage_of(op, loop) > main]
    delayed = [op.attrs["position"] for op in body if op.attrs["stage"] > main and _reads(op)]
    # Buffers are released behind all readers of later stages, of other rings, too.
    behind = max(delayed) + 1 if delayed else last_position(loop, main)
    stage = late[0].attrs["stage"] if late else main
    if not late or len(late) < len(users):
        return (r.loads[0].attrs["position"], main), (behind, stage), (behind, main)
    position = min(op.attrs["position"] for op in late)
    for op in body:
        if isinstance(op, SharedView) and buffer_of(op.result).op in r.allocs:
            op.attrs |= {"position": position, "stage": stage}
    return (position, stage), (behind, stage), (behind, stage)


def _reads(op: Op) -> bool:
    used = any(isinstance(v.type, SharedType) for v in op.operands)
    return used and not isinstance(op, SharedView | MbarrierArriveOp | MbarrierWaitOp)


def _read_on(r: Ring, loop: ForOp) -> bool:
    """Whether MMAs that run on into the next iteration read the buffers, which are then released in that one."""
    running = [op for op in loop.body if isinstance(op, WgmmaOp) and op.pending]
    views = [untransposed(v).op for mma in running for v in (mma.a, mma.b)]
    return any(isinstance(op, LocalIndexOp) and op.ring in r.tiles.rows for op in views)


def _previous(b: Builder, slot: Value, stages: int) -> Value:
    first = b.emit(CmpOp(slot, const32(b, 0), predicate="eq"))
    before = b.emit(SubOp(slot, const32(b, 1)))
    return b.emit(SelectOp(first, const32(b, stages - 1), before))


def _after(r: Ring, loop: ForOp, slot: Value) -> None:
    """Release the last buffer after the loop, once the MMAs that run on are done."""
    if _read_on(r, loop):
        b = behind_mmas(loop)
        ran = runs_at_all(b, loop.lb, loop.ub, loop.step)
        last = _previous(b, slot, r.stages)
        r.tiles.release(b, last, ran)


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
        out = _body(ring, loop, tuple(state))
        again = loop.parent is not self.top or len(self.rings) > 1
        if again or ring.tiles.ctas > 1:  # other CTAs write to its buffers: it waits
            _after(ring, loop, loop.results[-2])
        return list(out)
