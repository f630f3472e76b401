"""Tells which loads may run in the loop of a store."""

from __future__ import annotations

from tessera.backends.cpu.lowering import Lowering
from tessera.ir import Value, shape_of
from tessera.ir.applications import apply
from tessera.ops import arith, memory, tile


def may_fuse(lo: Lowering, load: Value, address: Value, repeats: bool = False) -> bool:
    """Whether a load may run in the loop of a write to `address`: it uses the same addresses, or another argument of
    the kernel, which the launch checks not to alias. `repeats`: the loop may write an element several times, and then
    only another argument will do."""
    op = load.op
    if not isinstance(op, memory.LoadOp):
        return False
    if op.ptr is address and not repeats:
        return apply("load-fusion", op)
    known = _arguments(lo, op.ptr, address)
    if known is None or not apply("load-fusion", op):
        return False
    _assume(lo, known, not repeats and _same_offsets(lo, op.ptr, address))
    return True


def apart(lo: Lowering, a: Value, b: Value) -> bool:
    """Whether one loop may write to both `a` and `b`, in whatever order: they point into arguments of the kernel that
    the launch checks not to alias."""
    known = _arguments(lo, a, b)
    if known is not None:
        _assume(lo, known, False)
    return known is not None


def _arguments(lo: Lowering, x: Value, y: Value) -> tuple[int, int] | None:
    """Return the positions of the two arguments that pointers point into; None if it is one, or not known, or if memory
    may overlap."""
    a, b = (lo.state.position(v) for v in (x, y))
    return None if lo.state.overlap or a is None or b is None or a == b else (min(a, b), max(a, b))


def _assume(lo: Lowering, pair: tuple[int, int], same: bool) -> None:
    """Let the launch check that two arguments do not overlap, or that they do not unless they are the `same`."""
    known = lo.state.assumed_disjoint
    known[pair] = min(int(same), known.get(pair, 1))


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
