"""Computes which bytes an access may touch, as code that the host evaluates before a launch (analysis/intervals.py)."""

from __future__ import annotations

from tessera.analysis.host_code import WIDEST, HostCode
from tessera.analysis.polynomials import Poly
from tessera.analysis.strided_views import Side, StridedView, StridedViews
from tessera.dtypes import pointer_type
from tessera.ir import TileType, Value, elem_of
from tessera.ir.applications import Declined
from tessera.ops import AtomicRmwOp, LoadOp, StoreOp


def memory_range(views: StridedViews, access: LoadOp | StoreOp | AtomicRmwOp) -> int | None:
    """Return the instruction whose interval has the addresses of all bytes accessed; None if the host cannot tell."""
    code = views.code
    if not isinstance(access.ptr.type, TileType):
        return _of_scalar(views, access.ptr)
    if isinstance(access, AtomicRmwOp):
        return None
    try:
        return range_of_view(code, views.of(access), _bytes(access.ptr))
    except Declined:
        return None


def range_of_view(code: HostCode, view: StridedView, size: int) -> int | None:
    """Return the instruction whose interval has the addresses of a strided view's bytes; an element has `size`
    bytes."""
    total = code.value(view.base)
    for side in (*view.sides, *view.further):
        if total is None or not side.stride.terms:
            continue
        stride, at = code.poly(side.stride), _coordinates(code, side)
        if stride is None or at is None:
            return None
        moved = code.add(
            "mul", code.add("mul", stride, at, WIDEST), code.add("const", size), WIDEST
        )
        total = code.add("add", total, moved, WIDEST)
    return _whole(code, total, size) if total is not None else None


def _whole(code: HostCode, first: int, size: int) -> int:
    """Extend the address of an element's first byte to all its bytes."""
    others = code.add("hull", code.add("const", 0), code.add("const", size - 1))
    return code.add("add", first, others, WIDEST)


def _coordinates(code: HostCode, side: Side) -> int | None:
    """Return the instruction for the coordinates along a side that lie in the array."""
    zero = code.add("const", 0)
    last = code.poly(side.bound - Poly.constant(1)) if side.bound is not None else None
    if side.period is not None:
        end = code.poly(side.period - Poly.constant(1))
        return code.add("hull", zero, end) if end is not None else None
    at = code.poly(side.start)
    if at is None or (side.bound is not None and last is None):
        return None
    at = code.add("add", at, code.add("hull", zero, code.add("const", side.extent - 1)), WIDEST)
    at = code.add("most", at, last) if last is not None else at
    return code.add("least", at, zero) if side.from_zero else at


def _of_scalar(views: StridedViews, ptr: Value) -> int | None:
    p = views.polynomials.of(ptr)
    bases = [a for a in p.atoms if isinstance(a, Value) and _is_argument(views, a)] if p else []
    if p is None or len(bases) != 1:
        return None
    base, code = bases[0], views.code
    offset = p - Poly.atom(base)
    start, moved = code.value(base), code.poly(offset)
    if start is None or moved is None or base in offset.atoms:
        return None
    size = _bytes(ptr)
    moved = code.add("mul", moved, code.add("const", size), WIDEST)
    return _whole(code, code.add("add", start, moved, WIDEST), size)


def _is_argument(views: StridedViews, v: Value) -> bool:
    return isinstance(v.type, pointer_type) and v.owner is views.func.body


def _bytes(ptr: Value) -> int:
    return elem_of(ptr.type).element_ty.storage_bytes
