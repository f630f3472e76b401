"""Defines libdevice's Bessel functions; those of fp32 are ops, but for jn and yn.

J and Y: below 8 a polynomial in x*x with the zeros taken out (J) or beside the logarithm (Y); from 8 on amplitudes P,
Q of cos and sin of the phase. Near zeros the error is absolute, 2**-50 of the function's size there (fp32: 2**-21).
"""

# pyright: reportAttributeAccessIssue=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import float32, float64, int32
from tessera.language import arithmetic, creation, hints, standard
from tessera.language.arithmetic import cos, exp, fma, log, sin, where
from tessera.language.callable import library
from tessera.language.extra import libdevice_tables as tables
from tessera.language.extra.libdevice_base import (
    INF,
    NAN,
    _is_negative,
    _limited,
    _poly,
    typed,
)
from tessera.language.extra.libdevice_ops import (
    bessel_i0,
    bessel_i1,
    bessel_j0,
    bessel_j1,
    bessel_y0,
    bessel_y1,
    sqrt_rn,
)

__all__ = ["cyl_bessel_i0", "cyl_bessel_i1", "j0", "j1", "jn", "y0", "y1", "yn"]

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr


@library
def _inner(a: tensor):
    """Return the variable of the polynomials below 8."""
    return fma(a * a, 0.03125, -1.0)


@library
def _off_zeros(a: tensor, Z: constexpr):
    """Return (a**2 - z1**2) (a**2 - z2**2) for the zeros z1, z2 given in two parts each."""
    first = ((a - Z[0]) - Z[1]) * (a + Z[0])
    return first * (((a - Z[2]) - Z[3]) * (a + Z[2]))


@library
def _outer(a: tensor, P: constexpr, Q: constexpr):
    """Return (amplitude P, amplitude Q, sin a + cos a, sin a - cos a, sqrt(1 / (pi a))) for a >= 8."""
    far = where((a >= 8.0) & (a < INF), a, 8.0)
    t = fma(64.0 / far / far, 2.0, -1.0)
    s, c = sin(far), cos(far)
    size = sqrt_rn(0.3183098861837907 / far)
    return _poly(t, P), _poly(t, Q) / far, s + c, s - c, where(a == INF, 0.0, size)


@library
def _j0(a: tensor):
    near = _limited(a, 8.0)
    small = _off_zeros(near, tables.J0_ZEROS) * _poly(_inner(near), tables.J0)
    p, q, plus, minus, size = _outer(a, tables.P0, tables.Q0)
    return where(a < 8.0, small, where(a == a, size * (p * plus - q * minus), a))


@library
def _j1(a: tensor):
    """For a >= 0."""
    near = _limited(a, 8.0)
    small = near * (_off_zeros(near, tables.J1_ZEROS) * _poly(_inner(near), tables.J1))
    p, q, plus, minus, size = _outer(a, tables.P1, tables.Q1)
    return where(a < 8.0, small, where(a == a, size * (p * minus + q * plus), a))


@library
def _y0(x: tensor):
    near = _limited(x, 8.0)
    small = fma(0.6366197723675814 * log(near), _j0(near), _poly(_inner(near), tables.Y0))
    p, q, plus, minus, size = _outer(x, tables.P0, tables.Q0)
    value = where(x < 8.0, small, where(x == x, size * fma(p, minus, q * plus), x))
    return where(x < 0, NAN, where(x == 0, -INF, value))


@library
def _y1(x: tensor):
    near = _limited(x, 8.0)
    singular = 0.6366197723675814 * fma(log(near), _j1(near), -1.0 / near)
    small = fma(near, _poly(_inner(near), tables.Y1), singular)
    p, q, plus, minus, size = _outer(x, tables.P1, tables.Q1)
    value = where(x < 8.0, small, where(x == x, size * fma(q, minus, -(p * plus)), x))
    return where(x < 0, NAN, where(x == 0, -INF, value))


@library
def j0(arg0: tensor):
    """Bessel function of the first kind, order 0: 9 ulp in fp32, 16 ulp in fp64, absolute near zeros beyond 8. In fp32
    beyond 2**50 only the size of the wave is right."""
    x = typed("j0", "f", arg0)
    if x.dtype == float32:
        return bessel_j0(arithmetic.abs(x))
    else:
        return _j0(arithmetic.abs(x))


@library
def j1(arg0: tensor):
    """Bessel function of the first kind, order 1: 9 ulp in fp32, 16 ulp in fp64, absolute near zeros beyond 8. In fp32
    beyond 2**50 only the size of the wave is right."""
    x = typed("j1", "f", arg0)
    a = arithmetic.abs(x)
    if x.dtype == float32:
        value = bessel_j1(a)
    else:
        value = _j1(a)
    return where(_is_negative(x), -value, value)


@library
def y0(arg0: tensor):
    """Bessel function of the second kind, order 0: 9 ulp in fp32, 16 ulp in fp64, absolute near zeros. In fp32
    beyond 2**50 only the size of the wave is right."""
    x = typed("y0", "f", arg0)
    if x.dtype == float32:
        return bessel_y0(x)
    else:
        return _y0(x)


@library
def y1(arg0: tensor):
    """Bessel function of the second kind, order 1: 9 ulp in fp32, 16 ulp in fp64, absolute near zeros. In fp32
    beyond 2**50 only the size of the wave is right."""
    x = typed("y1", "f", arg0)
    if x.dtype == float32:
        return bessel_y1(x)
    else:
        return _y1(x)


