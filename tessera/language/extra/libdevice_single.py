"""Defines special functions of fp32 in fp32, in a fraction of the instructions of libdevice_special.py's in fp64.

Their largest measured errors are 0.7 to 4.2 ulp (docs/language/accuracy.md). Each public function names the bound that
tests hold it to, on moderate arguments, arguments of all magnitudes and special values (tests/lang/libdevice_kit.py).
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import float32, int32
from tessera.language import arithmetic
from tessera.language.arithmetic import exp2, fma, log, where
from tessera.language.callable import library
from tessera.language.extra import libdevice_tables as tables
from tessera.language.extra.libdevice_base import INF, NAN, _limited, _poly, _with_sign
from tessera.language.extra.libdevice_ops import (
    erfinv_ratio,
    fast_log2f,
    fast_rcbrt,
    pow,
    rint,
)

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr


# --- lengths, roots -----------------------------------------------------------------------------------------
@library
def _norm_single(a: tensor, b: tensor, c: tensor, d: tensor, reciprocal: constexpr):
    """sqrt(a a + b b + c c + d d), or 1 over it: the largest is brought to between 2 and 4 by a power of two."""
    most = arithmetic.maximum(
        arithmetic.maximum(arithmetic.abs(a), arithmetic.abs(b)),
        arithmetic.maximum(arithmetic.abs(c), arithmetic.abs(d)),
    )
    exponent = arithmetic.maximum(most.to(int32, bitcast=True) & 0x7F800000, 0x00800000)
    scale = (0x7F800000 - exponent).to(float32, bitcast=True)
    a, b, c, d = a * scale, b * scale, c * scale, d * scale
    square = fma(a, a, fma(b, b, fma(c, c, d * d)))
    if reciprocal:
        return where(most == INF, 0.0, arithmetic.rsqrt(square) * scale)
    else:
        root = arithmetic.sqrt(square) * 0.5
        return where(most == INF, INF, root * exponent.to(float32, bitcast=True))


@library
def _rsqrt_single(x: tensor):
    """1 / square root, rounded to nearest: what the quick one misses is found to twice the precision."""
    tiny = arithmetic.abs(x) < 1.1754943508222875e-38
    near = where(tiny, x * 16777216.0, x)
    root = arithmetic.rsqrt(near)
    product = fma(near, root, -0.0)
    rest = fma(-product, root, 1.0)
    rest = fma(-fma(near, root, -product), root, rest)
    better = fma(root * rest, fma(rest, 0.375, 0.5), root)
    root = where((near > 0) & (near < INF), better, root)
    return where(tiny, root * 4096.0, root)


# --- cube roots -------------------------------------------------------------------------------------------------
@library
def _cbrt_single(x: tensor, reciprocal: constexpr):
    """A step of Newton's method; what it makes of 0 and infinity is NaN."""
    # Nothing needs the size of x later: a GPU then scales it under a predicate, and has no instruction that selects.
    size = arithmetic.abs(x)
    tiny = size < 1.1754943508222875e-38
    a = where(tiny, size * 16777216.0, size)
    r = fast_rcbrt(a)
    root = a * r * r
    gap = fma(-root, r, 1.0)
    if reciprocal:
        value = fma(r * gap, 0.3333333333333333, r)
        value = where(tiny, value * 256.0, value)
        value = where(value != value, r, value)
    else:
        value = fma(root * gap, 0.6666666666666666, root)
        value = where(tiny, value * 0.00390625, value)
        value = where(value != value, a, value)
    return _with_sign(value, x)


# --- error function -----------------------------------------------------------------------------------------
@library
def _erfcx_positive_single(a: tensor):
    """exp(a*a) * erfc(a) for a >= 0: (1 + 2a) times it is a polynomial of (a - 4) / (a + 4)."""
    inverse = 1.0 / (a + 4.0)
    t = fma(a - 4.0, inverse, 0.0)  # a product could be fused with the sum t + 1
    t = fma(inverse, fma(-t, a, fma(t + 1.0, -4.0, a)), t)  # a - 4 was rounded
    return 0.5 * _poly(t, tables.ERFCX_SINGLE) / (a + 0.5)


@library
def _exp_of_square(a: tensor, SIGN: constexpr):
    """exp(SIGN a*a): the parts of the square and of log2(e) that fp32 drops are added as a factor."""
    square = fma(a, a, 0.0)
    high = fma(square, 1.4426950216293335, 0.0)  # a product could be fused with the sum high + 64
    rest = fma(square, 1.4426950216293335, -high) + square * 1.925963033500011e-08
    rest += fma(a, a, -square) * 1.4426950216293335
    if SIGN > 0:
        e = exp2(high)
        return where(e < INF, fma(e, rest * 0.6931471805599453, e), e)
    else:
        # 2**64 is taken out of what would be subnormal.
        least = SIGN * high
        e = exp2(where(least < -64.0, least + 64.0, least))
        e = fma(e, rest * (SIGN * 0.6931471805599453), e)
        return where(least < -64.0, e * 5.421010862427522e-20, e)


