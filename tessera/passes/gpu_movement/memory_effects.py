"""Tells what ops do to memory: whether they write, wait for other programs, or run before another op."""

from __future__ import annotations

from tessera.analysis.provenance import argument_of
from tessera.ir import Effect, Op, Value
from tessera.ops import (
    Atomic,
    CallOp,
    DescriptorWrite,
    Diagnostic,
    ForOp,
    GridDependencyOp,
    LoadOp,
    Loop,
    PointerWrite,
    VolatileAsmOp,
)  # fmt: skip

UNCACHED = ".cv"
UNKNOWN = (CallOp, VolatileAsmOp, GridDependencyOp)


def writes(op: Op) -> bool:
    """Whether an op may write to an array."""
    return bool(op.effects & (Effect.WRITE | Effect.SYNC)) and not isinstance(op, Diagnostic)


def waits_for_others(op: Op) -> bool:
    """Whether a program may observe through an op what other programs have done."""
    if isinstance(op, LoadOp):
        return op.volatile or op.cache == UNCACHED
    return isinstance(op, Atomic) and bool(op.result.uses)


def precedes(op: Op, other: Op) -> bool:
    """Whether an op may run before another one: it comes first, or a loop contains both."""
    ways = {x.parent: x for x in (other, *other.ancestors())}
    op = next(x for x in (op, *op.ancestors()) if x.parent in ways)
    block = op.parent
    assert block is not None
    if any(isinstance(x, Loop) for x in op.ancestors()):
        return True
    first = next(x for x in block if x is op or x is ways[block])
    return first is op and op is not ways[block]


def arrays_written(loop: ForOp) -> set[Value] | None:
    """Return the arguments through which a loop writes; None if they are not known."""
    found: set[Value] = set()
    for op in loop.walk():
        if isinstance(op, PointerWrite | DescriptorWrite):
            base = argument_of(op.ptr if isinstance(op, PointerWrite) else op.desc)
            if base is None:
                return None
            found.add(base)
        elif isinstance(op, UNKNOWN):
            return None
    return found


def is_apart(ptr: Value, written: set[Value] | None) -> bool:
    """Whether pointers point to none of the arrays `written`."""
    if not written:
        return written is not None
    base = argument_of(ptr)
    return base is not None and base not in written
