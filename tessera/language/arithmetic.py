"""Declares the element-wise operations: arithmetic, selection and the math functions."""

# pyright: reportReturnType=false
from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from tessera.language.builtin import builtin

if TYPE_CHECKING:
    from tessera.language.operand_types import BoolLike, TensorLike
    from tessera.language.values import constexpr, tensor

__all__ = [
    "PropagateNan", "abs", "add", "ceil", "clamp", "cos", "div_rn", "erf", "exp", "exp2", "expect_zero", "fdiv",
    "floor", "fma", "log", "log2", "maximum", "minimum", "mul", "rsqrt", "sin", "sqrt", "sqrt_rn", "sub", "umulhi",
    "where",
]  # fmt: skip


class PropagateNan(enum.Enum):
    """What `minimum`, `maximum` and `clamp` do with NaN: the other operand wins, or NaN wins."""

    NONE = 0
    ALL = 0xFFFF


@builtin
def add(x: TensorLike, y: TensorLike, sanitize_overflow: BoolLike = True) -> tensor:
    """`x + y`, element by element; operands broadcast and promote as in the operator.

    An operand may be a pointer, and the other one then an integer. `sanitize_overflow=False` leaves out the overflow
    check of debug builds.

    Raises:
        type-mismatch: both operands are pointers: `tl.add(X, X)`.
        shape-mismatch: the operands do not broadcast: `tl.add(x, i16)`.

    Example:
        >>> tl.add(x, n)
        fp32[8]: 1, 0, 3.5, 1, 5.5, 10, 4, 9
    """


@builtin
def sub(x: TensorLike, y: TensorLike, sanitize_overflow: BoolLike = True) -> tensor:
    """`x - y`, element by element; operands broadcast and promote as in the operator.

    `x` may be a pointer, and `y` then an integer. `sanitize_overflow=False` leaves out the overflow check of debug
    builds.

    Raises:
        type-mismatch: `y` is a pointer: `tl.sub(x, X)`.
        shape-mismatch: the operands do not broadcast: `tl.sub(x, i16)`.

    Example:
        >>> tl.sub(x, 1)
        fp32[8]: -3, -2, -1.5, -1, -0.5, 0, 1, 2
    """


@builtin
def mul(x: TensorLike, y: TensorLike, sanitize_overflow: BoolLike = True) -> tensor:
    """`x * y`, element by element; operands broadcast and promote as in the operator.

    `sanitize_overflow=False` leaves out the overflow check of debug builds.

    Raises:
        type-mismatch: an operand is a pointer: `tl.mul(X, 2)`.
        shape-mismatch: the operands do not broadcast: `tl.mul(x, i16)`.

    Example:
        >>> tl.mul(x, x)
        fp32[8]: 4, 1, 0.25, 0, 0.25, 1, 4, 9
    """


@builtin
def minimum(
    x: TensorLike, y: TensorLike, propagate_nan: PropagateNan | constexpr = PropagateNan.NONE
) -> tensor:
    """The smaller of two operands, element by element; they broadcast and promote, and bf16 gives fp32.

    A number takes its default dtype first: `minimum` of fp16 and 1.0 is fp32. Of a NaN and a number the result is the
    number, or NaN with `propagate_nan=tl.PropagateNan.ALL`.

    Raises:
        type-mismatch: an operand is a pointer: `tl.minimum(X, X)`.
        type-mismatch: `propagate_nan` is no `tl.PropagateNan`: `tl.minimum(x, 1.0, propagate_nan="all")`.
        shape-mismatch: the operands do not broadcast: `tl.minimum(x, i16)`.

    Example:
        >>> tl.minimum(x, 1.0)
        fp32[8]: -2, -1, -0.5, 0, 0.5, 1, 1, 1
    """


@builtin
def maximum(
    x: TensorLike, y: TensorLike, propagate_nan: PropagateNan | constexpr = PropagateNan.NONE
) -> tensor:
    """The larger of two operands, element by element; dtypes and NaN as for `minimum`.

    Raises:
        type-mismatch: an operand is a pointer: `tl.maximum(X, X)`.
        type-mismatch: `propagate_nan` is no `tl.PropagateNan`: `tl.maximum(x, 1.0, propagate_nan="all")`.
        shape-mismatch: the operands do not broadcast: `tl.maximum(x, i16)`.

    Example:
        >>> tl.maximum(x, 0.0)
        fp32[8]: 0, 0, 0, 0, 0.5, 1, 2, 3
    """


@builtin
def clamp(
    x: TensorLike,
    min: TensorLike,
    max: TensorLike,
    propagate_nan: PropagateNan | constexpr = PropagateNan.NONE,
) -> tensor:
    """`x` limited to [min, max], element by element; the operands broadcast and promote, and bf16 gives fp32.

    The result is undefined where min > max or where a bound is NaN. `propagate_nan` says what becomes of a NaN in `x`,
    as for `minimum`.

    Raises:
        type-mismatch: `propagate_nan` is no `tl.PropagateNan`: `tl.clamp(x, 0.0, 1.0, propagate_nan=3)`.
        shape-mismatch: the operands do not broadcast: `tl.clamp(x, 0, i16)`.

    Example:
        >>> tl.clamp(x, -1.0, 1.0)
        fp32[8]: -1, -1, -0.5, 0, 0.5, 1, 1, 1
    """


