"""Lowers atomic read-modify-write and compare-and-swap on global memory.

Each element is updated once, however many threads hold it; a scalar is updated once a program. Where the old value is
used, copies of it travel through shared memory. A scalar atomic that releases waits for the program's other threads
first, so that it publishes their writes as well. One fence orders all elements of a tile. Additions whose old value
nothing reads are emitted as vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies, groups, layout_of, registers, vector_length
from tessera.backends.gpu.packing import as_bits, from_bits
from tessera.backends.gpu.shared import load_elements, store_elements
from tessera.backends.gpu.target import Order, Place
from tessera.backends.gpu.types import llvm_type
from tessera.backends.gpu.writer import split
from tessera.dtypes import float32, float64, int32, int64, uint32, uint64
from tessera.errors import CompilationError
from tessera.ir import ElementType, elem_of
from tessera.layout.linear import LinearLayout
from tessera.ops import RELEASES, AtomicCasOp, AtomicRmwOp

ACQUIRES = ("acquire", "acq_rel")


@lowers(AtomicRmwOp)
def _rmw(fl: FunctionLowering, op: AtomicRmwOp) -> None:
    elem = elem_of(op.value.type)
    _check(op, elem)
    layout, pointers = layout_of(op.ptr), fl.get(op.ptr)
    count = len(pointers)
    masks, values = registers(fl, op.mask, count), registers(fl, op.value, count)
    owner = fl.owner_mask(layout)
    used = bool(op.result.uses)
    if layout is None:
        if op.sem in RELEASES:
            fl.target.barrier(fl.w)
    elif op.sem in RELEASES:
        fl.target.memory_fence(fl.w, op.scope)
    vec = 1 if used else _vector(fl, op, elem)
    old = [""] * count
    for i in groups(layout, count, vec):
        mask = fl.w.and_("i1", masks[i], owner)
        if vec > 1:
            _add_vector(fl, op, elem, pointers[i], values[i : i + vec], mask)
        else:
            old[i] = _one(fl, op, elem, pointers[i], values[i], mask, used)
    if layout is not None and op.sem in ACQUIRES:
        fl.target.memory_fence(fl.w, op.scope)
    if used:
        fl.set(op.result, _spread(fl, op, layout, old))


def _vector(fl: FunctionLowering, op: AtomicRmwOp, elem: ElementType) -> int:
    """Return how many elements one instruction takes."""
    most = fl.target.atomic_width(op.kind, elem)
    return min(most, vector_length(fl.axis, op.ptr, op.mask, elem)) if most > 1 else 1


def _add_vector(
    fl: FunctionLowering,
    op: AtomicRmwOp,
    elem: ElementType,
    pointer: str,
    values: Sequence[str],
    mask: str,
) -> None:
    at = split(fl.w.offsets, pointer)
    given = values if elem is float32 else [as_bits(fl, elem, v) for v in values]
    fl.target.atomic_add_vector(fl.w, elem, at, given, mask, op.scope)


def _check(op: AtomicRmwOp, elem: ElementType) -> None:
    if elem.bits < 16 or (elem.bits == 16 and not (op.kind == "add" and elem.is_floating())):
        raise CompilationError(f"atomic_{op.kind} does not support {elem}", loc=op.loc)


def _one(
    fl: FunctionLowering,
    op: AtomicRmwOp,
    elem: ElementType,
    pointer: str,
    value: str,
    mask: str,
    used: bool,
) -> str:
    where = split(fl.w.offsets, pointer)
    if elem.is_floating() and op.kind in ("max", "min"):
        return _float_extreme(fl, op, elem, where, value, mask, used)
    if not fl.target.has_atomic(op.kind, elem):
        return _by_exchange(fl, op, elem, where, value, mask)
    native = op.kind == "add" and elem in (float32, float64)
    given = value if native else as_bits(fl, elem, value)
    got = fl.target.atomic(fl.w, op.kind, elem, where, given, mask, _order(op), used)
    return got if native or not got else from_bits(fl, elem, got)


def _order(op: AtomicRmwOp) -> Order:
    """Return the order of one element; a tile's elements are relaxed, and fences order them."""
    return (op.sem if layout_of(op.ptr) is None else "relaxed", op.scope)


