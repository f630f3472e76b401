"""Emits vector loads and stores: contiguous, through a shuffle, or gathered, as the affine form of the address allows.

Masked-off lanes never access memory: full vectors use masked intrinsics, scalars and, on most machines, lanes at
addresses of their own use a dummy on the stack.
"""

from __future__ import annotations

from typing import Any

from tessera.backends.cpu.affine import constant
from tessera.backends.cpu.lanes import Lanes
from tessera.backends.cpu.llvm_text import memory_type, scalar_type
from tessera.backends.cpu.lowering import Buffer, BufferAccess, Lowering, evaluates, make
from tessera.backends.cpu.values import Coord, Pattern, Point, Val, is_unit
from tessera.backends.elements.literals import vector_type
from tessera.dtypes import int1, pointer_type
from tessera.ir import ElementType, elem_of
from tessera.ir.applications import apply
from tessera.ops import memory

ALL_LANES = "splat (i1 true)"
_MOST_CHUNKS = 2  # vectors read at once for a pattern that skips elements


# --- int1 is a byte in memory -------------------------------------------------------------------------------
def unpack(x: Lanes, elem: ElementType, text: str) -> str:
    """Return a loaded text as a value."""
    return x.cmp("icmp ne", "i8", text, x.int("i8", 0)) if elem is int1 else text


def pack(x: Lanes, elem: ElementType, text: str) -> str:
    return x.convert("zext", "i1", text, "i8") if elem is int1 else text


# --- loads --------------------------------------------------------------------------------------------------
def load_at(
    lo: Lowering,
    address: Val,
    elem: ElementType,
    mask: Val | None,
    other: Val | None,
    version: int,
    align: int = 0,
) -> Val:
    """Load the element(s) at `address`; `other` (zero without one) where `mask` is false."""
    if mask is not None and mask.const is not None:
        if not mask.const:
            return other if other is not None else constant(elem, 0)
        mask = None
    n = max(address.lanes, mask.lanes if mask is not None else 1)
    mask = _within(lo, mask, n)
    if n == 1:
        return make(elem, 1, _load_scalar(lo, address, elem, mask, other, version))
    align = align or elem.storage_bytes
    if address.affine and address.lanes == n and not address.step:
        if is_unit(address.pattern):
            first = lo.lane0(address)
            return make(elem, n, _load_vector(lo, first, elem, n, mask, other, version, align))
        if mask is None and address.pattern is not None:
            text = _load_pattern(lo, address, elem, n, version)
            if text:
                return make(elem, n, text)
    if mask is None and address.lanes == 1:
        return make(elem, 1, _load_scalar(lo, address, elem, None, None, version))
    mask_text = lo.text(mask, n) if mask is not None else None
    return _gathered(lo, elem, lo.text(address, n), n, mask_text, other, version)


def _within(lo: Lowering, mask: Val | None, lanes: int) -> Val | None:
    """Return `mask`, restricted to the lanes that belong to the tile."""
    part = lo.inside
    if part is None or lanes != part.lanes or mask is None:
        return part if part is not None and lanes == part.lanes else mask
    return Val(int1, lanes, lo.lanes(lanes).op("and", "i1", lo.text(mask, lanes), part.text))


def _zero(elem: ElementType, n: int) -> str:
    if n > 1:
        return "zeroinitializer"
    return (
        "null"
        if isinstance(elem, pointer_type)
        else {"float": "0.0", "double": "0.0"}.get(memory_type(elem), "0")
    )


def _other(lo: Lowering, elem: ElementType, other: Val | None, n: int) -> str:
    return _zero(elem, n) if other is None else pack(lo.lanes(n), elem, lo.text(other, n))


