"""Defines libdevice's functions that every back end computes by an op of its own."""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.language.builtin import Builtin, builtin

if TYPE_CHECKING:
    from tessera.language.operand_types import TensorLike
    from tessera.language.values import tensor

__all__ = [
    "fast_cosf", "fast_log2f", "fast_sinf",
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "clz", "copysign", "cos", "cosh",
    "double_as_longlong", "erf",
    "exp10", "exp2", "expm1", "float_as_int", "floor", "fmod", "int_as_float", "isnan", "log", "log10", "log1p",
    "log2", "longlong_as_double", "mulhi", "popc", "pow", "remainder", "rint", "round", "rsqrt", "sin", "sinh", "tan",
    "tanh", "trunc",
]  # fmt: skip

_FUNCTIONS: dict[str, str] = {
    "exp10": "10 to the power x.",
    "expm1": "e to the power x, minus 1, accurate near 0.",
    "log10": "Logarithm to base 10.",
    "log1p": "Natural logarithm of 1 + x, accurate near 0.",
    "tan": "Tangent of x in radians.",
    "asin": "Inverse sine.",
    "acos": "Inverse cosine.",
    "atan": "Inverse tangent.",
    "sinh": "Hyperbolic sine.",
    "cosh": "Hyperbolic cosine.",
    "tanh": "Hyperbolic tangent.",
    "asinh": "Inverse hyperbolic sine: 3 ulp in fp32, 4 ulp in fp64.",
    "acosh": "Inverse hyperbolic cosine: 3 ulp in fp32, 4 ulp in fp64; NaN below 1.",
    "atanh": "Inverse hyperbolic tangent: 3 ulp in fp32, 4 ulp in fp64; NaN outside of [-1, 1].",
    "trunc": "Integer part of x, as a float.",
    "rint": "Nearest integer, ties to even, as a float.",
    "round": "Nearest integer, ties away from zero, as a float.",
    "sqrt_rn": "Square root, correctly rounded.",
}


def _unary(name: str, doc: str) -> Builtin:
    def stub(arg0: TensorLike) -> None: ...

    stub.__name__ = stub.__qualname__ = name
    stub.__doc__ = doc
    return builtin(stub)


(
    exp10, expm1, log10, log1p, tan, asin, acos, atan, sinh, cosh, tanh, asinh, acosh, atanh, trunc, rint, round,
    sqrt_rn,
) = (_unary(name, doc) for name, doc in _FUNCTIONS.items())  # fmt: skip
ROOTS: dict[str, str] = {
    "floor": "Largest integer not above x, as a float.",
    "ceil": "Smallest integer not below x, as a float.",
    "exp2": "2 to the power x.",
    "log": "Natural logarithm.",
    "log2": "Logarithm to base 2.",
    "sin": "Sine of x in radians, full range.",
    "cos": "Cosine of x in radians, full range.",
    "erf": "Error function.",
    "rsqrt": "1 / square root.",
}
floor, ceil, exp2, log, log2, sin, cos, erf, rsqrt = (
    _unary(name, doc) for name, doc in ROOTS.items()
)
UNARY = _FUNCTIONS | ROOTS
FAST = {  # of fp32, by the op's name
    "fast_log2": "Logarithm to base 2 (fp32); on GPUs its error is 2**-22 at most, absolute between 0.5 and 2.",
    "fast_sin": "Sine (fp32); on GPUs its error is 2**-20.5 at most within a half turn, and grows with |x|.",
    "fast_cos": "Cosine (fp32); on GPUs its error is 2**-20.5 at most within a half turn, and grows with |x|.",
}
fast_log2f, fast_sinf, fast_cosf = (_unary(f"{name}f", doc) for name, doc in FAST.items())
PARTS = {  # of libdevice's functions of fp32, by the op's name
    "fast_rcbrt": "1 / cube root of a positive normal number, 0 or infinity (fp32), off by 4e-6 at most.",
    "erfinv_ratio": "erfinv(y) / y for the y with 1 - y * y = x (fp32).",
    "bessel_i0": "Modified Bessel function of the first kind, order 0, of x >= 0 (fp32).",
    "bessel_i1": "Modified Bessel function of the first kind, order 1, of x >= 0 (fp32).",
    "bessel_j0": "Bessel function of the first kind, order 0, of x >= 0 (fp32).",
    "bessel_j1": "Bessel function of the first kind, order 1, of x >= 0 (fp32).",
    "bessel_y0": "Bessel function of the second kind, order 0, of x >= 0 (fp32).",
    "bessel_y1": "Bessel function of the second kind, order 1, of x >= 0 (fp32).",
}
fast_rcbrt, erfinv_ratio, bessel_i0, bessel_i1, bessel_j0, bessel_j1, bessel_y0, bessel_y1 = (
    _unary(name, doc) for name, doc in PARTS.items()
)


@builtin
def abs(arg0: TensorLike) -> tensor:
    """|x| of floats and ints."""


@builtin
def isnan(arg0: TensorLike) -> tensor:
    """Whether x is NaN (int1)."""


@builtin
def pow(arg0: TensorLike, arg1: TensorLike) -> tensor:
    """arg0 to the power arg1: two floats of one dtype, or a float and an int32."""


@builtin
def atan2(arg0: TensorLike, arg1: TensorLike) -> tensor:
    """Angle of the point (arg1, arg0)."""


@builtin
def copysign(arg0: TensorLike, arg1: TensorLike) -> tensor:
    """Magnitude of arg0 with the sign of arg1."""


@builtin
def fmod(arg0: TensorLike, arg1: TensorLike) -> tensor:
    """Remainder of arg0 / arg1 with the sign of arg0."""


@builtin
def remainder(arg0: TensorLike, arg1: TensorLike) -> tensor:
    """arg0 - n arg1 for the whole number n nearest to arg0 / arg1, ties to even; exact."""


@builtin
def div_rn(arg0: TensorLike, arg1: TensorLike) -> tensor:
    """arg0 / arg1, correctly rounded."""


@builtin
def mulhi(arg0: TensorLike, arg1: TensorLike) -> tensor:
    """High half of the double-width product of ints; signedness as the dtype."""


@builtin
def clz(arg0: TensorLike) -> tensor:
    """Number of leading zero bits of an int (int32)."""


@builtin
def popc(arg0: TensorLike) -> tensor:
    """Number of set bits of an int (int32)."""


@builtin
def float_as_int(arg0: TensorLike) -> tensor:
    """The bits of an fp32 as int32."""


@builtin
def int_as_float(arg0: TensorLike) -> tensor:
    """The bits of an int32 as fp32."""


@builtin
def double_as_longlong(arg0: TensorLike) -> tensor:
    """The bits of an fp64 as int64."""


@builtin
def longlong_as_double(arg0: TensorLike) -> tensor:
    """The bits of an int64 as fp64."""
