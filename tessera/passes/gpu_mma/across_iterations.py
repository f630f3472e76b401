"""Finds the asynchronous MMA of a loop that may run on into the next iteration, and the buffers that it reads."""

from __future__ import annotations

from tessera.analysis.provenance import buffer_of
from tessera.ir import Op, Value
from tessera.ir.applications import is_enabled
from tessera.ops import ForOp, LocalAllocOp, LocalLoadOp, WgmmaOp
from tessera.passes.neutral.loops import only_accumulates


def async_accumulation(loop: ForOp, rings: set[LocalAllocOp]) -> WgmmaOp | None:
    """Return the one MMA of a loop, if it only accumulates from iteration to iteration, on operands that come through
    rings (allocations that become rings) or a ring of buffers."""
    mmas = [op for op in loop.walk() if isinstance(op, WgmmaOp)]
    if not is_enabled("mma-across-iterations"):
        return None
    if len(mmas) != 1 or mmas[0].parent is not loop.body:
        return None
    op = mmas[0]
    for v in (op.a, op.b):
        alloc = _alloc_of(v)
        if alloc not in rings and (alloc is None or not alloc.attrs.get("rotates")):
            return None
    return op if only_accumulates(loop, op) else None


def _alloc_of(v: Value) -> Op | None:
    """Return the allocation that an operand is a view of, or was loaded from for this MMA alone."""
    if isinstance(v.op, LocalLoadOp) and len(v.uses) == 1:
        v = v.op.shared
    return buffer_of(v).op
