"""Tells what ops do to memory: whether they write, wait for other programs, or run before one another."""

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
    ExpandDimsOp,
    ForOp,
    FuncOp,
    HintOp,
    LoadOp,
    PrintOp,
    ReshapeOp,
    SplatOp,
    TransOp,
    WhileOp,
)  # fmt: skip

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
