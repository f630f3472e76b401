"""What loads through tensor maps may see of what their program does before, and of what other programs do that it waits
for: such loads must not run ahead of it."""

from __future__ import annotations

from tessera.ir import Block, Effect, Op, Value
from tessera.ops import (
    AddPtrOp,
    AssertOp,
    AssumeOp,
    AtomicCasOp,
    AtomicRmwOp,
    BroadcastOp,
    ConvertLayoutOp,
    DescriptorScatterOp,
    DescriptorStoreOp,
    ExpandDimsOp,
    ForOp,
    FuncOp,
    HintOp,
    LoadOp,
    PrintOp,
    ReshapeOp,
    SplatOp,
    StoreOp,
    TransOp,
    WhileOp,
)  # fmt: skip
from tessera.passes.gpu_scheduling.rings import CannotSplit, Ring
from tessera.passes.neutral.descriptors import made_by

SAYING = (AssumeOp, AssertOp, PrintOp)  # "write", but to no array
UNCACHED = ".cv"
DERIVED = (
    AddPtrOp,
    SplatOp,
    BroadcastOp,
    ExpandDimsOp,
    ReshapeOp,
    TransOp,
    ConvertLayoutOp,
    HintOp,
)  # fmt: skip  of pointers


def ordered_loops(func: FuncOp, rings: list[Ring]) -> dict[ForOp, list[Op]]:
    """The loops of rings that must not load before the program comes to them, with what their loads may see.
    CannotSplit if that is in the same loop."""
    found: dict[ForOp, list[Op]] = {}
    for r in rings:
        loop = r.home.parent
        seen = _seen(func, r)
        if not seen:
            continue
        if not isinstance(loop, ForOp) or any(op.is_inside(loop) for op in seen):
            raise CannotSplit("what a loop loads may depend on what it does")
        if any(load.blocks > 1 for load in r.loads):
            raise CannotSplit(
                "blocks of a cluster would wait for each other and for other programs"
            )
        found[loop] = [*found.get(loop, []), *seen]
    return found


def sees_nothing(func: FuncOp, r: Ring) -> bool:
    """Whether the loads of a ring may be made at any time."""
    return not _seen(func, r)


def writes(op: Op) -> bool:
    """Whether an op may write to an array."""
    return bool(op.effects & (Effect.WRITE | Effect.SYNC)) and not isinstance(op, SAYING)


def waits_for_others(op: Op) -> bool:
    """Whether a program may learn by an op what others have done."""
    if isinstance(op, LoadOp):
        return op.volatile or op.cache == UNCACHED
    return isinstance(op, AtomicRmwOp | AtomicCasOp) and bool(op.result.uses)


def precedes(op: Op, other: Op) -> bool:
    """Whether an op may run before another one does: it stands before it, or in a loop around both."""
    ways: dict[Block | None, Op] = {}
    x: Op | None = other
    while x is not None:
        ways[x.parent] = x
        x = x.parent_op()
    while op.parent not in ways:
        around = op.parent_op()
        assert around is not None
        op = around
    block, around = op.parent, op.parent_op()
    assert block is not None
    while around is not None:
        if isinstance(around, ForOp | WhileOp):
            return True
        around = around.parent_op()
    first = next(x for x in block if x is op or x is ways[block])
    return first is op and op is not ways[block]


def array_of(ptr: Value) -> Value | None:
    """The argument that a pointer is made from; None if it is not known."""
    while isinstance(ptr.op, DERIVED):
        ptr = ptr.op.operands[0]
    parent = ptr.owner.parent if isinstance(ptr.owner, Block) else None
    if isinstance(parent, ForOp) and ptr.index > 0:
        return array_of(parent.inits[ptr.index - 1])
    return ptr if isinstance(parent, FuncOp) else None


def _seen(func: FuncOp, r: Ring) -> list[Op]:
    """What a ring's loads may see: all that may be written before them if they are `ordered`."""
    bases = {made_by(load.desc).base for load in r.loads}
    ordered = any(load.ordered for load in r.loads)
    return [
        op
        for op in func.walk()
        if ((ordered and writes(op)) or _is_seen(op, bases)) and precedes(op, r.loads[-1])
    ]


def _is_seen(op: Op, arrays: set[Value]) -> bool:
    """Whether loads from arrays may see what an op does: it may write there, or waits for others, who may."""
    if waits_for_others(op):
        return True
    if isinstance(op, StoreOp | AtomicRmwOp | AtomicCasOp):
        target = array_of(op.ptr)
        return target is None or target in arrays
    return (
        isinstance(op, DescriptorStoreOp | DescriptorScatterOp) and made_by(op.desc).base in arrays
    )
