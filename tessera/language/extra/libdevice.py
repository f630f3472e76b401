"""`tl.extra.libdevice`: mathematical functions of fp32 and fp64 beyond `tl.math`, one name for every target.

Operands must have exactly a listed dtype: nothing is promoted but Python numbers, which have their default dtype.
Shapes broadcast. Float functions take fp32 or fp64 and return the operand's dtype unless they say otherwise.
"""

# pyright: basic
from __future__ import annotations

from tessera.dtypes import float32, float64, int32, int64
from tessera.language import arithmetic, creation
from tessera.language.arithmetic import (
    cos,
    erf,
    exp,
    log,
    log2,
    sin,
)
from tessera.language.builtin import builtin
from tessera.language.callable import library

UNARY = {
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
    "trunc": "Integer part of x, as a float.",
    "rint": "Nearest integer, ties to even, as a float.",
    "round": "Nearest integer, ties away from zero, as a float.",
    "sqrt_rn": "Square root, correctly rounded.",
}


def _unary(name, doc):
    def stub(arg0): ...

    stub.__name__ = stub.__qualname__ = name
    stub.__doc__ = doc
    return builtin(stub)


exp10, expm1, log10, log1p, tan, asin, acos, atan, sinh, cosh, tanh, trunc, rint, round, sqrt_rn = (
    _unary(name, doc) for name, doc in UNARY.items()
)
nearbyint = rint
fast_sinf, fast_cosf, fast_expf, fast_logf, fast_log2f = sin, cos, exp, log, log2
fast_tanf, fast_exp10f, fast_log10f, fast_tanhf = tan, exp10, log10, tanh


@builtin
def abs(arg0):
    """|x| of floats and ints."""


@builtin
def isnan(arg0):
    """Whether x is NaN (int1)."""


@builtin
def pow(arg0, arg1):
    """arg0 to the power arg1: two floats of one dtype, or a float and an int32."""


@builtin
def atan2(arg0, arg1):
    """Angle of the point (arg1, arg0)."""


@builtin
def copysign(arg0, arg1):
    """Magnitude of arg0 with the sign of arg1."""


@builtin
def fmod(arg0, arg1):
    """Remainder of arg0 / arg1 with the sign of arg0."""


@builtin
def div_rn(arg0, arg1):
    """arg0 / arg1, correctly rounded."""


@builtin
def mulhi(arg0, arg1):
    """High half of the double-width product of ints; signedness as the dtype."""


@builtin
def clz(arg0):
    """Number of leading zero bits of an int (int32)."""


@builtin
def popc(arg0):
    """Number of set bits of an int (int32)."""


@builtin
def float_as_int(arg0):
    """The bits of an fp32 as int32."""


@builtin
def int_as_float(arg0):
    """The bits of an int32 as fp32."""


@builtin
def double_as_longlong(arg0):
    """The bits of an fp64 as int64."""


@builtin
def longlong_as_double(arg0):
    """The bits of an int64 as fp64."""


fast_powf = pow


# --- composed of the above --------------------------------------------------------------------------------
@library
def isinf(arg0):
    """Whether x is infinite (int1)."""
    return arithmetic.abs(arg0) == float("inf")


@library
def isfinited(arg0):
    """Whether an fp64 is finite (int1)."""
    return arithmetic.abs(arg0) < float("inf")


finitef = isfinited


@library
def signbit(arg0):
    """1 if the sign bit of x is set, else 0 (int32)."""
    x = creation.to_tensor(arg0)
    if x.dtype == float64:
        return (x.to(int64, bitcast=True) < 0).to(int32)
    else:
        return (x.to(int32, bitcast=True) < 0).to(int32)


@library
def ffs(arg0):
    """Position of the lowest set bit, counted from 1; 0 for 0 (int32)."""
    x = creation.to_tensor(arg0)
    lowest = x & -x
    return (x.dtype.primitive_bitwidth - clz(lowest)).to(int32)


@library
def fdim(arg0, arg1):
    """arg0 - arg1 if positive, else 0; NaN if an operand is NaN."""
    return arithmetic.where(arg0 <= arg1, 0.0, arg0 - arg1)


@library
def saturatef(arg0):
    """x limited to [0, 1] (fp32); NaN gives 0."""
    return arithmetic.clamp(arg0, 0.0, 1.0)


@library
def fast_dividef(arg0, arg1):
    """arg0 / arg1 within 2 ulp (fp32)."""
    return arithmetic.fdiv(arg0, arg1)


@library
def rcp_rn(arg0):
    """1 / x, correctly rounded."""
    one = creation.zeros_like(arg0) + 1.0
    return div_rn(one, arg0)


@library
def erfc(arg0):
    """1 - erf(x); absolute, not relative accuracy for large x."""
    return 1.0 - erf(arg0)


@library
def llrint(arg0):
    """Nearest integer, ties to even, as int64."""
    return rint(arg0).to(int64)


@library
def llround(arg0):
    """Nearest integer, ties away from zero, as int64."""
    return round(arg0).to(int64)


@library
def float2int_rn(arg0):
    """Nearest int32, ties to even."""
    return rint(arg0).to(int32)


@library
def float2int_rz(arg0):
    """The int32 toward zero."""
    return arg0.to(int32)


@library
def int2float_rn(arg0):
    """The nearest fp32 of an int."""
    return arg0.to(float32)
