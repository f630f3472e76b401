"""Defines libdevice's functions of integers, bits and exponents, neighbours, remainders, lengths of vectors."""

# pyright: reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import float32, float64, int32, int64, uint32, uint64
from tessera.language import arithmetic, creation, hints
from tessera.language.arithmetic import fma, where
from tessera.language.callable import library
from tessera.language.extra.libdevice_base import (
    INF,
    _bits,
    _exponent,
    _is_negative,
    _scale,
    _step_down,
    _step_up,
    typed,
)
from tessera.language.extra.libdevice_ops import clz, sqrt_rn
from tessera.language.extra.libdevice_single import _norm_single

__all__ = [
    "brev", "byte_perm", "double2hiint", "double2loint", "fdim", "ffs", "finitef", "float_as_uint", "hadd",
    "hiloint2double", "hypot", "ilogb", "int2double_rn", "isfinited", "isinf", "ldexp", "logb", "mul24", "nextafter",
    "norm3d", "norm4d", "rhadd", "rhypot", "rnorm3d", "rnorm4d", "sad", "scalbn", "signbit",
    "uint2double_rn", "uint_as_float",
]  # fmt: skip

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr


# --- integers -------------------------------------------------------------------------------------------------
@library
def ffs(arg0: tensor):
    """Position of the lowest set bit, counted from 1; 0 for 0 (int32)."""
    x = typed("ffs", "i", arg0)
    lowest = x & (creation.zeros_like(x) - x)
    return (x.dtype.primitive_bitwidth - clz(lowest)).to(int32)


@library
def _swapped(x: tensor, mask: constexpr, shift: constexpr):
    return ((x & mask) << shift) | ((x >> shift) & mask)


@library
def brev(arg0: tensor):
    """The bits in reverse order, in an int of the same dtype."""
    x = typed("brev", "i", arg0)
    if x.dtype.primitive_bitwidth == 64:
        y = x.to(uint64, bitcast=True)
        y = _swapped(y, 0x5555555555555555, 1)
        y = _swapped(y, 0x3333333333333333, 2)
        y = _swapped(y, 0x0F0F0F0F0F0F0F0F, 4)
        y = _swapped(y, 0x00FF00FF00FF00FF, 8)
        y = _swapped(y, 0x0000FFFF0000FFFF, 16)
        return ((y << 32) | (y >> 32)).to(x.dtype, bitcast=True)
    else:
        y = x.to(uint32, bitcast=True)
        y = _swapped(y, 0x55555555, 1)
        y = _swapped(y, 0x33333333, 2)
        y = _swapped(y, 0x0F0F0F0F, 4)
        y = _swapped(y, 0x00FF00FF, 8)
        return ((y << 16) | (y >> 16)).to(x.dtype, bitcast=True)


@library
def byte_perm(arg0: tensor, arg1: tensor, arg2: tensor):
    """Four bytes of the eight of arg0 (0 to 3) and arg1 (4 to 7), chosen by the low three bits of the nibbles of
    arg2."""
    x, y, s = typed("byte_perm", "i32 u32", arg0, arg1, arg2)
    low = x.to(uint32, bitcast=True).to(uint64)
    both = low | (y.to(uint32, bitcast=True).to(uint64) << 32)
    chosen = s.to(uint32, bitcast=True)
    result = creation.zeros_like(both)
    for i in hints.static_range(4):
        place = ((chosen >> (4 * i)) & 7).to(uint64) * 8
        result = result | (((both >> place) & 255) << (8 * i))
    return result.to(uint32).to(x.dtype, bitcast=True)


@library
def mul24(arg0: tensor, arg1: tensor):
    """Low 32 bits of the product of the low 24 bits of two int32 (signed) or uint32."""
    x, y = typed("mul24", "i32 u32", arg0, arg1)
    return ((x << 8) >> 8) * ((y << 8) >> 8)


@library
def hadd(arg0: tensor, arg1: tensor):
    """(arg0 + arg1) >> 1 without overflow, of int32 or uint32."""
    x, y = typed("hadd", "i32 u32", arg0, arg1)
    return (x & y) + ((x ^ y) >> 1)


@library
def rhadd(arg0: tensor, arg1: tensor):
    """(arg0 + arg1 + 1) >> 1 without overflow, of int32 or uint32."""
    x, y = typed("rhadd", "i32 u32", arg0, arg1)
    return (x | y) - ((x ^ y) >> 1)


