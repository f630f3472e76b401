"""Defines libdevice's error and gamma functions, roots, inverse hyperbolic functions, functions of half turns."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import float32, float64
from tessera.language import arithmetic, hints
from tessera.language.arithmetic import cos, exp, exp2, fma, log, sin, where
from tessera.language.arithmetic import erf as erf_op
from tessera.language.callable import library
from tessera.language.creation import zeros_like
from tessera.language.extra import libdevice_tables as tables
from tessera.language.extra.libdevice_base import (
    INF,
    NAN,
    _cosine_of,
    _exp_split,
    _limited,
    _poly,
    _product2,
    _sine_of,
    _with_sign,
    typed,
)
from tessera.language.extra.libdevice_ops import floor, pow, rint, sqrt_rn, trunc
from tessera.language.extra.libdevice_single import (
    _cbrt_single,
    _cospi_single,
    _erfc_single,
    _erfcinv_single,
    _erfcx_single,
    _erfinv_single,
    _lgamma_single,
    _normcdf_single,
    _sinpi_single,
    _tgamma_single,
)

if TYPE_CHECKING:
    from tessera.language.values import tensor

__all__ = [
    "cbrt", "cospi", "erfc", "erfcinv", "erfcx", "erfinv", "lgamma", "normcdf",
    "normcdfinv", "rcbrt", "sinpi", "tgamma",
]  # fmt: skip


# --- error function -------------------------------------------------------------------------------------------
@library
def _erfcx_positive(a: tensor):
    """exp(a*a) * erfc(a) for a >= 0: (1 + 2a) times it is a polynomial of (a - 4) / (a + 4)."""
    t = 1.0 - 8.0 / (a + 4.0)
    return _poly(t, tables.ERFCX) / fma(a, 2.0, 1.0)


@library
def _erfc(x: tensor):
    a = _limited(arithmetic.abs(x), 30.0)
    square, rest = _product2(a, a)
    tail = _exp_split(-square, -rest) * _erfcx_positive(a)
    return where(a < 0.5, 1.0 - erf_op(x), where(x < 0, 2.0 - tail, tail))


@library
def erfc(arg0: tensor):
    """1 - erf(x), relatively accurate in the tail too: 6 ulp in fp32, 4 ulp in fp64."""
    x = typed("erfc", "f", arg0)
    if x.dtype == float32:
        return _erfc_single(x)
    else:
        return _erfc(x)


@library
def _erfcx(x: tensor):
    a = arithmetic.abs(x)
    near = _limited(a, 30.0)
    square, rest = _product2(near, near)
    scaled = _erfcx_positive(a)
    grown = _exp_split(square, rest)
    outer = where(x < 0, 2.0 * grown - scaled, scaled)
    return where(a < 0.5, grown * (1.0 - erf_op(x)), outer)


@library
def erfcx(arg0: tensor):
    """exp(x*x) * erfc(x): 4 ulp in fp32, 4 ulp in fp64."""
    x = typed("erfcx", "f", arg0)
    if x.dtype == float32:
        return _erfcx_single(x)
    else:
        return _erfcx(x)


@library
def _normcdf(x: tensor):
    a = _limited(arithmetic.abs(x), 40.0)
    square, rest = _product2(a, a)
    tail = 0.5 * _exp_split(-0.5 * square, -0.5 * rest) * _erfcx_positive(a * 0.7071067811865476)
    centre = 0.5 * erf_op(x * 0.7071067811865476) + 0.5
    return where(a < 0.5, centre, where(x > 0, 1.0 - tail, tail))


@library
def normcdf(arg0: tensor):
    """Probability that a standard normal variable is below x: 6 ulp in fp32, 5 ulp in fp64."""
    x = typed("normcdf", "f", arg0)
    if x.dtype == float32:
        return _normcdf_single(x)
    else:
        return _normcdf(x)


@library
def _erfinv_centre(x: tensor):
    """For |x| <= 1/2."""
    return x * _poly(fma(x * x, 8.0, -1.0), tables.ERFINV)


@library
def _erfcinv_tail(z: tensor):
    """For 0 < z <= 1/2: a first guess from sqrt(-log z), then Newton's method on the logarithm of erfc."""
    high = log(z)
    s = sqrt_rn(-high)
    # 1/s is between 1/27.4 and 1/sqrt(log 2).
    t = (1.0 / s - 0.6188093795757067) / 0.5823130292107431
    y = s * _poly(t, tables.ERFCINV_START)
    for _ in hints.static_range(2):
        square, rest = _product2(y, y)
        scaled = _erfcx_positive(y)
        gap = ((log(scaled) - square) - high) - rest
        y = y + gap * scaled * 0.886226925452758
    return y


