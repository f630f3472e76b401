"""Finds loads that may see earlier writes, and so must not run ahead of these: of tiles through tensor maps, and of
numbers that the producer needs for their coordinates."""

from __future__ import annotations

from tessera.analysis.provenance import argument_of
from tessera.ir import Op, Value
from tessera.ir.applications import Declined
from tessera.ops import DescriptorWrite, ForOp, FuncOp, LoadOp, PointerWrite
from tessera.passes.gpu_loops.rings import Ring
from tessera.passes.gpu_movement.memory_effects import precedes, waits_for_others, writes


def ordered_loops(func: FuncOp, rings: list[Ring]) -> dict[ForOp, list[Op]]:
    """Return the loops of rings that must not load before the program reaches them, with what their loads may see.
    Raises Declined if that is in the same loop."""
    found: dict[ForOp, list[Op]] = {}
    for r in rings:
        loop = r.block.parent
        seen = seen_by(func, r)
        if not seen:
            continue
        if not isinstance(loop, ForOp) or any(op.is_inside(loop) for op in seen):
            raise Declined("what a loop loads may depend on what it does")
        if any(load.ctas > 1 for load in r.loads):
            raise Declined("CTAs of a cluster would wait for each other and for other programs")
        found[loop] = [*found.get(loop, []), *seen]
    return found


def seen_by(func: FuncOp, r: Ring) -> list[Op]:
    """Return the ops that a ring's loads may see: all writes that may come before them if they are `ordered`."""
    bases = {argument_of(load.desc) for load in r.loads}
    ordered = any(load.ordered for load in r.loads)
    return [
        op
        for op in func.walk()
        if ((ordered and writes(op)) or _is_seen(op, bases)) and precedes(op, r.loads[-1])
    ]


def may_read_ahead(func: FuncOp, load: LoadOp) -> bool:
    """Whether the producer may load a number before the other roles come to it: they write through descriptors only,
    and not to its array."""
    if waits_for_others(load) or any(isinstance(op, PointerWrite) for op in func.walk()):
        return False
    stores = [op for op in func.walk() if isinstance(op, DescriptorWrite) and precedes(op, load)]
    return not stores or argument_of(load.ptr) not in {
        None,
        *[argument_of(op.desc) for op in stores],
    }


def _is_seen(op: Op, arrays: set[Value | None]) -> bool:
    """Whether loads from arrays may see what an op does: it may write there, or wait for other programs that may."""
    if waits_for_others(op):
        return True
    if isinstance(op, PointerWrite):
        target = argument_of(op.ptr)
        return target is None or target in arrays
    return isinstance(op, DescriptorWrite) and argument_of(op.desc) in arrays