@library
def sad(arg0: tensor, arg1: tensor, arg2: tensor):
    """|arg0 - arg1| + arg2 of 32-bit ints; arg2 and the result are uint32, or of the dtype of the others."""
    x, y = typed("sad", "i32 u32", arg0, arg1)
    z = typed("sad", "i32 u32", arg2)
    size = arithmetic.maximum(x, y).to(uint32, bitcast=True) - arithmetic.minimum(x, y).to(
        uint32, bitcast=True
    )
    return (size + z.to(uint32, bitcast=True)).to(z.dtype, bitcast=True)


# --- bits of floats -----------------------------------------------------------------------------------------------
@library
def float_as_uint(arg0: tensor):
    """The bits of an fp32, typed int32."""
    return typed("float_as_uint", "f32", arg0).to(int32, bitcast=True)


@library
def uint_as_float(arg0: tensor):
    """The bits of a uint32 (or int32) as fp32."""
    return typed("uint_as_float", "u32 i32", arg0).to(float32, bitcast=True)


@library
def hiloint2double(arg0: tensor, arg1: tensor):
    """The fp64 with the high 32 bits arg0 and the low 32 bits arg1."""
    high, low = typed("hiloint2double", "i32 u32", arg0, arg1)
    word = high.to(int64) << 32
    return (word | low.to(uint32, bitcast=True).to(int64)).to(float64, bitcast=True)


@library
def double2loint(arg0: tensor):
    """The low 32 bits of an fp64 (int32)."""
    return _bits(typed("double2loint", "f64", arg0)).to(int32)


@library
def double2hiint(arg0: tensor):
    """The high 32 bits of an fp64 (int32)."""
    return (_bits(typed("double2hiint", "f64", arg0)) >> 32).to(int32)


@library
def int2double_rn(arg0: tensor):
    """An int32 as fp64, exact."""
    return typed("int2double_rn", "i32 u32", arg0).to(int32, bitcast=True).to(float64)


@library
def uint2double_rn(arg0: tensor):
    """A uint32 as fp64, exact."""
    return typed("uint2double_rn", "u32 i32", arg0).to(uint32, bitcast=True).to(float64)


@library
def signbit(arg0: tensor):
    """1 if the sign bit of x is set, else 0 (int32)."""
    return _is_negative(typed("signbit", "f", arg0)).to(int32)


@library
def isinf(arg0: tensor):
    """Whether x is infinite (int1)."""
    return arithmetic.abs(typed("isinf", "f", arg0)) == INF


@library
def finitef(arg0: tensor):
    """Whether an fp32 is finite (int1)."""
    return arithmetic.abs(typed("finitef", "f32", arg0)) < INF


@library
def isfinited(arg0: tensor):
    """Whether an fp64 is finite (int1)."""
    return arithmetic.abs(typed("isfinited", "f64", arg0)) < INF


@library
def _ordinary(w: tensor):
    return (w != 0) & (arithmetic.abs(w) < INF)


@library
def logb(arg0: tensor):
    """The exponent of x as a float: floor(log2 |x|); -inf for 0."""
    x = typed("logb", "f", arg0)
    w = x.to(float64)
    e = _exponent(where(_ordinary(w), w, 1.0)).to(float64)
    special = where(w == 0, -INF, arithmetic.abs(w))
    return where(_ordinary(w), e, special).to(x.dtype)


@library
def ilogb(arg0: tensor):
    """The exponent of x (int32); the smallest int for 0 and NaN, the largest for infinity."""
    w = typed("ilogb", "f", arg0).to(float64)
    e = _exponent(where(_ordinary(w), w, 1.0)).to(int32)
    special = where(arithmetic.abs(w) == INF, 2147483647, -2147483648).to(int32)
    return where(_ordinary(w), e, special)


@library
def _times_power(x: tensor, n: tensor):
    """x * 2**n, rounded once. 2**300 brings every fp32 but 0 to infinity, 2**-300 to 0: till there fp64 is exact."""
    if x.dtype == float32:
        most = arithmetic.minimum(arithmetic.maximum(n, -300), 300)
        return (x.to(float64) * ((most.to(int64) + 1023) << 52).to(float64, bitcast=True)).to(
            float32
        )
    else:
        return _scale(x, n)