@builtin
def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> tensor:
    """`x` where `condition` holds, else `y`; both are evaluated.

    `condition` is int1, or another dtype of which every value but 0 counts as true. All three broadcast; `x` and `y`
    promote as in `+`, or are pointers of one type.

    Raises:
        type-mismatch: only one of `x` and `y` is a pointer: `tl.where(x > 0, X, 0.0)`.
        shape-mismatch: the operands do not broadcast: `tl.where(x > 0, i16, 0)`.

    Example:
        >>> tl.where(x > 0, x, 0.0)
        fp32[8]: 0, 0, 0, 0, 0.5, 1, 2, 3
    """


@builtin
def logical_and(input: TensorLike, other: TensorLike) -> tensor:
    """`input and other`, element by element: int1, true where both hold; both broadcast, and both are evaluated.

    Operands of other dtypes count as true where they are not 0.

    Raises:
        shape-mismatch: the operands do not broadcast: `(x > 0).logical_and(i16 > 0)`.

    Example:
        >>> (x > 0).logical_and(n > 4)
        int1[8]: 0, 0, 0, 0, 1, 1, 0, 1
    """


@builtin
def logical_or(input: TensorLike, other: TensorLike) -> tensor:
    """`input or other`, element by element: int1, true where one holds; both broadcast, and both are evaluated.

    Operands of other dtypes count as true where they are not 0.

    Raises:
        shape-mismatch: the operands do not broadcast: `(x > 0).logical_or(i16 > 0)`.

    Example:
        >>> (x > 0).logical_or(n > 4)
        int1[8]: 0, 0, 0, 0, 1, 1, 1, 1
    """


@builtin
def abs(x: TensorLike) -> tensor:
    """|x|, element by element, in the dtype of `x`; the smallest signed integer stays itself.

    Raises:
        type-mismatch: `x` is a pointer: `tl.abs(X)`.

    Example:
        >>> tl.abs(x)
        fp32[8]: 2, 1, 0.5, 0, 0.5, 1, 2, 3
    """


@builtin
def exp(x: TensorLike) -> tensor:
    """e to the power x, element by element, of fp32 or fp64.

    In fp32 on CPUs the result is within 2 ulp. On GPUs `exp` is quick, with an error of up to |x| ulp;
    `extra.libdevice.exp` is accurate.

    Raises:
        type-mismatch: the dtype is another one: `tl.exp(n)`.

    Example:
        >>> tl.exp(x)
        fp32[8]: 0.135335, 0.367879, 0.606531, 1, 1.64872, 2.71828, 7.38906, 20.0855
    """


@builtin
def exp2(x: TensorLike) -> tensor:
    """2 to the power x, element by element, of fp32 or fp64, within 2 ulp; GPUs flush subnormal fp32 to 0.

    Raises:
        type-mismatch: the dtype is another one: `tl.exp2(n)`.

    Example:
        >>> tl.exp2(x)
        fp32[8]: 0.25, 0.5, 0.707107, 1, 1.41421, 2, 4, 8
    """


@builtin
def log(x: TensorLike) -> tensor:
    """Natural logarithm, element by element, of fp32 or fp64, within 2 ulp.

    Raises:
        type-mismatch: the dtype is another one: `tl.log(n)`.

    Example:
        >>> tl.log(n.to(tl.float32))
        fp32[8]: 1.09861, 0, 1.38629, 0, 1.60944, 2.19722, 0.693147, 1.79176
    """


@builtin
def log2(x: TensorLike) -> tensor:
    """Logarithm to base 2, element by element, of fp32 or fp64, within 2 ulp.

    Raises:
        type-mismatch: the dtype is another one: `tl.log2(n)`.

    Example:
        >>> tl.log2(n.to(tl.float32))
        fp32[8]: 1.58496, 0, 2, 0, 2.32193, 3.16992, 1, 2.58496
    """


@builtin
def sin(x: TensorLike) -> tensor:
    """Sine of x in radians, element by element and for any x, of fp32 (within 2.5 ulp) or fp64 (within 2 ulp).

    Raises:
        type-mismatch: the dtype is another one: `tl.sin(n)`.

    Example:
        >>> tl.sin(x)
        fp32[8]: -0.909297, -0.841471, -0.479426, 0, 0.479426, 0.841471, 0.909297, 0.14112
    """


@builtin
def cos(x: TensorLike) -> tensor:
    """Cosine of x in radians, element by element and for any x, of fp32 (within 2.5 ulp) or fp64 (within 2 ulp).

    Raises:
        type-mismatch: the dtype is another one: `tl.cos(n)`.

    Example:
        >>> tl.cos(x)
        fp32[8]: -0.416147, 0.540302, 0.877583, 1, 0.877583, 0.540302, -0.416147, -0.989992
    """


