"""Lowers global loads and stores to wide, predicated vectors, and lets only one copy of an element be stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.prefixes import prefix_width
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.packing import PackedShape, pack, packed_shape, unpack
from tessera.backends.gpu.target import Access
from tessera.backends.gpu.types import memory_bits
from tessera.backends.gpu.writer import split
from tessera.ir import ElementType, TileType, Value, elem_of
from tessera.layout.linear import LinearLayout
from tessera.ops import memory

VECTOR_BITS = 128  # of the widest access of a thread (PTX, ld.global.v4)


def vector_length(
    facts: AxisAnalysis,
    ptr: Value,
    mask: Value | None,
    elem: ElementType,
    width: Callable[[AxisAnalysis, Value | None, int], int] = AxisAnalysis.mask_width,
) -> int:
    """Return the elements of one access: registers that are adjacent, by the layout and the axis facts of the
    address. `width` says how many elements a mask lets one access move along a dimension."""
    if not isinstance(ptr.type, TileType):
        return 1
    layout, best = ptr.type.layout, 1
    rank = len(ptr.type.shape)
    for axis in range(rank):
        along = layout.contiguity((axis, *[d for d in range(rank) if d != axis]))
        if along > best:
            wide = min(along, facts.vector_width(ptr, axis), width(facts, mask, axis))
            best = max(best, wide)
    return min(best, VECTOR_BITS // memory_bits(elem))


def groups(layout: LinearLayout | None, count: int, vec: int) -> list[int]:
    """Return the first registers of the vectors to access; copies in other registers are left out."""
    if layout is None:
        return [0]
    same = layout.register_representatives()
    return [i for i in range(0, count, vec) if same[i] == i]


def copies(layout: LinearLayout | None, names: Sequence[str]) -> list[str]:
    """Return the full list of registers, from those of the first copies."""
    return list(names) if layout is None else [names[i] for i in layout.register_representatives()]


def layout_of(v: Value) -> LinearLayout | None:
    return v.type.layout if isinstance(v.type, TileType) else None


def registers(
    fl: FunctionLowering, v: Value | None, count: int, default: str = "true"
) -> list[str]:
    if v is None:
        return [default] * count
    names = fl.get(v)
    return names if len(names) == count else names * count


@lowers(memory.LoadOp)
def _load(fl: FunctionLowering, op: memory.LoadOp) -> None:
    elem = elem_of(op.result.type)
    layout, pointers = layout_of(op.ptr), fl.get(op.ptr)
    count = len(pointers)
    vec = vector_length(fl.axis, op.ptr, op.mask, elem)
    if "partial" in op.attrs:
        whole = vector_length(fl.axis, op.ptr, op.mask, elem, prefix_width)
        if whole > vec:
            fl.set(op.result, _load_partly(fl, op, whole))
            return
    masks = registers(fl, op.mask, count)
    others = fl.get(op.other) if op.other is not None else []
    if others and len(others) != count:
        others = others * count
    shape = packed_shape(elem, vec)
    access = Access(shape.bits, shape.count, op.cache, op.eviction, op.volatile)
    result = [""] * count
    # Registers that read one address, as indices of rows do, read it once.
    loaded: dict[tuple[str, ...], list[str]] = {}
    for i in groups(layout, count, vec):
        key = (pointers[i], masks[i], *others[i : i + vec])
        if key in loaded and not op.volatile:
            result[i : i + vec] = loaded[key]
            continue
        other = pack(fl, elem, others[i : i + vec], shape) if others and masks[i] != "true" else []
        regs = _load_regs(fl, pointers[i], access, shape, masks[i], other)
        result[i : i + vec] = loaded[key] = unpack(fl, elem, regs, shape)
    fl.set(op.result, copies(layout, result))


def _load_regs(
    fl: FunctionLowering,
    pointer: str,
    access: Access,
    shape: PackedShape,
    mask: str,
    other: Sequence[str],
) -> list[str]:
    if mask == "false":
        return list(other) or [zero(shape.type)] * shape.count
    at = split(fl.w.offsets, pointer)
    return fl.target.load_global(fl.w, at, access, shape.type, mask, other)


def _load_partly(fl: FunctionLowering, op: memory.LoadOp, vec: int) -> list[str]:
    """Load vectors of which the mask may hold for the first elements alone: whole ones by one access, of others each
    element by itself, zeros where it does not hold."""
    w, elem, pointers = fl.w, elem_of(op.result.type), fl.get(op.ptr)
    masks = registers(fl, op.mask, len(pointers))
    result, one, shape = [""] * len(pointers), packed_shape(elem, 1), packed_shape(elem, vec)
    access = Access(shape.bits, shape.count, op.cache, op.eviction)
    single = Access(one.bits, one.count, op.cache, op.eviction)
    for i in groups(layout_of(op.ptr), len(pointers), vec):
        whole = masks[i + vec - 1]
        rest = w.pure(f"xor i1 {whole}, true")
        regs = _load_regs(fl, pointers[i], access, shape, whole, [])
        for k, x in enumerate(unpack(fl, elem, regs, shape), i):
            alone = w.and_("i1", masks[k], rest)
            kept = pack(fl, elem, [x], one)
            result[k] = unpack(
                fl, elem, _load_regs(fl, pointers[k], single, one, alone, kept), one
            )[0]
    return copies(layout_of(op.ptr), result)


def zero(type: str) -> str:
    return {"float": "0.0", "double": "0.0"}.get(type, "0")


@lowers(memory.StoreOp)
def _store(fl: FunctionLowering, op: memory.StoreOp) -> None:
    w, elem = fl.w, elem_of(op.value.type)
    layout, pointers = layout_of(op.ptr), fl.get(op.ptr)
    count = len(pointers)
    vec = vector_length(fl.axis, op.ptr, op.mask, elem)
    masks, values = registers(fl, op.mask, count), registers(fl, op.value, count)
    shape = packed_shape(elem, vec)
    access = Access(shape.bits, shape.count, op.cache, op.eviction)
    owner = fl.owner_mask(layout)
    for i in groups(layout, count, vec):
        mask = w.and_("i1", masks[i], owner)
        if mask == "false":
            continue
        at = split(w.offsets, pointers[i])
        regs = pack(fl, elem, values[i : i + vec], shape)
        fl.target.store_global(w, at, access, shape.type, regs, mask)