def _load_vector(
    lo: Lowering,
    ptr: str,
    elem: ElementType,
    n: int,
    mask: Val | None,
    other: Val | None,
    version: int,
    align: int,
) -> str:
    x, m = lo.lanes(n), memory_type(elem)
    ty = vector_type(m, n)
    if mask is None:
        raw = lo.em.read(f"load {ty}, ptr {ptr}, align {align}", version)
    else:
        bits, keep = lo.text(mask, n), _other(lo, elem, other, n)
        loaded: list[str] = []
        for first, size, place in _pieces(lo, elem, n, ptr):
            name = f"llvm.masked.load.{lo.lanes(size).suffix(m)}.p0"
            piece, some = vector_type(m, size), vector_type("i1", size)
            lo.em.declare(piece, name, "ptr", some, piece)
            where = f"ptr align {elem.storage_bytes if first else align} {place}"
            which, rest = (
                _part(lo, e, text, n, first, size) for e, text in (("i1", bits), (m, keep))
            )
            args = f"{where}, {some} {which}, {piece} {rest}"
            loaded.append(lo.em.read(f"call {piece} @{name}({args})", version))
        raw = lo.em.concat(m, loaded, n // len(loaded))
    return unpack(x, elem, raw)


def _pieces(lo: Lowering, elem: ElementType, n: int, ptr: str) -> list[tuple[int, int, str]]:
    """Return first lane, lanes and address of each register through which `n` masked elements at `ptr` are moved."""
    size = min(n, lo.facts.vector_bits // (8 * elem.storage_bytes))
    m = memory_type(elem)
    return [
        (at, size, ptr if at == 0 else lo.em.op(f"getelementptr {m}, ptr {ptr}, i64 {at}"))
        for at in range(0, n, size)
    ]


def _part(lo: Lowering, element: str, text: str, n: int, first: int, size: int) -> str:
    """Return `size` of the `n` lanes of a vector, starting at lane `first`."""
    if size == n or text in ("zeroinitializer", "poison") or text.startswith("splat"):
        return text
    part = lo.em.shuffle(element, text, "poison", n, list(range(first, first + size)))
    return _opaque(lo, part, size) if element == "i1" and lo.facts.loses_masks else part


def _opaque(lo: Lowering, bits: str, n: int) -> str:
    """Return the mask `bits` in a form that hides from LLVM where it is false."""
    lanes = vector_type(f"i{lo.facts.vector_bits // n}", n)
    wide = lo.em.op(f"sext {vector_type('i1', n)} {bits} to {lanes}")
    hidden = lo.em.op(f'call {lanes} asm "", "=x,0"({lanes} {wide})')
    return lo.em.op(f"icmp slt {lanes} {hidden}, zeroinitializer")


def _load_scalar(
    lo: Lowering, address: Val, elem: ElementType, mask: Val | None, other: Val | None, version: int
) -> str:
    x, m, ptr = lo.lanes(1), memory_type(elem), lo.text(address, 1)
    align = elem.storage_bytes
    if mask is None:
        return unpack(x, elem, lo.em.read(f"load {m}, ptr {ptr}, align {align}", version))
    bit = lo.text(mask, 1)
    safe = x.select("ptr", bit, ptr, dummy(lo))
    raw = lo.em.read(f"load {m}, ptr {safe}, align {align}", version)
    return unpack(x, elem, x.select(m, bit, raw, _other(lo, elem, other, 1)))


def dummy(lo: Lowering) -> str:
    """Return the address of 64 bytes that any masked-off scalar access may use."""
    if not lo.dummy:
        lo.dummy = lo.em.alloca("i8", 64)
    return lo.dummy


def _load_pattern(lo: Lowering, address: Val, elem: ElementType, n: int, version: int) -> str:
    """Load a few whole vectors and shuffle them, for lanes at nearby addresses; return "" for others."""
    pattern: Pattern = address.pattern or ()
    low, high = min(pattern), max(pattern)
    span = high - low + 1
    size = min(n, 1 << (span.bit_length() - 1))
    starts = [low] if span <= size else [low, high - size + 1]
    if span > 2 * size or len(starts) > _MOST_CHUNKS:
        return ""
    x, m = lo.lanes(n), memory_type(elem)
    ty = vector_type(m, size)
    first = lo.lane0(address)
    parts: list[str] = []
    for s in starts:
        ptr = first if s == 0 else lo.em.op(f"getelementptr {m}, ptr {first}, i64 {s}")
        parts.append(lo.em.read(f"load {ty}, ptr {ptr}, align {elem.storage_bytes}", version))
    if size == 1:
        parts = [lo.em.splat(m, p, 2) for p in parts]
        order = [0 if p == low else 2 for p in pattern]
        return unpack(x, elem, lo.em.shuffle(m, parts[0], parts[-1], 2, order))
    order = [p - low if p - low < size else size + p - starts[-1] for p in pattern]
    return unpack(x, elem, lo.em.shuffle(m, parts[0], parts[-1], size, order))


def _gathered(
    lo: Lowering,
    elem: ElementType,
    address: str,
    n: int,
    mask: str | None,
    other: Val | None,
    version: int,
) -> Val:
    """Load each lane separately; `address`: a vector of pointers. Lanes that `mask` leaves out read what is not used on
    machines where LLVM would make a branch for each lane."""
    lo.gathers += 1
    x, m = lo.lanes(n), memory_type(elem)
    if n == 1:
        raw = lo.em.read(f"load {m}, ptr {address}, align {elem.storage_bytes}", version)
        return make(elem, 1, unpack(x, elem, raw))
    ty, bits = vector_type(m, n), vector_type("i1", n)
    name = f"llvm.masked.gather.{x.suffix(m)}.v{n}p0"
    lo.em.declare(ty, name, f"<{n} x ptr>", bits, ty)
    keep = _other(lo, elem, other, n) if mask is not None else "poison"
    safe, which = _readable(lo, address, mask, n)
    rest = keep if which == mask else "poison"
    args = (
        f"<{n} x ptr> align {elem.storage_bytes} {safe}, {bits} {which or ALL_LANES}, {ty} {rest}"
    )
    raw = lo.em.read(f"call {ty} @{name}({args})", version)
    if mask is not None and which is None:
        raw = x.select(m, mask, raw, keep)
    return make(elem, n, unpack(x, elem, raw))


def _readable(lo: Lowering, address: str, mask: str | None, n: int) -> tuple[str, str | None]:
    """Return addresses of `n` lanes, and which of these to access. Where there is no instruction that accesses some
    lanes, the others get an address that any access may use, and all are accessed."""
    if mask is None or lo.facts.masked_lanes or not apply("branchless-lanes"):
        return address, mask
    unused = lo.em.splat("ptr", dummy(lo), n)
    return lo.lanes(n).select("ptr", mask, address, unused), None


@evaluates(memory.LoadOp)
def _load(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    mask = lo.value(op.mask, at) if op.mask is not None else None
    other = (
        lo.value(op.other, at)
        if op.other is not None and (mask is None or mask.const is not True)
        else None
    )
    return load_at(lo, lo.value(op.ptr, at), elem_of(op.result.type), mask, other, lo.em.memory)


# --- stores -------------------------------------------------------------------------------------------------
def store_at(
    lo: Lowering, address: Val, elem: ElementType, x: Val, mask: Val | None, n: int, align: int = 0,
    past: bool = False,
) -> None:  # fmt: skip
    """Write the element(s) `x` where `mask` is true; `n`: lanes of the enclosing loop. `past`: whether whole vectors,
    which are known to be aligned then, bypass the caches."""
    if mask is not None and mask.const is not None:
        if not mask.const:
            return
        mask = None
    mask = _within(lo, mask, n)
    if n == 1:
        _store_scalar(lo, address, elem, x, mask)
        return
    align = align or elem.storage_bytes
    lanes, m = lo.lanes(n), memory_type(elem)
    text, ty, bits = pack(lanes, elem, lo.text(x, n)), vector_type(m, n), vector_type("i1", n)
    mask_text = lo.text(mask, n) if mask is not None else ""
    if address.affine and is_unit(address.pattern) and not address.step and address.lanes == n:
        ptr = lo.lane0(address)
        plain = f"store {ty} {text}, ptr {ptr}, align {align}"
        if not mask_text:
            stream = (
                f"store {ty} {text}, ptr {ptr}, align {n * elem.storage_bytes}, !nontemporal !1"
            )
            lo.em.stmt(stream if past else plain)
            return

        def masked() -> None:
            for first, size, place in _pieces(lo, elem, n, ptr):
                which = _part(lo, "i1", mask_text, n, first, size)
                piece = f"{vector_type(m, size)} {_part(lo, m, text, n, first, size)}"
                where = f"ptr align {elem.storage_bytes if first else align} {place}"
                name = f"llvm.masked.store.{lo.lanes(size).suffix(m)}.p0"
                lo.em.call_here("void", name, piece, where, f"{vector_type('i1', size)} {which}")

        if lo.facts.masked_stores or not apply("whole-stores"):
            masked()
            return
        whole = lo.em.call("i1", f"llvm.vector.reduce.and.v{n}i1", f"{bits} {mask_text}")
        lo.em.choose(whole, lambda: lo.em.stmt(plain), masked)
        return
    name = f"llvm.masked.scatter.{lanes.suffix(m)}.v{n}p0"
    safe, which = _readable(lo, lo.text(address, n), mask_text or None, n)
    where = f"<{n} x ptr> align {elem.storage_bytes} {safe}"
    lo.em.call_here("void", name, f"{ty} {text}", where, f"{bits} {which or ALL_LANES}")


def _store_scalar(lo: Lowering, address: Val, elem: ElementType, x: Val, mask: Val | None) -> None:
    m, ptr = memory_type(elem), lo.text(address, 1)
    text = pack(lo.lanes(1), elem, lo.text(x, 1))
    if mask is not None:
        ptr = lo.lanes(1).select("ptr", lo.text(mask, 1), ptr, dummy(lo))
    lo.em.stmt(f"store {m} {text}, ptr {ptr}, align {elem.storage_bytes}")


# --- tile buffers ------------------------------------------------------------------------------------------
def buffer_address(lo: Lowering, buffer: Buffer, at: Point) -> tuple[Val, int]:
    """Return (address, known alignment in bytes) of the elements at a point."""
    linear = Coord(buffer.offset)
    for c, stride in zip(at.coords, buffer.strides, strict=True):
        linear = linear.plus(c.times(stride))
    terms = lo.term_texts(linear)
    if linear.base:
        terms = (*terms, str(linear.base))
    n = at.lanes if linear.pattern is not None else 1
    size = buffer.elem.storage_bytes
    known = max(size, min(64, lo.coord_align(Coord(linear.base, linear.terms)) * size))
    return Val(pointer_type(buffer.elem), n, "", True, buffer.ptr, terms, linear.pattern), known


def from_buffer(lo: Lowering, buffer: Buffer, at: Point) -> Val:
    address, align = buffer_address(lo, buffer, at)
    if 1 < buffer.width < address.lanes and is_unit(address.pattern):
        return _in_pieces(lo, buffer, at)
    return load_at(lo, address, buffer.elem, None, None, buffer.version, align)


def _in_pieces(lo: Lowering, buffer: Buffer, at: Point) -> Val:
    """Load a vector as the narrower ones that were written. (From one wide load of a stack slot that was written in
    parts LLVM 22's sroa makes a shuffle that precedes its operands.)"""
    e, width = scalar_type(buffer.elem), buffer.width
    parts: list[str] = []
    for k in range(0, at.lanes, width):
        coords = tuple(
            c if c.pattern is None else Coord(c.base, c.terms, c.pattern[k : k + width], c.extent)
            for c in at.coords
        )
        address, align = buffer_address(lo, buffer, Point(coords, width))
        pattern = address.pattern
        assert pattern is not None
        first = Val(address.type, width, "", True, address.base, (*address.terms, str(pattern[0])),
                    tuple(p - pattern[0] for p in pattern))  # fmt: skip
        align = min(align, width * buffer.elem.storage_bytes)
        parts.append(load_at(lo, first, buffer.elem, None, None, buffer.version, align).text)
    while len(parts) > 1:
        joined = list(range(2 * width))
        parts = [
            lo.em.shuffle(e, a, b, width, joined)
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        width *= 2
    return Val(buffer.elem, at.lanes, parts[0])


def to_buffer(lo: Lowering, buffer: Buffer, at: Point, x: Val) -> None:
    address, align = buffer_address(lo, buffer, at)
    buffer.width = 0 if any(c.terms for c in at.coords) else min(buffer.width, at.lanes)
    store_at(lo, address, buffer.elem, x, None, at.lanes, align)


ACCESS = BufferAccess(from_buffer, to_buffer, _gathered)
__all__ = ["ACCESS", "dummy", "from_buffer", "load_at", "store_at", "to_buffer"]
