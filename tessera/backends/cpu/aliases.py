"""Tells which loads may run in the loop of a store."""

from __future__ import annotations

from tessera.backends.cpu.lowering import Lowering
from tessera.ir import Value, shape_of
from tessera.ir.applications import apply
from tessera.ops import arith, memory, tile


def may_fuse(lo: Lowering, load: Value, address: Value | None, repeats: bool = False) -> bool:
    """Whether a load may run in the loop of a write to `address`: it uses the same addresses, or another argument of
    the kernel, which the launch checks not to alias. `repeats`: the loop may write an element several times, and then
    only another argument will do."""
    op = load.op
    if not isinstance(op, memory.LoadOp) or address is None:
        return False
    if op.ptr is address and not repeats:
        return apply("load-fusion", op)
    state = lo.state
    a, b = (state.position(x) for x in (op.ptr, address))
    if state.overlap or a is None or b is None or a == b or not apply("load-fusion", op):
        return False
    pair = (min(a, b), max(a, b))
    same = int(not repeats and _same_offsets(lo, op.ptr, address))
    state.assumed_disjoint[pair] = min(same, state.assumed_disjoint.get(pair, 1))
    return True


def _same_offsets(lo: Lowering, a: Value, b: Value) -> bool:
    """Whether two pointers computed from different arguments have the same offset from them."""
    x, y = a.op, b.op
    if x is None or y is None:
        known = a in lo.state.arguments and b in lo.state.arguments
        return known and a.type.element_ty == b.type.element_ty
    if isinstance(x, arith.AddPtrOp) and isinstance(y, arith.AddPtrOp):
        return x.offset is y.offset and _same_offsets(lo, x.ptr, y.ptr)
    if type(x) is not type(y) or not isinstance(x, _STEPS):
        return False
    return shape_of(a.type) == shape_of(b.type) and _same_offsets(lo, x.operands[0], y.operands[0])


# The ops that make a tile of pointers from a pointer.
_STEPS = (arith.HintOp, tile.SplatOp, tile.BroadcastOp, tile.ExpandDimsOp)