@library
def _erfc_single(x: tensor):
    a = _limited(arithmetic.abs(x), 11.0)
    tail = _exp_of_square(a, -1.0) * _erfcx_positive_single(a)
    return where(x < 0, 2.0 - tail, tail)


@library
def _erfcx_single(x: tensor):
    a = arithmetic.abs(x)
    scaled = where(a == INF, 0.0, _erfcx_positive_single(where(a == INF, 1.0, a)))
    return where(x < 0, fma(_exp_of_square(_limited(a, 11.0), 1.0), 2.0, -scaled), scaled)


@library
def _erfinv_single(x: tensor):
    return x * erfinv_ratio(fma(-x, x, 1.0))


@library
def _erfcinv_single(z: tensor):
    """erfinv(1 - z), but 1 - (1 - z)**2 is z (2 - z)."""
    return (1.0 - z) * erfinv_ratio(z * (2.0 - z))


@library
def _normcdf_single(x: tensor):
    a = _limited(arithmetic.abs(x), 15.0)
    tail = 0.5 * _erfcx_positive_single(a * 0.7071067811865476) * _exp_of_square(a, -0.5)
    return where(x > 0, 1.0 - tail, tail)


# --- angles in half turns, gamma ----------------------------------------------------------------------------
@library
def _sine_of_part(r: tensor, n: tensor):
    """sin(pi (n + r)) for |r| <= 1/2 and a whole n; pi in two parts."""
    square = r * r
    sine = fma(r * square, _poly(square, tables.SINPI_SINGLE), r * -8.742277657347586e-08)
    sine = fma(r, 3.1415927410125732, sine)
    half = n * 0.5
    return where(rint(half) == half, sine, -sine)


@library
def _sinpi_single(x: tensor):
    n = rint(x)
    value = _sine_of_part(x - n, n)
    return where(value == 0, _with_sign(value, x), value)


@library
def _cospi_single(x: tensor):
    n = rint(x)
    value = _sine_of_part(0.5 - arithmetic.abs(x - n), n)
    return where(value == 0, 0.0, value)


@library
def _lgamma_single(x: tensor):
    """As libdevice_special.py's `_lgamma`, with one logarithm for both the small and the large numbers."""
    a = arithmetic.abs(x)
    tiny = a < 0.5
    inner = where(tiny, a + 1.0, _limited(a, 8.0))
    middle = _poly((inner - 2.0) / (inner + 2.0) * 1.6666666666666667, tables.LGAMMA_SINGLE)
    logarithm = log(a)
    low = fma(a * (a - 1.0), middle, -logarithm)
    big = where(a < 8.0, 8.0, a)
    inverse = 1.0 / big
    series = _poly(fma(inverse * inverse, 128.0, -1.0), tables.STIRLING_SINGLE) * inverse
    large = (big - 0.5) * (logarithm - 1.0) + 0.4189385332046727 + series
    positive = where(tiny, low, where(a < 8.0, middle * ((a - 1.0) * (a - 2.0)), large))
    s = arithmetic.abs(_sinpi_single(x))
    half_turn = fma(fast_log2f(s), -0.6931471805599453, 1.1447298858494002)  # log(pi / s)
    negative = half_turn - logarithm - positive
    negative = where(s == 0, INF, negative)
    result = where(a < 1e-10, -logarithm, where(x < 0, negative, positive))
    return where(a == INF, INF, result)


@library
def _tgamma_single(x: tensor):
    """(a / e)**(a - 1/2) times a polynomial of 1/a, for a = |x|, or |x| + 1 where that is below 1. Of a negative x the
    power is inverted, and is a factor of pi / (sin(pi x) gamma(1 + |x|)); beyond 32, where it may be subnormal, it is
    the square of its root."""
    size = arithmetic.abs(x)
    small = size < 1.0
    negative = x < 0
    a = _limited(where(small, size + 1.0, size), 100.0)
    base = fma(a, 0.3678794503211975, 0.0)  # 1/e in two parts
    lost = fma(a, -9.149756e-09, fma(a, 0.3678794503211975, -base))
    exponent = where(negative, 0.5 - a, a - 0.5)
    far = negative & (a > 32.0)
    exponent = where(far, exponent * 0.5, exponent)
    power = pow(base, exponent)
    t = 1.0 / a
    change = exponent * t * (lost * 2.7182817459106445)
    power = where(power < INF, fma(power, change, power), power)
    rest = _poly(t, tables.TGAMMA_SINGLE)
    s = _sinpi_single(size)
    below = where(negative, where(small, 1.0, size) * s * rest, where(small, x, 1.0))
    value = power * where(negative, -3.1415927410125732, rest) / below
    value = where(far, value * power, value)
    return where(negative & (s == 0), NAN, value)
