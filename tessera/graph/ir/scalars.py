"""Writes scalar arithmetic in Python's notation: `Scalar` wraps a value and emits the op for each operator.

    y = where(x > 0, x, exp(x) - 1)

Numbers take the type of the scalar that they meet; two scalars must be of one type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tessera import dtypes
from tessera.dtypes import dtype, int1
from tessera.graph.index import Expr, IndexMap
from tessera.graph.ir.ops import CheckedOp, IndexOp
from tessera.ir import Builder, Op, Value, elem_of
from tessera.ops import arith
from tessera.ops.math import MATH_OPS

Number = bool | int | float | Expr


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """A scalar of the IR. `emit`: appends ops where the value is computed."""

    value: Value
    builder: Builder

    @property
    def type(self) -> dtype:
        found = elem_of(self.value.type)
        assert isinstance(found, dtype)
        return found

    def emit(self, op: Op) -> Scalar:
        return Scalar(self.builder.emit(op), self.builder)

    def const(self, number: Number) -> Scalar:
        """A constant of this scalar's type."""
        return constant(self.builder, number, self.type)

    def like(self, other: Scalar | Number) -> Scalar:
        return other if isinstance(other, Scalar) else self.const(other)

    def binary(self, op: type[arith.Elementwise], other: Scalar | Number, **attrs: Any) -> Scalar:
        return self.emit(op(self.value, self.like(other).value, **attrs))

    def to(self, target: dtype) -> Scalar:
        """The same number in another type."""
        if target == self.type:
            return self
        return self.emit(arith.CastOp(self.value, results=[target]))

    def rounded(self, target: dtype) -> Scalar:
        """The result of an operation on floats of 16 bits that was computed in a wider type, as `target`. Such a
        rounding is nobody's wish: with numerics="fast" what reads the result in the same kernel gets it without."""
        own = (
            self.type.is_floating() and target.is_floating() and 16 == target.bits < self.type.bits
        )
        if not own:
            return self.to(target)
        return self.emit(arith.CastOp(self.value, contract=True, results=[target]))

    def bits(self, target: dtype) -> Scalar:
        """The same bits in another type."""
        if target == self.type:
            return self
        return self.emit(arith.BitcastOp(self.value, results=[target]))

    def __add__(self, other: Scalar | Number) -> Scalar:
        return self.binary(arith.AddOp, other)

    def __radd__(self, other: Number) -> Scalar:
        return self.const(other) + self

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return self.binary(arith.SubOp, other)

    def __rsub__(self, other: Number) -> Scalar:
        return self.const(other) - self

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return self.binary(arith.MulOp, other)

    def __rmul__(self, other: Number) -> Scalar:
        return self.const(other) * self

    def __truediv__(self, other: Scalar | Number) -> Scalar:
        """Floats: correctly rounded. Integers: truncated."""
        return self.binary(arith.DivOp, other, exact=self.type.is_floating())

    def __rtruediv__(self, other: Number) -> Scalar:
        return self.const(other) / self

    def __and__(self, other: Scalar | Number) -> Scalar:
        return self.binary(arith.AndOp, other)

    def __or__(self, other: Scalar | Number) -> Scalar:
        return self.binary(arith.OrOp, other)

    def __xor__(self, other: Scalar | Number) -> Scalar:
        return self.binary(arith.XorOp, other)

    def __lshift__(self, other: Scalar | Number) -> Scalar:
        return self.binary(arith.ShlOp, other)

    def __rshift__(self, other: Scalar | Number) -> Scalar:
        return self.binary(arith.ShrOp, other)

    def __neg__(self) -> Scalar:
        return self.emit(arith.NegOp(self.value))

    def __abs__(self) -> Scalar:
        unsigned = self.type.is_int() and not self.type.signed
        return self if unsigned else self.emit(arith.AbsOp(self.value))

    def __invert__(self) -> Scalar:
        """All bits flipped; of a truth value, the other one."""
        return self ^ self.ones()

    def ones(self) -> int:
        """The number all of whose bits are set."""
        return -1 if self.type.signed else (1 << self.type.bits) - 1

    def compare(self, predicate: str, other: Scalar | Number) -> Scalar:
        return self.binary(arith.CmpOp, other, predicate=predicate)

    def __lt__(self, other: Scalar | Number) -> Scalar:
        return self.compare("lt", other)

    def __le__(self, other: Scalar | Number) -> Scalar:
        return self.compare("le", other)

    def __gt__(self, other: Scalar | Number) -> Scalar:
        return self.compare("gt", other)

    def __ge__(self, other: Scalar | Number) -> Scalar:
        return self.compare("ge", other)

    def eq(self, other: Scalar | Number) -> Scalar:
        return self.compare("eq", other)

    def ne(self, other: Scalar | Number) -> Scalar:
        return self.compare("ne", other)

    def checked(self, condition: Scalar, message: str) -> Scalar:
        """The same number; where the condition does not hold the call ends with an error."""
        return self.emit(CheckedOp(self.value, condition.value, None, message=message))

    def truth(self) -> Scalar:
        """Whether it is not zero; NaN is not."""
        return self.to(int1)