@library
def ldexp(arg0: tensor, arg1: tensor):
    """arg0 * 2**arg1 for an int32 arg1, rounded once."""
    return _times_power(typed("ldexp", "f", arg0), typed("ldexp", "i32", arg1))


@library
def scalbn(arg0: tensor, arg1: tensor):
    """arg0 * 2**arg1 for an int32 arg1, rounded once."""
    return _times_power(typed("scalbn", "f", arg0), typed("scalbn", "i32", arg1))


@library
def nextafter(arg0: tensor, arg1: tensor):
    """The number after arg0 on the way to arg1."""
    x, y = typed("nextafter", "f", arg0, arg1)
    moved = where(x < y, _step_up(x), where(x > y, _step_down(x), y))
    return where((x == x) & (y == y), moved, x + y)


@library
def fdim(arg0: tensor, arg1: tensor):
    """arg0 - arg1 if positive, else 0; NaN if an operand is NaN."""
    x, y = typed("fdim", "f", arg0, arg1)
    return where(x <= y, 0.0, x - y)


# --- lengths --------------------------------------------------------------------------------------------------------
@library
def _norm(a: tensor, b: tensor, c: tensor, d: tensor, reciprocal: constexpr):
    """sqrt(a a + b b + c c + d d) of fp64, or 1 over it, without overflow on the way."""
    a, b, c, d = arithmetic.abs(a), arithmetic.abs(b), arithmetic.abs(c), arithmetic.abs(d)
    most = arithmetic.maximum(arithmetic.maximum(a, b), arithmetic.maximum(c, d))
    e = _exponent(where((most > 0) & (most < INF), most, 1.0))
    a, b, c, d = _scale(a, -e), _scale(b, -e), _scale(c, -e), _scale(d, -e)
    r = sqrt_rn(fma(a, a, fma(b, b, fma(c, c, d * d))))
    if reciprocal:
        return where(most == INF, 0.0, _scale(1.0 / r, -e))
    else:
        return where(most == INF, INF, _scale(r, e))


@library
def _length(a: tensor, b: tensor, c: tensor, d: tensor, reciprocal: constexpr):
    if a.dtype == float32:
        return _norm_single(a, b, c, d, reciprocal)
    else:
        return _norm(a, b, c, d, reciprocal)


@library
def hypot(arg0: tensor, arg1: tensor):
    """sqrt(arg0**2 + arg1**2): 2 ulp in fp32, 1 ulp in fp64."""
    x, y = typed("hypot", "f", arg0, arg1)
    zero = creation.zeros_like(x)
    return _length(x, y, zero, zero, False)


@library
def rhypot(arg0: tensor, arg1: tensor):
    """1 / sqrt(arg0**2 + arg1**2): 3 ulp in fp32, 3 ulp in fp64."""
    x, y = typed("rhypot", "f", arg0, arg1)
    zero = creation.zeros_like(x)
    return _length(x, y, zero, zero, True)


@library
def norm3d(arg0: tensor, arg1: tensor, arg2: tensor):
    """Length of a vector of three: 2 ulp in fp32, 2 ulp in fp64."""
    x, y, z = typed("norm3d", "f", arg0, arg1, arg2)
    return _length(x, y, z, creation.zeros_like(x), False)


@library
def rnorm3d(arg0: tensor, arg1: tensor, arg2: tensor):
    """1 / length of a vector of three: 3 ulp in fp32, 3 ulp in fp64."""
    x, y, z = typed("rnorm3d", "f", arg0, arg1, arg2)
    return _length(x, y, z, creation.zeros_like(x), True)


@library
def norm4d(arg0: tensor, arg1: tensor, arg2: tensor, arg3: tensor):
    """Length of a vector of four: 2 ulp in fp32, 2 ulp in fp64."""
    x, y, z, t = typed("norm4d", "f", arg0, arg1, arg2, arg3)
    return _length(x, y, z, t, False)


@library
def rnorm4d(arg0: tensor, arg1: tensor, arg2: tensor, arg3: tensor):
    """1 / length of a vector of four: 3 ulp in fp32, 3 ulp in fp64."""
    x, y, z, t = typed("rnorm4d", "f", arg0, arg1, arg2, arg3)
    return _length(x, y, z, t, True)
