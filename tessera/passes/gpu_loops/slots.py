"""Counts through the buffers of a ring: the number of the buffer (slot), and the parity of its barriers' phase."""

from __future__ import annotations

from tessera import ops
from tessera.ir import Builder, Value
from tessera.passes.neutral.loops import const32


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


def _following(b: Builder, slot: Value, slots: int) -> tuple[Value, Value]:
    following = b.emit(ops.AddOp(slot, const32(b, 1)))
    return following, b.emit(ops.CmpOp(following, const32(b, slots), predicate="eq"))