@builtin
def sqrt(x: TensorLike) -> tensor:
    """Square root, element by element, of fp32 (fast) or fp64 (correctly rounded).

    Raises:
        type-mismatch: the dtype is another one: `tl.sqrt(n)`.

    Example:
        >>> tl.sqrt(n.to(tl.float32))
        fp32[8]: 1.73205, 1, 2, 1, 2.23607, 3, 1.41421, 2.44949
    """


@builtin
def sqrt_rn(x: TensorLike) -> tensor:
    """Square root of fp32, element by element, correctly rounded.

    Raises:
        type-mismatch: the dtype is another one: `tl.sqrt_rn(x.to(tl.float64))`.

    Example:
        >>> tl.sqrt_rn(n.to(tl.float32))
        fp32[8]: 1.73205, 1, 2, 1, 2.23607, 3, 1.41421, 2.44949
    """


@builtin
def rsqrt(x: TensorLike) -> tensor:
    """1 / sqrt(x), element by element, of fp32 or fp64, within 2 ulp; GPUs flush subnormal fp32 to 0.

    Raises:
        type-mismatch: the dtype is another one: `tl.rsqrt(n)`.

    Example:
        >>> tl.rsqrt(n.to(tl.float32))
        fp32[8]: 0.57735, 1, 0.5, 1, 0.447214, 0.333333, 0.707107, 0.408248
    """


@builtin
def erf(x: TensorLike) -> tensor:
    """Error function, element by element, of fp32 (within 2.5 ulp) or fp64 (within 2 ulp).

    Raises:
        type-mismatch: the dtype is another one: `tl.erf(n)`.

    Example:
        >>> tl.erf(x)
        fp32[8]: -0.995322, -0.842701, -0.5205, 0, 0.5205, 0.842701, 0.995322, 0.999978
    """


@builtin
def floor(x: TensorLike) -> tensor:
    """Largest integer not above x, element by element, as a float: of fp32 or fp64.

    Raises:
        type-mismatch: the dtype is another one: `tl.floor(n)`.

    Example:
        >>> tl.floor(x)
        fp32[8]: -2, -1, -1, 0, 0, 1, 2, 3
    """


@builtin
def ceil(x: TensorLike) -> tensor:
    """Smallest integer not below x, element by element, as a float: of fp32 or fp64.

    Raises:
        type-mismatch: the dtype is another one: `tl.ceil(n)`.

    Example:
        >>> tl.ceil(x)
        fp32[8]: -2, -1, -0, 0, 1, 1, 2, 3
    """


@builtin
def fma(x: TensorLike, y: TensorLike, z: TensorLike) -> tensor:
    """`x * y + z` of floats, element by element, rounded once; the operands broadcast and promote.

    Raises:
        type-mismatch: no operand is a float: `tl.fma(i, i, i)`.
        shape-mismatch: the operands do not broadcast: `tl.fma(x, x, i16)`.

    Example:
        >>> tl.fma(x, x, 1.0)
        fp32[8]: 5, 2, 1.25, 1, 1.25, 2, 5, 10
    """


@builtin
def fdiv(
    x: TensorLike, y: TensorLike, ieee_rounding: BoolLike = False, approx: BoolLike = False
) -> tensor:
    """Quotient of two floats, element by element: within 2 ulp in fp32, correctly rounded with `ieee_rounding`.

    `approx` permits the quickest quotient, which is the default here; it excludes `ieee_rounding`.

    Raises:
        type-mismatch: an operand is no float: `tl.fdiv(x, 3)`.
        invalid-argument: both flags are set: `tl.fdiv(x, x, ieee_rounding=True, approx=True)`.

    Example:
        >>> tl.fdiv(x, 3.0, ieee_rounding=True)
        fp32[8]: -0.666667, -0.333333, -0.166667, 0, 0.166667, 0.333333, 0.666667, 1
    """


@builtin
def div_rn(x: TensorLike, y: TensorLike) -> tensor:
    """Quotient of two fp32, element by element, correctly rounded.

    Raises:
        type-mismatch: the dtype is another one: `tl.div_rn(n, n)`.

    Example:
        >>> tl.div_rn(x, 3.0)
        fp32[8]: -0.666667, -0.333333, -0.166667, 0, 0.166667, 0.333333, 0.666667, 1
    """


@builtin
def umulhi(x: TensorLike, y: TensorLike) -> tensor:
    """High half of the double-width product of two 32- or 64-bit ints, element by element.

    The bits of both operands are taken as unsigned; the result has their dtype.

    Raises:
        type-mismatch: the dtype is another one: `tl.umulhi(x, x)`.

    Example:
        >>> tl.umulhi(n << 30, 8)
        int32[8]: 6, 2, 0, 2, 2, 2, 4, 4
    """


@builtin
def expect_zero(x: TensorLike, mask: TensorLike) -> tensor:
    """`x` unchanged, with the promise that it is 0 where `mask` holds; debug builds assert it.

    Example:
        >>> tl.expect_zero(x - x, i < 8)
        fp32[8]: 0, 0, 0, 0, 0, 0, 0, 0
    """