def constant(builder: Builder, number: Number, type: dtype) -> Scalar:
    """A constant; what an integer type cannot hold wraps. A number may be an expression of sizes."""
    if isinstance(number, Expr):
        place = builder.emit(IndexOp([], index_map=IndexMap(0, [number])))
        return Scalar(place, builder).to(type)
    if type.is_floating():
        value: int | float = float(number)
    elif type == int1:
        value = int(bool(number))
    else:
        value = int(number) & ((1 << type.bits) - 1)
        if type.signed and value >> (type.bits - 1):
            value -= 1 << type.bits
    return Scalar(builder.emit(arith.ConstOp(value=value, results=[type])), builder)


def where(condition: Scalar, on_true: Scalar | Number, on_false: Scalar | Number) -> Scalar:
    """`on_true` where the condition holds; one of the two is a scalar."""
    kind = on_true if isinstance(on_true, Scalar) else on_false
    assert isinstance(kind, Scalar)
    a, b = kind.like(on_true), kind.like(on_false)
    return condition.emit(arith.SelectOp(condition.value, a.value, b.value))


def minimum(a: Scalar, b: Scalar | Number) -> Scalar:
    """The smaller one, NaN if one of them is."""
    return a.binary(arith.MinOp, b, propagate_nan=a.type.is_floating())


def maximum(a: Scalar, b: Scalar | Number) -> Scalar:
    """The larger one, NaN if one of them is."""
    return a.binary(arith.MaxOp, b, propagate_nan=a.type.is_floating())


def function(name: str, x: Scalar) -> Scalar:
    """A function of `ops/math.py`, by its opcode."""
    return x.emit(MATH_OPS[name](x.value))


def is_nan(x: Scalar) -> Scalar:
    if not x.type.is_floating():
        return constant(x.builder, False, int1)
    return x.emit(arith.IsNanOp(x.value))


def is_inf(x: Scalar) -> Scalar:
    return abs(x).eq(math.inf) if x.type.is_floating() else constant(x.builder, False, int1)


def remainder(a: Scalar, b: Scalar | Number) -> Scalar:
    """The remainder with the sign of the divisor, as Python's `%`."""
    b = a.like(b)
    r = a.binary(arith.RemOp, b)
    if not (a.type.is_floating() or a.type.signed):
        return r
    zero = a.const(0)
    return where(r.ne(0) & ((r < zero) ^ (b < zero)), r + b, r)


def floor_divide(a: Scalar, b: Scalar | Number) -> Scalar:
    """The quotient rounded down."""
    b = a.like(b)
    if not a.type.is_floating():
        quotient = a / b
        if not a.type.signed:
            return quotient
        rest = a - quotient * b
        return where(rest.ne(0) & ((rest ^ b) < 0), quotient - 1, quotient)
    # The quotient of a multiple of b is exact; rounding a / b could reach the next whole number.
    rest = a.binary(arith.RemOp, b)
    whole = (a - rest) / b
    whole = where(rest.ne(0) & ((b < 0) ^ (rest < 0)), whole - 1, whole)
    near = function("floor", whole)
    near = where(whole - near > 0.5, near + 1, near)
    signed = where(whole.ne(0), near, a.emit(arith.CopySignOp(a.const(0).value, (a / b).value)))
    return where(b.eq(0), a / b, signed)


def sign(x: Scalar) -> Scalar:
    """-1, 0 or 1; NaN gives 0 as in eager."""
    zero, positive = x.const(0), (x > 0).to(x.type)
    return positive if not x.type.signed else positive - (x < zero).to(x.type)


def index_type() -> dtype:
    """The type of indices."""
    return dtypes.int64
