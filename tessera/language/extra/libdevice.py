"""Exports as `tl.extra.libdevice` mathematical functions of fp32 and fp64 beyond `tl.math`, one name for every
target.

Operands of a listed dtype are taken as they are; of others several meet as they would in an operator, and numbers
alone are floats. Shapes broadcast. Float functions take fp32 or fp64 and return the operand's dtype unless they say
otherwise. No file of NVIDIA's is needed: the functions are written in the language, or ops of every back end.

Raises:
    type-mismatch: a function has no variant for the dtype: `tl.extra.libdevice.tan(x.to(tl.float16))`.
    shape-mismatch: the operands do not broadcast: `tl.extra.libdevice.atan2(x, i16.to(tl.float32))`.

Example:
    >>> tl.extra.libdevice.tanh(x)
    fp32[8]: -0.964028, -0.761594, -0.462117, 0, 0.462117, 0.761594, 0.964028, 0.995055
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import float32, float64, int32, int64
from tessera.language import arithmetic
from tessera.language.arithmetic import fma, maximum, minimum, where
from tessera.language.callable import library
from tessera.language.extra import (
    libdevice_bessel,
    libdevice_integers,
    libdevice_ops,
    libdevice_rounding,
    libdevice_special,
)
from tessera.language.extra.libdevice_base import _bits, typed
from tessera.language.extra.libdevice_bessel import *
from tessera.language.extra.libdevice_integers import *
from tessera.language.extra.libdevice_ops import *
from tessera.language.extra.libdevice_ops import (  # printed kernels name them
    bessel_i0 as bessel_i0,
)
from tessera.language.extra.libdevice_ops import bessel_i1 as bessel_i1
from tessera.language.extra.libdevice_ops import bessel_j0 as bessel_j0
from tessera.language.extra.libdevice_ops import bessel_j1 as bessel_j1
from tessera.language.extra.libdevice_ops import bessel_y0 as bessel_y0
from tessera.language.extra.libdevice_ops import bessel_y1 as bessel_y1
from tessera.language.extra.libdevice_ops import erfinv_ratio as erfinv_ratio
from tessera.language.extra.libdevice_ops import fast_rcbrt as fast_rcbrt
from tessera.language.extra.libdevice_single import _rsqrt_single
from tessera.language.extra.libdevice_special import *

if TYPE_CHECKING:
    from tessera.language.builtin import Builtin
    from tessera.language.values import tensor

__all__ = [
    "add_rd", "add_rn", "add_ru", "add_rz", "div_rd", "div_rn", "div_ru", "div_rz", "double2float_rd",
    "double2float_rn", "double2float_ru", "double2float_rz", "double2int_rd", "double2int_rn", "double2int_ru",
    "double2int_rz", "double2ll_rd", "double2ll_rn", "double2ll_ru", "double2ll_rz", "double2uint_rd",
    "double2uint_rn", "double2uint_ru", "double2uint_rz", "double2ull_rd", "double2ull_rn", "double2ull_ru",
    "double2ull_rz", "exp", "fast_dividef", "fast_exp10f", "fast_expf", "fast_log10f",
    "fast_logf", "fast_powf", "fast_tanf", "fast_tanhf", "float2int_rd", "float2int_rn", "float2int_ru",
    "float2int_rz", "float2ll_rd", "float2ll_rn", "float2ll_ru", "float2ll_rz", "float2uint_rd", "float2uint_rn",
    "float2uint_ru", "float2uint_rz", "float2ull_rd", "float2ull_rn", "float2ull_ru", "float2ull_rz", "fma", "fma_rd",
    "fma_rn", "fma_ru", "fma_rz", "int2float_rd", "int2float_rn", "int2float_ru", "int2float_rz", "ll2double_rd",
    "ll2double_rn", "ll2double_ru", "ll2double_rz", "ll2float_rd", "ll2float_rn", "ll2float_ru", "ll2float_rz",
    "llrint", "llround", "mul_rd", "mul_rn", "mul_ru", "mul_rz", "nearbyint", "rcp64h", "rcp_rd", "rcp_rn", "rcp_ru",
    "rcp_rz", "rsqrt_rn", "saturatef", "sqrt", "sqrt_rd", "sqrt_rn", "sqrt_ru", "sqrt_rz", "sub_rd", "sub_rn",
    "sub_ru", "sub_rz", "uint2float_rd", "uint2float_rn", "uint2float_ru", "uint2float_rz", "ull2double_rd",
    "ull2double_rn", "ull2double_ru", "ull2double_rz", "ull2float_rd", "ull2float_rn", "ull2float_ru", "ull2float_rz",
]  # fmt: skip
__all__ += libdevice_bessel.__all__
__all__ += libdevice_integers.__all__
__all__ += libdevice_ops.__all__
__all__ += libdevice_special.__all__


def _rounded(family: str) -> list[Builtin]:
    return [libdevice_rounding.ROUNDED[f"{family}_{mode}"][0] for mode in libdevice_rounding.MODES]


add_rn, add_rz, add_rd, add_ru = _rounded("add")
sub_rn, sub_rz, sub_rd, sub_ru = _rounded("sub")
mul_rn, mul_rz, mul_rd, mul_ru = _rounded("mul")
div_rn, div_rz, div_rd, div_ru = _rounded("div")
fma_rn, fma_rz, fma_rd, fma_ru = _rounded("fma")
rcp_rn, rcp_rz, rcp_rd, rcp_ru = _rounded("rcp")
sqrt_rn, sqrt_rz, sqrt_rd, sqrt_ru = _rounded("sqrt")
double2float_rn, double2float_rz, double2float_rd, double2float_ru = _rounded("double2float")
double2int_rn, double2int_rz, double2int_rd, double2int_ru = _rounded("double2int")
double2uint_rn, double2uint_rz, double2uint_rd, double2uint_ru = _rounded("double2uint")
double2ll_rn, double2ll_rz, double2ll_rd, double2ll_ru = _rounded("double2ll")
double2ull_rn, double2ull_rz, double2ull_rd, double2ull_ru = _rounded("double2ull")
float2int_rn, float2int_rz, float2int_rd, float2int_ru = _rounded("float2int")
float2uint_rn, float2uint_rz, float2uint_rd, float2uint_ru = _rounded("float2uint")
float2ll_rn, float2ll_rz, float2ll_rd, float2ll_ru = _rounded("float2ll")
float2ull_rn, float2ull_rz, float2ull_rd, float2ull_ru = _rounded("float2ull")
int2float_rn, int2float_rz, int2float_rd, int2float_ru = _rounded("int2float")
uint2float_rn, uint2float_rz, uint2float_rd, uint2float_ru = _rounded("uint2float")
ll2float_rn, ll2float_rz, ll2float_rd, ll2float_ru = _rounded("ll2float")
ull2float_rn, ull2float_rz, ull2float_rd, ull2float_ru = _rounded("ull2float")
ll2double_rn, ll2double_rz, ll2double_rd, ll2double_ru = _rounded("ll2double")
ull2double_rn, ull2double_rz, ull2double_rd, ull2double_ru = _rounded("ull2double")

sqrt = sqrt_rn
nearbyint = rint


# --- written here ------------------------------------------------------------------------------------------------
@library
def exp(arg0: tensor):
    """e to the power x: 2 ulp."""
    x = typed("exp", "f", arg0)
    if x.dtype == float64:
        return arithmetic.exp(x)
    else:
        # x log2(e) = n + r, log2(e) in two parts. n is rounded by adding 1.5 * 2**23, whose last bit counts ones. It
        # stays from -126 to 126, where 2**n is normal, and r has what goes beyond: ptxas clamps to 0..1 for nothing.
        t = fma(
            minimum(maximum(fma(x, 1.4426950408889634 / 252, 0.5), 0.0), 1.0), 252.0, 12582786.0
        )
        n = t - 12582912.0
        r = fma(x, 1.925963033500011e-08, fma(x, 1.4426950216293335, -n))
        power = ((t.to(int32, bitcast=True) << 23) + 0x3F800000).to(float32, bitcast=True)
        return exp2(r) * power


@library
def llrint(arg0: tensor):
    """Nearest integer, ties to even, as int64."""
    return rint(typed("llrint", "f", arg0)).to(int64)


@library
def llround(arg0: tensor):
    """Nearest integer, ties away from zero, as int64."""
    return round(typed("llround", "f", arg0)).to(int64)


@library
def saturatef(arg0: tensor):
    """x limited to [0, 1] (fp32); NaN gives 0."""
    x = typed("saturatef", "f32", arg0)
    return where(x > 0, where(x < 1.0, x, 1.0), 0.0)


@library
def rsqrt_rn(arg0: tensor):
    """1 / square root of an fp32, rounded to nearest."""
    return _rsqrt_single(typed("rsqrt_rn", "f32", arg0))


@library
def rcp64h(arg0: tensor):
    """1 / x of an fp64, good for the high 32 bits of the result; the low ones are zero."""
    x = typed("rcp64h", "f64", arg0)
    return (_bits(1.0 / x) & -4294967296).to(float64, bitcast=True)


# --- quick versions of fp32 functions -------------------------------------------------------------------------------
@library
def fast_tanf(arg0: tensor):
    """Sine over cosine (fp32), each as their fast versions."""
    x = typed("fast_tanf", "f32", arg0)
    return arithmetic.fdiv(fast_sinf(x), fast_cosf(x))


@library
def fast_expf(arg0: tensor):
    """e to the power x (fp32): x log2(e) is rounded, an error of about |x| ulp."""
    return arithmetic.exp(typed("fast_expf", "f32", arg0))


@library
def fast_exp10f(arg0: tensor):
    """10 to the power x (fp32), an error of about 2 |x| ulp."""
    return exp2(typed("fast_exp10f", "f32", arg0) * 3.321928094887362)


@library
def fast_logf(arg0: tensor):
    """Natural logarithm (fp32), with the error of fast_log2f."""
    return fast_log2f(typed("fast_logf", "f32", arg0)) * 0.6931471805599453


@library
def fast_log10f(arg0: tensor):
    """Logarithm to base 10 (fp32), with the error of fast_log2f."""
    return fast_log2f(typed("fast_log10f", "f32", arg0)) * 0.30102999566398114


@library
def fast_tanhf(arg0: tensor):
    """Hyperbolic tangent (fp32)."""
    return tanh(typed("fast_tanhf", "f32", arg0))


@library
def fast_powf(arg0: tensor, arg1: tensor):
    """arg0 to the power arg1 by exp2(arg1 fast_log2f(arg0)) (fp32); NaN for a negative arg0."""
    x, y = typed("fast_powf", "f32", arg0, arg1)
    return exp2(y * fast_log2f(x))


@library
def fast_dividef(arg0: tensor, arg1: tensor):
    """arg0 / arg1 within 2 ulp (fp32)."""
    x, y = typed("fast_dividef", "f32", arg0, arg1)
    return arithmetic.fdiv(x, y)
