"""Counts through the buffers of a ring: the number of the buffer (slot), and the parity of its barriers' phase. Rings
whose signal is `mbarrier` or `tma` have rows of barriers, one for each buffer."""

from __future__ import annotations

from tessera import ops
from tessera.dtypes import int64
from tessera.ir import Builder, Op, SharedType, Value
from tessera.layout.shared import shared_linear
from tessera.passes.neutral.loops import const32


def row_of_mbarriers(slots: int) -> SharedType:
    """Return the type of a barrier for each buffer; shapes are powers of two."""
    count = 1 << (slots - 1).bit_length()
    return SharedType((count,), int64, shared_linear((count,), (0,)))


def next_slot(b: Builder, slot: Value, slots: int) -> Value:
    """Return slot + 1, or the first slot after the last."""
    following, wraps = _following(b, slot, slots)
    return b.emit(ops.SelectOp(wraps, const32(b, 0), following))


def advance(b: Builder, slot: Value, phase: Value, slots: int) -> tuple[Value, Value]:
    """Return the next slot, and the phase of its barriers, which flips when the ring begins again."""
    following, wraps = _following(b, slot, slots)
    flipped = b.emit(ops.XorOp(phase, const32(b, 1)))
    first = b.emit(ops.SelectOp(wraps, const32(b, 0), following))
    return first, b.emit(ops.SelectOp(wraps, flipped, phase))


def behind_mmas(loop: ops.ForOp) -> Builder:
    """Return where a loop's MMAs that run on have ended: behind the waits for them."""
    at: Op = loop
    while isinstance(at.next, ops.WgmmaWaitOp):
        at = at.next
    return Builder.after_op(at)


def wait_until_free(b: Builder, empty: Value, slot: Value, phase: Value) -> None:
    """Wait until the readers have released a buffer. In the first round all are free: the wait is for the phase
    before."""
    b.insert(ops.MbarrierWaitOp(empty, slot, b.emit(ops.XorOp(phase, const32(b, 1)))))


def _following(b: Builder, slot: Value, slots: int) -> tuple[Value, Value]:
    following = b.emit(ops.AddOp(slot, const32(b, 1)))
    return following, b.emit(ops.CmpOp(following, const32(b, slots), predicate="eq"))
