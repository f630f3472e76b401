"""Packs elements into the registers that memory and shuffle instructions move, and unpacks them."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.gpu.lowering import FunctionLowering
from tessera.backends.gpu.target import PackedShape
from tessera.backends.gpu.types import llvm_type, memory_bits
from tessera.dtypes import int1, int8, pointer_type
from tessera.ir import ElementType

BYTES = 4  # of a 32-bit register


def packed_shape(elem: ElementType, vec: int) -> PackedShape:
    """Choose the registers that move `vec` elements: of 32 bits, a single narrower one if they do not fill it, or of
    64 bits for 64-bit elements."""
    bits = memory_bits(elem)
    if bits >= 32:
        t = llvm_type(elem)
        return PackedShape(t if t in ("float", "double") else f"i{bits}", bits, vec, 1)
    total = bits * vec
    if total < 32:
        return PackedShape(f"i{total}", total, 1, vec)
    return PackedShape("i32", 32, total // 32, 32 // bits)


def pack(
    fl: FunctionLowering, elem: ElementType, names: Sequence[str], shape: PackedShape
) -> list[str]:
    """Return the elements packed into registers."""
    if elem is int1:
        names = [fl.w.pure(f"zext i1 {x} to i8") for x in names]
        elem = int8
    n = shape.per_reg
    return [_pack_one(fl, elem, names[i : i + n], shape) for i in range(0, len(names), n)]


def _pack_one(
    fl: FunctionLowering, elem: ElementType, names: Sequence[str], shape: PackedShape
) -> str:
    w, t = fl.w, llvm_type(elem)
    if len(names) == 1:
        return _cast(fl, elem, names[0], shape.type)
    found = w.packed.get(tuple(names))
    if found is not None:
        return found
    if len(names) == 2 and t in ("half", "bfloat"):
        return w.pure(f"bitcast <2 x {t}> {w.pair(t, *names)} to {shape.type}")
    vector = "poison"
    kind = f"<{len(names)} x {t}>"
    parts = [w.parts[x] for x in names if x in w.parts]
    sources = list(dict.fromkeys([v for v, _ in parts]))
    if len(parts) == len(names) == BYTES and len(sources) <= 2:  # one permutation of bytes
        mask = ", ".join([f"i32 {i + BYTES * sources.index(v)}" for v, i in parts])
        both = f"{kind} {sources[0]}, {kind} {sources[-1]}"
        return w.pure(
            f"bitcast {kind} {w.pure(f'shufflevector {both}, <4 x i32> <{mask}>')} to i32"
        )
    for i, x in enumerate(names):
        vector = w.pure(f"insertelement {kind} {vector}, {t} {x}, i32 {i}")
    return w.pure(f"bitcast {kind} {vector} to {shape.type}")


def _cast(fl: FunctionLowering, elem: ElementType, name: str, to: str) -> str:
    w, t = fl.w, llvm_type(elem)
    if t == to:
        return name
    if isinstance(elem, pointer_type):
        return w.pure(f"ptrtoint {t} {name} to i64")
    return w.pure(f"bitcast {t} {name} to {to}")


def unpack(
    fl: FunctionLowering, elem: ElementType, regs: Sequence[str], shape: PackedShape
) -> list[str]:
    """Return the elements of packed registers."""
    w, n = fl.w, shape.per_reg
    t = "i8" if elem is int1 else llvm_type(elem)
    result: list[str] = []
    for reg in regs:
        if n == 1:
            result.append(_uncast(fl, elem, reg, shape.type))
            continue
        vector = w.pure(f"bitcast {shape.type} {reg} to <{n} x {t}>")
        if n == 2 and t in ("half", "bfloat"):
            both = w.unpair(t, vector)
            w.packed[both] = reg
            result += both
        else:
            names = [w.pure(f"extractelement <{n} x {t}> {vector}, i32 {i}") for i in range(n)]
            w.packed[tuple(names)] = reg
            if n == BYTES:
                w.parts.update({x: (vector, i) for i, x in enumerate(names)})
            result += names
    return [w.pure(f"icmp ne i8 {x}, 0") for x in result] if elem is int1 else result


def _uncast(fl: FunctionLowering, elem: ElementType, reg: str, have: str) -> str:
    w, t = fl.w, "i8" if elem is int1 else llvm_type(elem)
    if t == have:
        return reg
    if isinstance(elem, pointer_type):
        return w.pure(f"inttoptr i64 {reg} to {t}")
    return w.pure(f"bitcast {have} {reg} to {t}")


def to_reg32(fl: FunctionLowering, elem: ElementType, name: str) -> list[str]:
    """Return one element as 32-bit registers, for shuffles."""
    w, t = fl.w, llvm_type(elem)
    if t == "i32":
        return [name]
    if elem.bits < 32:
        if t in ("half", "bfloat"):
            name = w.pure(f"bitcast {t} {name} to i16")
        return [w.pure(f"zext i{elem.bits} {name} to i32")]
    if elem.bits == 32:
        return [w.pure(f"bitcast {t} {name} to i32")]
    if t != "i64":
        name = _cast(fl, elem, name, "i64")
    return [
        w.pure(f"trunc i64 {name} to i32"),
        w.pure(f"trunc i64 {w.pure(f'lshr i64 {name}, 32')} to i32"),
    ]


def from_reg32(fl: FunctionLowering, elem: ElementType, regs: Sequence[str]) -> str:
    """Return an element from the 32-bit registers that hold it: the low bits of one, or both halves."""
    w, t = fl.w, llvm_type(elem)
    if t == "i32":
        return regs[0]
    if elem.bits < 32:
        narrow = w.pure(f"trunc i32 {regs[0]} to i{elem.bits}")
        return w.pure(f"bitcast i16 {narrow} to {t}") if t in ("half", "bfloat") else narrow
    if elem.bits == 32:
        return w.pure(f"bitcast i32 {regs[0]} to {t}")
    low = w.pure(f"zext i32 {regs[0]} to i64")
    high = w.pure(f"shl i64 {w.pure(f'zext i32 {regs[1]} to i64')}, 32")
    whole = w.pure(f"or disjoint i64 {low}, {high}")
    if t == "i64":
        return whole
    return (
        w.pure(f"inttoptr i64 {whole} to {t}")
        if t.startswith("ptr")
        else w.pure(f"bitcast i64 {whole} to {t}")
    )


def as_bits(fl: FunctionLowering, elem: ElementType, name: str) -> str:
    """Return the element as an integer of its width in memory."""
    if elem is int1:
        return fl.w.pure(f"zext i1 {name} to i8")
    return _cast(fl, elem, name, f"i{elem.bits}")


def from_bits(fl: FunctionLowering, elem: ElementType, name: str) -> str:
    if elem is int1:
        return fl.w.pure(f"icmp ne i8 {name}, 0")
    return _uncast(fl, elem, name, f"i{elem.bits}")