@library
def _erfcinv(z: tensor):
    """z between 0 and 2."""
    centre = _erfinv_centre(1.0 - z)
    outer = where(z < 1.0, z, 2.0 - z)
    tail = _erfcinv_tail(where((outer > 0) & (outer < 0.5), outer, 0.25))
    tail = where(outer == 0, INF, tail)
    result = where(outer >= 0.5, centre, where(z < 1.0, tail, -tail))
    return where((z >= 0) & (z <= 2.0), result, NAN)


@library
def erfcinv(arg0: tensor):
    """Inverse of erfc: 5 ulp in fp32, 4 ulp in fp64; NaN outside of [0, 2]."""
    x = typed("erfcinv", "f", arg0)
    if x.dtype == float32:
        return _erfcinv_single(x)
    else:
        return _erfcinv(x)


@library
def erfinv(arg0: tensor):
    """Inverse of erf: 4 ulp in fp32, 4 ulp in fp64; NaN outside of [-1, 1]."""
    x = typed("erfinv", "f", arg0)
    if x.dtype == float32:
        return _erfinv_single(x)
    else:
        a = arithmetic.abs(x)
        tail = _with_sign(_erfcinv(1.0 - a), x)
        return where(a <= 0.5, _erfinv_centre(x), tail)


@library
def normcdfinv(arg0: tensor):
    """Inverse of normcdf: 5 ulp in fp32, 5 ulp in fp64; NaN outside of [0, 1]."""
    x = typed("normcdfinv", "f", arg0)
    if x.dtype == float32:
        return -1.4142135623730951 * _erfcinv_single(2.0 * x)
    else:
        return -1.4142135623730951 * _erfcinv(2.0 * x)


# --- angles in half turns -----------------------------------------------------------------------------------
@library
def _half_turns(x: tensor):
    """Return (sin(pi r), cos(pi r), n) with x = n/2 + r, |r| <= 1/4; only n modulo 4 matters."""
    whole = x - 2.0 * rint(x * 0.5)  # exact, from -1 to 1
    n = rint(whole * 2.0)
    r = fma(n, -0.5, whole)
    high = r * 3.141592653589793
    pi = zeros_like(r) + 3.141592653589793  # a Python number in fma would become fp32
    low = fma(r, pi, -high) + r * 1.2246467991473532e-16
    s, c = sin(high), cos(high)
    return fma(c, low, s), fma(-s, low, c), n.to(float64)


@library
def _sinpi(x: tensor):
    s, c, n = _half_turns(x)
    return _sine_of(s, c, n, x)


@library
def sinpi(arg0: tensor):
    """sin(pi x): 2 ulp in fp32, 2 ulp in fp64."""
    x = typed("sinpi", "f", arg0)
    if x.dtype == float32:
        return _sinpi_single(x)
    else:
        return _sinpi(x)


@library
def cospi(arg0: tensor):
    """cos(pi x): 2 ulp in fp32, 2 ulp in fp64."""
    x = typed("cospi", "f", arg0)
    if x.dtype == float32:
        return _cospi_single(x)
    else:
        s, c, n = _half_turns(x)
        return _cosine_of(s, c, n)


# --- gamma --------------------------------------------------------------------------------------------------------
@library
def _lgamma_middle(x: tensor):
    """lgamma(x) / ((x - 1) (x - 2)) for x between 1/2 and 8: a polynomial of (x - 2) / (x + 2)."""
    return _poly((x - 2.0) / (x + 2.0) * 1.6666666666666667, tables.LGAMMA)


@library
def _stirling(x: tensor):
    """Return the error of Stirling's formula for log gamma, for x >= 8."""
    w = 1.0 / (x * x)
    return _poly(fma(w, 128.0, -1.0), tables.STIRLING) / x