def _by_exchange(
    fl: FunctionLowering, op: AtomicRmwOp, elem: ElementType, where: Place, value: str, mask: str
) -> str:
    """Add 16-bit floats by compare and swap: retry with the value last seen until no other thread intervened."""
    w, t = fl.w, llvm_type(elem)
    before, loop, after = w.block, w.label("retry"), w.label("done")
    w.branch_if(mask, loop, after)
    with w.scope():
        w.start(loop)
        seen, got = w.fresh(), w.fresh()
        w.lines.append(f"  {seen} = phi i16 [ 0, %{before} ], [ {got}, %{loop} ]")
        new = w.emit(f"fadd {t} {w.emit(f'bitcast i16 {seen} to {t}')}, {value}")
        bits = w.emit(f"bitcast {t} {new} to i16")
        found = fl.target.atomic_cas(w, 16, where, seen, bits, "true", _order(op))
        w.lines.append(f"  {got} = add i16 {found}, 0")
        w.branch_if(w.emit(f"icmp eq i16 {got}, {seen}"), after, loop)
    w.start(after)
    old = w.emit(f"phi i16 [ 0, %{before} ], [ {got}, %{loop} ]")
    return from_bits(fl, elem, old)


def _float_extreme(
    fl: FunctionLowering,
    op: AtomicRmwOp,
    elem: ElementType,
    where: Place,
    value: str,
    mask: str,
    used: bool,
) -> str:
    """Emit an atomic min or max of floats as two integer atomics on their bits. Non-negative values order as signed
    integers do, and negative ones in the reverse order of unsigned integers."""
    w, signed, unsigned = fl.w, *_integers(elem)
    bits = as_bits(fl, elem, value)
    t = llvm_type(signed)
    minus = w.pure(f"icmp slt {t} {bits}, 0")
    plus = w.pure(f"xor i1 {minus}, true")
    opposite = "min" if op.kind == "max" else "max"
    old = [
        fl.target.atomic(w, kind, as_type, where, bits, w.and_("i1", mask, side), _order(op), used)
        for kind, as_type, side in ((op.kind, signed, plus), (opposite, unsigned, minus))
    ]
    if not used:
        return ""
    return from_bits(fl, elem, w.pure(f"select i1 {minus}, {t} {old[1]}, {t} {old[0]}"))


def _integers(elem: ElementType) -> tuple[Any, Any]:
    return (int32, uint32) if elem is float32 else (int64, uint64)


@lowers(AtomicCasOp)
def _cas(fl: FunctionLowering, op: AtomicCasOp) -> None:
    elem = elem_of(op.value.type)
    if elem.bits < 16:
        raise CompilationError(f"atomic_cas does not support {elem}", loc=op.loc)
    layout, pointers = layout_of(op.ptr), fl.get(op.ptr)
    count = len(pointers)
    expected, values = registers(fl, op.expected, count), registers(fl, op.value, count)
    owner = fl.owner_mask(layout)
    if layout is None and op.sem in RELEASES:
        fl.target.barrier(fl.w)
    old = [""] * count
    for i in groups(layout, count, 1):
        at = split(fl.w.offsets, pointers[i])
        old_bits, new_bits = as_bits(fl, elem, expected[i]), as_bits(fl, elem, values[i])
        got = fl.target.atomic_cas(
            fl.w, elem.bits, at, old_bits, new_bits, owner, (op.sem, op.scope)
        )
        old[i] = from_bits(fl, elem, got)
    if op.result.uses:
        fl.set(op.result, _spread(fl, op, layout, old))


def _spread(
    fl: FunctionLowering,
    op: AtomicRmwOp | AtomicCasOp,
    layout: LinearLayout | None,
    old: Sequence[str],
) -> list[str]:
    """Return the old values in all threads that hold copies of the elements."""
    elem, start = elem_of(op.result.type), op.attrs.get("scratch", 0)
    owner = fl.owner_mask(layout)
    if layout is None:
        (address,) = fl.shared_addresses(start, (), (), ())
        store_elements(fl, elem, address, [old[0]], owner)
        fl.target.barrier(fl.w)
        return load_elements(fl, elem, address, 1)
    if owner == "true":
        return copies(layout, old)
    size = elem.storage_bytes
    columns = [[c * size for c in layout.columns(d)] for d in ("register", "lane", "warp")]
    addresses = fl.shared_addresses(start, *columns)
    live = groups(layout, len(old), 1)
    for i in live:
        store_elements(fl, elem, addresses[i], [old[i]], owner)
    fl.target.barrier(fl.w)
    new = list(old)
    for i in live:
        (new[i],) = load_elements(fl, elem, addresses[i], 1)
    return copies(layout, new)
