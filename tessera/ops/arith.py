"""Defines element-wise arithmetic on scalars and tiles: operands have one shape, element types the signedness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.dtypes import dtype, float32, float64, int1, int32, pointer_type
from tessera.ir import (
    ElementType,
    Op,
    TileType,
    Type,
    Value,
    attr,
    elem_of,
    operand,
    require,
    shape_of,
    with_elem,
)

__all__ = [
    "COMPARISONS", "DIRECTED", "DIRECTIONS", "ROUNDINGS", "AbsOp", "AddOp", "AddPtrOp", "AndOp", "Atan2Op",
    "Binary", "BitcastOp", "CastOp", "ClzOp", "CmpOp", "ConstOp", "CopySignOp", "DirectedOp", "DivOp",
    "Elementwise", "FloatBinary", "FloatUnary", "FmaOp", "HintOp", "IntBinary", "IsNanOp", "MaxOp", "MinOp",
    "MulHiOp", "MulOp", "NegOp", "NumberUnary", "OrOp", "PopcOp", "PowOp", "RemOp", "RemainderOp", "SelectOp", "ShlOp",
    "ShrOp", "SubOp", "Unary", "XorOp",
]  # fmt: skip

ROUNDINGS = ("rtne", "rtz")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
DIRECTIONS = ("rz", "rd", "ru")
DIRECTED = {
    "add": 2,
    "sub": 2,
    "mul": 2,
    "fma": 3,
    "rcp": 1,
    "sqrt": 1,
}  # numbers of operands


def _layout_of(t: object) -> object:
    return t.layout if isinstance(t, TileType) else None


class Elementwise(Op):
    """Base of ops that work on each element separately; all operands and results have the same shape and layout."""

    def verify(self) -> None:
        first, *others = (v.type for v in (*self.operands, *self.results))
        shape, layout = shape_of(first), _layout_of(first)
        for t in others:
            if shape_of(t) != shape:
                require(
                    False, self, f"operands and results differ in shape: {shape}, {shape_of(t)}"
                )
            require(_layout_of(t) == layout, self, "operands and results differ in layout")


class ConstOp(Op, opcode="const"):
    """A scalar, or a tile filled with it. `value` is an int, float or bool; the result type is given."""

    value: int | float | bool = attr()

    def verify(self) -> None:
        e = elem_of(self.result.type)
        if not (isinstance(e, dtype) and e.is_floating()):
            require(isinstance(self.value, int), self, f"a constant of {e} holds an int")
        if isinstance(e, dtype) and e.is_int():
            low, high = e.get_int_min_value(), e.get_int_max_value()
            require(low <= self.value <= high, self, lambda: f"{self.value} does not fit {e}")


def _all(op: Op, kind: Callable[[Any], bool], what: str) -> None:
    """Require that the elements of all operands are of a kind."""
    ok = all(kind(elem_of(v.type)) for v in op.operands)
    require(ok, op, lambda: f"operands are not {what}: {[v.type.short for v in op.operands]}")


def _is_number(e: ElementType) -> bool:
    return isinstance(e, dtype)


def _is_int(e: ElementType) -> bool:
    return isinstance(e, dtype) and e.is_int()


def _is_float(e: ElementType) -> bool:
    return isinstance(e, dtype) and e.is_floating()


class Binary(Elementwise):
    """Two operands of one number type, and a result of the same type."""

    lhs: Value = operand()
    rhs: Value = operand()

    def infer(self) -> Sequence[Type]:
        return (self.lhs.type,)

    def verify(self) -> None:
        super().verify()
        require(
            self.lhs.type == self.rhs.type,
            self,
            lambda: f"{self.lhs!r} and {self.rhs!r} differ in type",
        )
        _all(self, _is_number, "numbers")


class IntBinary(Binary):
    """A binary operation of integers."""

    def verify(self) -> None:
        super().verify()
        _all(self, _is_int, "integers")


class FloatBinary(Binary):
    """A binary operation of floats."""

    def verify(self) -> None:
        super().verify()
        _all(self, _is_float, "floats")


class AddOp(Binary, opcode="add"):
    """lhs + rhs; integers wrap."""


class SubOp(Binary, opcode="sub"):
    """lhs - rhs; integers wrap."""


class MulOp(Binary, opcode="mul"):
    """lhs * rhs; integers wrap."""


class DivOp(Binary, opcode="div"):
    """Quotient: floats within 2 ulp, correctly rounded if `exact`. Integers truncate toward zero; division by zero
    gives 0, and the smallest number over -1 wraps around to itself."""

    exact: bool = attr(default=False)


class RemOp(Binary, opcode="rem"):
    """Remainder with the sign of the dividend (C's `%` and `fmod`); an integer modulo zero is itself."""


class AndOp(IntBinary, opcode="and"):
    """Bitwise and of integers."""


class OrOp(IntBinary, opcode="or"):
    """Bitwise or of integers."""


class XorOp(IntBinary, opcode="xor"):
    """Bitwise exclusive or of integers."""


class ShlOp(IntBinary, opcode="shl"):
    """lhs << rhs with an unsigned amount: 0 if it is the type's width or more."""


class ShrOp(IntBinary, opcode="shr"):
    """lhs >> rhs: arithmetic if the type is signed, else logical. The amount is unsigned; if it is the type's
    width or more, the result is -1 for negative numbers and 0 for others."""


class MinOp(Binary, opcode="min"):
    """Smaller operand. A NaN loses against a number, or wins when `propagate_nan`."""

    propagate_nan: bool = attr(default=False)


class MaxOp(Binary, opcode="max"):
    """Larger operand. A NaN loses against a number, or wins when `propagate_nan`."""

    propagate_nan: bool = attr(default=False)


class MulHiOp(IntBinary, opcode="mulhi"):
    """High half of the double-width product of integers; its signedness is the type's."""


class PowOp(FloatBinary, opcode="pow"):
    """lhs to the power rhs (floats)."""


class Atan2Op(FloatBinary, opcode="atan2"):
    """Angle of the point (rhs, lhs) (floats)."""


class RemainderOp(FloatBinary, opcode="remainder"):
    """lhs - n rhs for the whole number n nearest to lhs / rhs, ties to even (floats); exact, 0 has the sign of lhs."""


class CopySignOp(FloatBinary, opcode="copysign"):
    """Magnitude of lhs with the sign of rhs (floats)."""


class CmpOp(Elementwise, opcode="cmp"):
    """Compare; the result is int1. Floats compare as ordered, except that `ne` is true on NaN."""

    lhs: Value = operand()
    rhs: Value = operand()
    predicate: str = attr()

    def infer(self) -> Sequence[Type]:
        return (with_elem(self.lhs.type, int1),)

    def verify(self) -> None:
        super().verify()
        require(self.lhs.type == self.rhs.type, self, "operands differ in type")
        require(
            self.predicate in COMPARISONS, self, lambda: f"unknown predicate {self.predicate!r}"
        )


class SelectOp(Elementwise, opcode="select"):
    """`on_true` where `condition` (int1), else `on_false`. The element type may be any, pointers included."""

    condition: Value = operand()
    on_true: Value = operand()
    on_false: Value = operand()

    def infer(self) -> Sequence[Type]:
        return (self.on_true.type,)

    def verify(self) -> None:
        super().verify()
        require(elem_of(self.condition.type) == int1, self, "the condition is not int1")
        require(self.on_true.type == self.on_false.type, self, "the two values differ in type")


class FmaOp(Elementwise, opcode="fma"):
    """x * y + z with one rounding (floats)."""

    x: Value = operand()
    y: Value = operand()
    z: Value = operand()

    def infer(self) -> Sequence[Type]:
        return (self.x.type,)

    def verify(self) -> None:
        super().verify()
        require(self.x.type == self.y.type == self.z.type, self, "operands differ in type")
        _all(self, _is_float, "floats")


class DirectedOp(Elementwise, opcode="directed"):
    """`function` (one of DIRECTED) of fp32 or fp64, rounded toward zero (rz), down (rd) or up (ru)."""

    args: tuple[Value, ...] = operand(variadic=True)
    function: str = attr()
    direction: str = attr()

    def infer(self) -> Sequence[Type]:
        return (self.args[0].type,)

    def verify(self) -> None:
        super().verify()
        known = DIRECTED.get(self.function) == len(self.args) and self.direction in DIRECTIONS
        require(known, self, "there is no such function, or no such direction")
        require(len({v.type for v in self.args}) == 1, self, "operands differ in type")
        wide = elem_of(self.args[0].type) in (float32, float64)
        require(wide, self, "operands are neither fp32 nor fp64")


class Unary(Elementwise):
    """One operand, and a result of the same type."""

    x: Value = operand()

    def infer(self) -> Sequence[Type]:
        return (self.x.type,)


class NumberUnary(Unary):
    """A function of one number."""

    def verify(self) -> None:
        super().verify()
        _all(self, _is_number, "numbers")


class NegOp(NumberUnary, opcode="neg"):
    """-x: floats flip the sign bit, integers wrap."""


class AbsOp(NumberUnary, opcode="abs"):
    """|x|: floats clear the sign bit; the smallest integer is unchanged."""


class FloatUnary(Unary):
    """A function of one fp32 or fp64 (or narrower) float."""

    def verify(self) -> None:
        super().verify()
        _all(self, _is_float, "floats")


class IsNanOp(Elementwise, opcode="isnan"):
    """Whether x is NaN; int1 result."""

    x: Value = operand()

    def infer(self) -> Sequence[Type]:
        return (with_elem(self.x.type, int1),)

    def verify(self) -> None:
        super().verify()
        _all(self, _is_float, "floats")


class BitCount(Elementwise):
    """A number of bits of an integer; int32 result."""

    x: Value = operand()

    def infer(self) -> Sequence[Type]:
        return (with_elem(self.x.type, int32),)

    def verify(self) -> None:
        super().verify()
        _all(self, _is_int, "integers")


class PopcOp(BitCount, opcode="popc"):
    """Number of set bits of an integer; int32 result."""


class ClzOp(BitCount, opcode="clz"):
    """Number of leading zero bits of an integer; int32 result."""


class CastOp(Elementwise, opcode="cast"):
    """Convert numbers to another element type by value, by the language's cast table; the result type is given.

    Narrowing floats round to nearest even, or toward zero if `rounding` is "rtz". Floats to ints truncate.
    To int1: `!= 0`. Pointers to int64 and back keep the address.

    `contract`: a pass may omit the rounding to fewer bits and use x itself (fastmath<contract> of MLIR's truncf).
    """

    x: Value = operand()
    rounding: str = attr(default="rtne")
    contract: bool = attr(default=False)

    def verify(self) -> None:
        super().verify()
        require(self.rounding in ROUNDINGS, self, lambda: f"unknown rounding {self.rounding!r}")
        a, b = elem_of(self.x.type), elem_of(self.result.type)
        numbers = isinstance(a, dtype) and isinstance(b, dtype)
        ok = numbers or _is_int(a) or _is_int(b) or a == b
        require(ok, self, lambda: f"no cast from {a} to {b}")
        narrows = ok and a.is_floating() and b.is_floating() and b.bits < a.bits
        require(narrows or not self.contract, self, lambda: f"nothing is rounded from {a} to {b}")


class BitcastOp(Elementwise, opcode="bitcast"):
    """Reinterpret the bits as another element type of the same width (also pointer ↔ pointer, pointer ↔ int64)."""

    x: Value = operand()

    def verify(self) -> None:
        super().verify()
        a, b = elem_of(self.x.type), elem_of(self.result.type)
        require(a.bits == b.bits, self, lambda: f"{a} and {b} differ in width")


class AddPtrOp(Elementwise, opcode="addptr"):
    """Pointer plus `offset` elements; signed offsets are sign-extended, unsigned ones zero-extended."""

    ptr: Value = operand()
    offset: Value = operand()

    def infer(self) -> Sequence[Type]:
        return (self.ptr.type,)

    def verify(self) -> None:
        super().verify()
        require(
            isinstance(elem_of(self.ptr.type), pointer_type),
            self,
            "the first operand is not a pointer",
        )
        require(elem_of(self.offset.type).is_int(), self, "the offset is not an integer")


class HintOp(Unary, opcode="hint"):
    """x unchanged, with promised facts: one number per dimension (0: unknown). Divisibility of pointers is in bytes."""

    divisibility: tuple[int, ...] = attr(default=())
    contiguity: tuple[int, ...] = attr(default=())
    constancy: tuple[int, ...] = attr(default=())
