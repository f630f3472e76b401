"""Element-wise arithmetic on scalars and on tiles: operands have one shape, element types carry the signedness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.dtypes import dtype, int1, int32, pointer_type
from tessera.ir import Op, Value, attr, elem_of, operand, require, shape_of, with_elem

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class Elementwise(Op):
    """Base of ops that work on each element alone; all operands and results have the same shape and layout."""

    def verify(self) -> None:
        shapes = {shape_of(v.type) for v in (*self.operands, *self.results)}
        require(len(shapes) == 1, self, lambda: f"operands and results differ in shape: {shapes}")
        layouts = {getattr(v.type, "layout", None) for v in (*self.operands, *self.results)}
        require(len(layouts) == 1, self, "operands and results differ in layout")


class ConstOp(Op, opcode="const"):
    """A scalar, or a tile filled with one scalar. `value` is an int, float or bool; the result type is given."""

    value: int | float | bool = attr()

    def verify(self) -> None:
        e = elem_of(self.result.type)
        if isinstance(e, dtype) and e.is_int():
            require(isinstance(self.value, int), self, "an integer constant holds an int")
            low, high = e.get_int_min_value(), e.get_int_max_value()
            require(low <= self.value <= high, self, lambda: f"{self.value} does not fit {e}")


class Binary(Elementwise):
    """Two operands of one type, a result of the same type."""

    lhs: Value = operand()
    rhs: Value = operand()

    def infer(self) -> Sequence[Any]:
        return (self.lhs.type,)

    def verify(self) -> None:
        super().verify()
        require(
            self.lhs.type == self.rhs.type,
            self,
            lambda: f"{self.lhs!r} and {self.rhs!r} differ in type",
        )


class AddOp(Binary, opcode="add"):
    """lhs + rhs; integers wrap."""


class SubOp(Binary, opcode="sub"):
    """lhs - rhs; integers wrap."""


class MulOp(Binary, opcode="mul"):
    """lhs * rhs; integers wrap."""


class DivOp(Binary, opcode="div"):
    """Quotient: integers truncate toward zero; floats within 2 ulp, correctly rounded when `exact`."""

    exact: bool = attr(default=False)


class RemOp(Binary, opcode="rem"):
    """Remainder with the sign of the dividend (C's `%` and `fmod`)."""


class AndOp(Binary, opcode="and"):
    """Bitwise and of integers."""


class OrOp(Binary, opcode="or"):
    """Bitwise or of integers."""


class XorOp(Binary, opcode="xor"):
    """Bitwise exclusive or of integers."""


class ShlOp(Binary, opcode="shl"):
    """lhs << rhs."""


class ShrOp(Binary, opcode="shr"):
    """lhs >> rhs: arithmetic when the type is signed, logical otherwise."""


class MinOp(Binary, opcode="min"):
    """Smaller operand. A NaN loses against a number, or wins when `propagate_nan`."""

    propagate_nan: bool = attr(default=False)


class MaxOp(Binary, opcode="max"):
    """Larger operand. A NaN loses against a number, or wins when `propagate_nan`."""

    propagate_nan: bool = attr(default=False)


class MulHiOp(Binary, opcode="mulhi"):
    """High half of the double-width product of integers; signedness as the type."""


class PowOp(Binary, opcode="pow"):
    """lhs to the power rhs (floats)."""


class Atan2Op(Binary, opcode="atan2"):
    """Angle of the point (rhs, lhs) (floats)."""


class CopySignOp(Binary, opcode="copysign"):
    """Magnitude of lhs with the sign of rhs (floats)."""


class CmpOp(Elementwise, opcode="cmp"):
    """Compare; int1 result. Ordered for floats, except that `ne` is true on NaN."""

    lhs: Value = operand()
    rhs: Value = operand()
    predicate: str = attr()

    def infer(self) -> Sequence[Any]:
        return (with_elem(self.lhs.type, int1),)

    def verify(self) -> None:
        super().verify()
        require(self.lhs.type == self.rhs.type, self, "operands differ in type")
        require(
            self.predicate in COMPARISONS, self, lambda: f"unknown predicate {self.predicate!r}"
        )


class SelectOp(Elementwise, opcode="select"):
    """`on_true` where `condition` (int1), else `on_false`. Works on any element type, pointers too."""

    condition: Value = operand()
    on_true: Value = operand()
    on_false: Value = operand()

    def infer(self) -> Sequence[Any]:
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

    def infer(self) -> Sequence[Any]:
        return (self.x.type,)

    def verify(self) -> None:
        super().verify()
        require(self.x.type == self.y.type == self.z.type, self, "operands differ in type")


class Unary(Elementwise):
    """One operand, a result of the same type."""

    x: Value = operand()

    def infer(self) -> Sequence[Any]:
        return (self.x.type,)


class NegOp(Unary, opcode="neg"):
    """-x: floats flip the sign bit, integers wrap."""


class AbsOp(Unary, opcode="abs"):
    """|x|: floats clear the sign bit; the smallest integer stays itself."""


class FloatUnary(Unary):
    """A function of one fp32 or fp64 (or narrower) float."""

    def verify(self) -> None:
        super().verify()
        require(elem_of(self.x.type).is_floating(), self, "the operand is not a float")


# One class a function: opcode → (what it computes). The NumPy meaning and the lowerings hang on the class.
MATH = {
    "exp": "e to the power x (fast: 2 ulp in fp32, subnormals flushed on GPUs)",
    "exp2": "2 to the power x (fast)",
    "exp10": "10 to the power x",
    "expm1": "e to the power x, minus 1, accurate near 0",
    "log": "natural logarithm",
    "log2": "logarithm to base 2",
    "log10": "logarithm to base 10",
    "log1p": "natural logarithm of 1 + x, accurate near 0",
    "sin": "sine of x in radians, full range",
    "cos": "cosine of x in radians, full range",
    "tan": "tangent of x in radians, full range",
    "asin": "inverse sine",
    "acos": "inverse cosine",
    "atan": "inverse tangent",
    "sinh": "hyperbolic sine",
    "cosh": "hyperbolic cosine",
    "tanh": "hyperbolic tangent",
    "erf": "error function",
    "sqrt": "square root (fast in fp32)",
    "sqrt_rn": "square root, correctly rounded",
    "rsqrt": "1 / square root (fast)",
    "floor": "largest integer not above x",
    "ceil": "smallest integer not below x",
    "trunc": "integer part of x",
    "rint": "nearest integer, ties to even",
    "round": "nearest integer, ties away from zero",
}

MATH_OPS: dict[str, type[FloatUnary]] = {}
for _name, _doc in MATH.items():
    _class = f"{_name.title().replace('_', '')}Op"
    MATH_OPS[_name] = type(
        _class, (FloatUnary,), {"__doc__": f"{_doc}.", "__slots__": ()}, opcode=_name
    )
    globals()[_class] = MATH_OPS[_name]


class IsNanOp(Elementwise, opcode="isnan"):
    """Whether x is NaN; int1 result."""

    x: Value = operand()

    def infer(self) -> Sequence[Any]:
        return (with_elem(self.x.type, int1),)


class PopcOp(Elementwise, opcode="popc"):
    """Number of set bits of an integer; int32 result."""

    x: Value = operand()

    def infer(self) -> Sequence[Any]:
        return (with_elem(self.x.type, int32),)


class ClzOp(Elementwise, opcode="clz"):
    """Number of leading zero bits of an integer; int32 result."""

    x: Value = operand()

    def infer(self) -> Sequence[Any]:
        return (with_elem(self.x.type, int32),)


class CastOp(Elementwise, opcode="cast"):
    """Convert numbers to another element type by value, as the language's cast table says; result type given.

    Narrowing floats round to nearest even, or toward zero when `rounding` is "rtz". Floats to ints truncate.
    To int1: `!= 0`. Pointers to int64 and back keep the address.
    """

    x: Value = operand()
    rounding: str = attr(default="rtne")


class BitcastOp(Elementwise, opcode="bitcast"):
    """The same bits under another element type of the same width (also pointer ↔ pointer, pointer ↔ int64)."""

    x: Value = operand()

    def verify(self) -> None:
        super().verify()
        a, b = elem_of(self.x.type), elem_of(self.result.type)
        require(a.bits == b.bits, self, lambda: f"{a} and {b} differ in width")


class AddPtrOp(Elementwise, opcode="addptr"):
    """Pointer plus `offset` elements; signed offsets extend by sign, unsigned ones by zero."""

    ptr: Value = operand()
    offset: Value = operand()

    def infer(self) -> Sequence[Any]:
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
    """x unchanged, with facts promised by the author: one number a dimension (0 = nothing said)."""

    divisibility: tuple[int, ...] = attr(default=())
    contiguity: tuple[int, ...] = attr(default=())
    constancy: tuple[int, ...] = attr(default=())
