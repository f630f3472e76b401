"""Emits pointers plus offsets: a base that registers share, and a constant number of bytes for the instruction."""

from __future__ import annotations

from typing import Any

from tessera.backends.gpu.elementwise import map_registers
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.scalar import Scalar
from tessera.backends.gpu.types import llvm_type, memory_bits
from tessera.backends.gpu.writer import is_number, split
from tessera.dtypes import int32, int64
from tessera.ir import ElementType, Op, Value, elem_of
from tessera.ir.applications import apply
from tessera.ops import arith, tile


@lowers(arith.AddPtrOp)
def _addptr(fl: FunctionLowering, op: arith.AddPtrOp) -> None:
    factors = _narrow_factors(fl, op)
    if factors is not None and apply("wide-products", op):
        _scaled_products(fl, op, *factors)
    else:
        map_registers(fl, op, _sum)


def _sum(x: Scalar, op: Any, elem: ElementType, pointer: str, offset: str) -> str:
    """Emit a base that registers share plus a constant number of bytes.

    The constant part of a signed 32-bit offset is moved out of the sign extension: an offset whose sum wraps around is
    not an address inside any array.
    """
    w = x.w
    size = memory_bits(elem.element_ty) // 8
    kind = elem_of(op.offset.type)
    if is_number(offset):
        return w.gep(pointer, "", _extended(kind, int(offset)) * size)
    base, constant = split(w.offsets, offset) if kind.signed or kind.bits == 64 else (offset, 0)
    if kind.bits < 32:
        base, constant = offset, 0
    if kind.bits < 64:
        base = w.pure(f"{'sext' if kind.signed else 'zext'} {llvm_type(kind)} {base} to i64")
    scaled = w.pure(f"shl i64 {base}, {size.bit_length() - 1}") if size > 1 else base
    return w.gep(pointer, scaled, constant * size)


def _extended(kind: Any, value: int) -> int:
    return value if kind.signed else value & ((1 << kind.bits) - 1)


def _narrow_factors(fl: FunctionLowering, op: arith.AddPtrOp) -> tuple[Value, Value] | None:
    """Return the factors, in 32 bits, of an offset that is their product in 64 bits. The first one still fits in 32
    bits when it counts bytes."""
    product = op.offset.op
    if not isinstance(product, arith.MulOp) or product.parent is not op.parent:
        return None
    if elem_of(op.offset.type) is not int64:  # a product of fewer bits wraps
        return None
    a, b = (_narrow(v) for v in product.operands)
    if a is None or b is None:
        return None
    size = memory_bits(elem_of(op.ptr.type).element_ty) // 8
    for first, second in ((a, b), (b, a)):
        reach = fl.ranges.reach(first)
        if reach is not None and reach * size <= 1 << 31:
            return first, second
    return None


def _narrow(v: Value) -> Value | None:
    """Return the int32 that was extended to `v`, of all elements if it is the same for them."""
    op: Op | None = v.op
    if isinstance(op, tile.SplatOp):
        op = op.operands[0].op
    return op.x if isinstance(op, arith.CastOp) and elem_of(op.x.type) is int32 else None


def _scaled_products(fl: FunctionLowering, op: arith.AddPtrOp, a: Value, b: Value) -> None:
    """Emit pointer + (a * size) * b: one instruction multiplies 32-bit numbers to one of 64 bits and adds to it."""
    w, size = fl.w, memory_bits(elem_of(op.ptr.type).element_ty) // 8
    lists = [fl.get(v) for v in (op.ptr, a, b)]
    count = max(map(len, lists))
    result: list[str] = []
    for pointer, x, y in zip(*(names * (count // len(names)) for names in lists), strict=True):
        scaled = w.mul("i32", x, str(size))
        product = fl.target.math(w, "mul_wide", "i32", [scaled, y]) if scaled != "0" else ""
        assert product is not None, "each GPU has it"
        result.append(w.gep(pointer, product, 0))
    fl.set(op.result, result)