@library
def _lgamma_positive(a: tensor):
    tiny = a < 0.5
    inner = where(tiny, a + 1.0, _limited(a, 8.0))
    middle = _lgamma_middle(inner)
    low = fma(a * (a - 1.0), middle, -log(a))
    middle = middle * ((a - 1.0) * (a - 2.0))
    big = where(a < 8.0, 8.0, a)
    large = (big - 0.5) * (log(big) - 1.0) + 0.4189385332046727 + _stirling(big)
    return where(tiny, low, where(a < 8.0, middle, large))


@library
def _lgamma(x: tensor):
    a = arithmetic.abs(x)
    positive = _lgamma_positive(a)
    s = arithmetic.abs(_sinpi(x))
    negative = log(3.141592653589793 / s) - log(a) - positive
    negative = where(s == 0, INF, negative)
    result = where(a < 1e-17, -log(a), where(x < 0, negative, positive))
    return where(a == INF, INF, result)


@library
def lgamma(arg0: tensor):
    """log |gamma(x)|: 6 ulp in fp32, 8 ulp in fp64; between -11 and -2.2, where it has zeros, the error is absolute:
    2**-18 in fp32, 2**-48 in fp64."""
    x = typed("lgamma", "f", arg0)
    if x.dtype == float32:
        return _lgamma_single(x)
    else:
        return _lgamma(x)


@library
def _tgamma(x: tensor):
    a = arithmetic.abs(x)
    # Below 12 it is gamma(1 + r) for the fraction r of |x|, times the factors from 1 + r up to |x|.
    near = where(a < 12.0, a, 1.0)
    n = floor(near)
    low = 1.0 / _poly(fma(near - n, 2.0, -1.0), tables.RGAMMA)
    for k in hints.static_range(1, 11):
        factor = near - k
        low = low * where(factor >= 1.0, factor, 1.0)
    low = where(near < 1.0, low / near, low)
    # From 12 on: Stirling. The power is taken in two halves, which do not overflow before the result does.
    big = where(a < 12.0, 12.0, _limited(a, 200.0))
    half = pow(big, fma(big, 0.5, -0.25))
    series = 2.5066282746310002 * exp(_stirling(big))
    large = (half * exp(-big)) * half * series
    mirror = -3.141592653589793 / (a * _sinpi(a))
    small = where(a < 12.0, mirror / low, mirror / half * exp(big) / half / series)
    result = where(x < 0, small, where(a < 12.0, low, large))
    result = where(x == 0, _with_sign(x * 0.0 + INF, x), result)
    return where(x < 0, where((trunc(x) == x) | (a == INF), NAN, result), result)


@library
def tgamma(arg0: tensor):
    """gamma(x): 6 ulp in fp32, 12 ulp in fp64; NaN at negative whole numbers."""
    x = typed("tgamma", "f", arg0)
    if x.dtype == float32:
        return _tgamma_single(x)
    else:
        return where(x == INF, INF, _tgamma(x))


# --- cube roots ---------------------------------------------------------------------------------------------------
@library
def _cbrt(x: tensor):
    a = arithmetic.abs(x)
    low = a < 1e-290
    b = where(low, a * 18014398509481984.0, a)  # 2**54
    b = where((b > 0) & (b < INF), b, 1.0)
    y = exp2(arithmetic.log2(b) * 0.3333333333333333)
    for _ in hints.static_range(2):  # the residual y**3 - b in twice the precision
        square, e1 = _product2(y, y)
        cube, e2 = _product2(square, y)
        gap = (cube - b) + fma(e1, y, e2)
        y = y - gap / (3.0 * square)
    y = where(low, y * 3.814697265625e-06, y)  # 2**-18
    return where((a > 0) & (a < INF), _with_sign(y, x), x)


@library
def cbrt(arg0: tensor):
    """Cube root: 1 ulp in fp32, 1 ulp in fp64."""
    x = typed("cbrt", "f", arg0)
    if x.dtype == float32:
        return _cbrt_single(x, False)
    else:
        return _cbrt(x)


@library
def rcbrt(arg0: tensor):
    """1 / cube root: 1.2 ulp in fp32, 2 ulp in fp64."""
    x = typed("rcbrt", "f", arg0)
    if x.dtype == float32:
        return _cbrt_single(x, True)
    else:
        return 1.0 / _cbrt(x)
