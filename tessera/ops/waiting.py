"""Tells which ops may see what other programs do while they run."""

from __future__ import annotations

from tessera.ir import Op
from tessera.ops.control import CallOp
from tessera.ops.memory import Atomic, LoadOp


def sees_others(op: Op) -> bool:
    """Whether an op, or one that it contains or calls, may see what another program does."""
    for x in op.walk():
        callee = x.resolve() if isinstance(x, CallOp) else None
        if isinstance(x, Atomic) or (isinstance(x, LoadOp) and x.volatile):
            return True
        if callee is not None and sees_others(callee):
            return True
    return False
