"""Finds the array that a pointer points into, and the loads that may run in the loop of a store."""

from __future__ import annotations

from tessera.backends.cpu.lowering import Lowering
from tessera.ir import Block, Value, shape_of
from tessera.ir.applications import apply
from tessera.ops import ForOp, arith, memory, tile


def base_of(v: Value) -> Value:
    """The value that a pointer tile is computed from, which is mostly a function argument."""
    while v.op is not None and isinstance(
        v.op,
        (
            arith.AddPtrOp,
            arith.HintOp,
            arith.BitcastOp,
            tile.SplatOp,
            tile.BroadcastOp,
            tile.ExpandDimsOp,
        ),
    ):
        v = v.op.operands[0]
    return v


def may_fuse(lo: Lowering, load: Value, address: Value | None) -> bool:
    """Whether a load may run in the loop that stores to `address`: at the same addresses, or through another argument
    of the kernel, on an assumption that the launch checks."""
    op = load.op
    if not isinstance(op, memory.LoadOp) or address is None:
        return False
    if op.ptr is address:
        return apply("load-fusion", op)
    state = lo.state
    a, b = (state.arguments.get(argument_of(x)) for x in (op.ptr, address))
    if state.overlap or a is None or b is None or a == b or not apply("load-fusion", op):
        return False
    pair = (min(a, b), max(a, b))
    same = int(_same_offsets(lo, op.ptr, address))
    state.assumed_disjoint[pair] = min(same, state.assumed_disjoint.get(pair, 1))
    return True


def argument_of(v: Value) -> Value:
    """The argument that a pointer is computed from, through loops that carry it."""
    for _ in range(16):
        v = base_of(v)
        loop = v.owner.parent if isinstance(v.owner, Block) else None
        if not isinstance(loop, ForOp) or v.index == 0:
            return v
        carried = base_of(loop.body.terminator.operands[v.index - 1])
        if carried is not v:
            return v
        v = loop.inits[v.index - 1]
    return v


def _same_offsets(lo: Lowering, a: Value, b: Value) -> bool:
    """Whether two pointers computed from different arguments are at the same distance from them."""
    x, y = a.op, b.op
    if x is None or y is None:
        known = a in lo.state.arguments and b in lo.state.arguments
        return known and a.type.element_ty == b.type.element_ty
    if isinstance(x, arith.AddPtrOp) and isinstance(y, arith.AddPtrOp):
        return x.offset is y.offset and _same_offsets(lo, x.ptr, y.ptr)
    if type(x) is not type(y) or not isinstance(x, _STEPS):
        return False
    return shape_of(a.type) == shape_of(b.type) and _same_offsets(lo, x.operands[0], y.operands[0])


# From a pointer to a tile of pointers.
_STEPS = (arith.HintOp, tile.SplatOp, tile.BroadcastOp, tile.ExpandDimsOp)