@library
def _largest(n: tensor):
    """Return the largest element of an int tile or scalar."""
    if len(n.shape) == 0:
        return n
    else:
        return standard.max(n)


@library
def jn(arg0: tensor, arg1: tensor):
    """Bessel function of the first kind of the int32 order arg0: 0.5 ulp in fp32, 16 ulp in fp64.

    Where it oscillates (arg1 above the order) the error is absolute, 2 * 2**-52 in fp64. Takes time in proportion to
    the largest order of the tile.
    """
    order, x = typed("jn", "i32", arg0), typed("jn", "f", arg1)
    order = order + creation.zeros_like(x).to(int32)
    w = x.to(float64) + creation.zeros_like(order).to(float64)
    n, a = arithmetic.abs(order), arithmetic.abs(w)
    odd = (n & 1) != 0
    top = _largest(n)
    j0_, j1_ = _j0(a), _j1(a)
    # Upward recurrence is stable while the order stays below a.
    low, high = j0_, j1_
    for k in range(1, top):
        following = 2.0 * k.to(float64) / a * high - low
        low = where(k < n, high, low)
        high = where(k < n, following, high)
    # Above, J(n) / J(n-1) is a continued fraction; downward from there, the ratio to J(0) and J(1).
    wide = n.to(float64)
    below = where((a < wide) & (a > 0), a, 1.0)
    square = below * below
    fraction = 2.0 * (wide + 80.0)
    for k in hints.static_range(80):
        fraction = 2.0 * (wide + (79 - k)) - square / fraction
    p, q = fraction * 0.0 + 1.0, fraction / below  # J(n), J(n-1), up to a factor
    scale = fraction * 0.0 + 1.0
    for i in range(0, top):
        k = top - 1 - i  # J(k-1) from J(k) and J(k+1)
        use = (k < n) & (k >= 1)
        following = 2.0 * k.to(float64) / below * q - p
        p = where(use, q, p)
        q = where(use, following, q)
        large = arithmetic.abs(q) > 1e150
        shrink = where(large, 1e-150, 1.0)
        p, q, scale = p * shrink, q * shrink, scale * shrink
    by0 = arithmetic.abs(j0_) > arithmetic.abs(j1_)
    ratio = where(by0, j0_ / q, j1_ / p) * scale
    value = where(a < wide, where(a > 0, ratio, 0.0), high)
    value = where(n == 0, j0_, where(n == 1, j1_, value))
    value = where(a == INF, 0.0, where(w == w, value, w))
    return where(odd & ((order < 0) != (w < 0)), -value, value).to(x.dtype)


@library
def yn(arg0: tensor, arg1: tensor):
    """Bessel function of the second kind of the int32 order arg0: 0.5 ulp in fp32, 16 ulp in fp64.

    Where it oscillates (arg1 above the order) the error is absolute, 2 * 2**-52 in fp64. Takes time in proportion to
    the largest order of the tile.
    """
    order, x = typed("yn", "i32", arg0), typed("yn", "f", arg1)
    order = order + creation.zeros_like(x).to(int32)
    w = x.to(float64) + creation.zeros_like(order).to(float64)
    n = arithmetic.abs(order)
    low, high = _y0(w), _y1(w)
    value = where(n == 0, low, high)
    for k in range(1, _largest(n)):
        following = 2.0 * k.to(float64) / w * high - low
        following = where(high == -INF, -INF, following)
        low = where(k < n, high, low)
        high = where(k < n, following, high)
    value = where(n > 1, high, value)
    value = where(w == INF, 0.0, value)
    return where((order < 0) & ((n & 1) != 0), -value, value).to(x.dtype)


@library
def _bessel_i(a: tensor, SMALL: constexpr, LARGE: constexpr, power: constexpr):
    """Return exp(a) times a polynomial of 8/a from 8 on; the Taylor series below."""
    near = _limited(a, 8.0)
    small = _poly(near * near * 0.25, SMALL)
    if power == 1:
        small = small * (near * 0.5)
    far = where(a < 8.0, 8.0, a)
    half = exp(0.5 * far)
    large = half * (_poly(16.0 / far - 1.0, LARGE) / sqrt_rn(far)) * half
    return where(a < 8.0, small, where(a == INF, INF, large))


@library
def cyl_bessel_i0(arg0: tensor):
    """Modified Bessel function of the first kind, order 0: 6 ulp in fp32, 6 ulp in fp64."""
    x = typed("cyl_bessel_i0", "f", arg0)
    a = arithmetic.abs(x)
    if x.dtype == float32:
        return bessel_i0(a)
    else:
        return _bessel_i(a, tables.I0_SMALL, tables.I0_LARGE, 0)


@library
def cyl_bessel_i1(arg0: tensor):
    """Modified Bessel function of the first kind, order 1: 6 ulp in fp32, 6 ulp in fp64."""
    x = typed("cyl_bessel_i1", "f", arg0)
    a = arithmetic.abs(x)
    if x.dtype == float32:
        value = bessel_i1(a)
    else:
        value = _bessel_i(a, tables.I1_SMALL, tables.I1_LARGE, 1)
    return where(_is_negative(x), -value, value)
