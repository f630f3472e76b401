"""Defines libdevice's Bessel functions of fp32 in fp32, but for the phase beyond 7.5, whose angle is reduced in fp64.

Below 7.5 J is its zeros times a polynomial of x*x, Y that plus a multiple of log(x) J. From there on both are a modulus
times the sine of a phase: polynomials of 1 / (x*x). I is an op (backends/elements/bessel.py).
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import float32, float64, int32, int64
from tessera.language import arithmetic
from tessera.language.arithmetic import fma, rsqrt, where
from tessera.language.callable import library
from tessera.language.creation import zeros_like
from tessera.language.extra import libdevice_tables as tables
from tessera.language.extra.libdevice_base import INF, NAN, _poly
from tessera.language.extra.libdevice_ops import fast_log2f

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr


@library
def _inner(a: tensor):
    return fma(a * a, 0.03125, -1.0)


@library
def _near_j(a: tensor, C: constexpr, Z: constexpr):
    """A polynomial times (a - z1) (a + z1) (a - z2) (a + z2), for zeros in two parts each."""
    first = ((a - Z[0]) - Z[1]) * (a + Z[0])
    second = ((a - Z[2]) - Z[3]) * (a + Z[2])
    return first * second * _poly(_inner(a), C)


@library
def _wave(a: tensor, M: constexpr, P: constexpr, turn: constexpr):
    """Return the modulus times sin(a + turn + phase), for a >= 7.5; beyond 2**50 the angle is that of 2**50."""
    root = rsqrt(a)
    t = root * root
    square = t * t
    # a + turn = n pi + r, pi in two parts; the sum with 1.5 * 2**52 has n in its low bits.
    wide = arithmetic.minimum(a, 1125899906842624.0).to(float64)
    shifted = (wide + turn) * 0.3183098861837907 + 6755399441055744.0
    n = shifted - 6755399441055744.0
    rest = fma(n, zeros_like(n) - 3.141592653589793, wide) - n * 1.2246467991473532e-16
    r = (rest + turn).to(float32)
    r = fma(t, _poly(square, P), r)
    z = r * r
    sine = fma(r * z, _poly(z, tables.SINE_SINGLE), r)
    odd = shifted.to(int64, bitcast=True).to(int32) << 31
    turned = (sine.to(int32, bitcast=True) ^ odd).to(float32, bitcast=True)
    return fma(root * _poly(square, M), turned, 0.0)  # 0 at infinity, and not -0


@library
def _signed(value: tensor, x: tensor):
    """Return value with its sign turned where x has one."""
    sign = x.to(int32, bitcast=True) & -0x80000000
    return (value.to(int32, bitcast=True) ^ sign).to(float32, bitcast=True)


@library
def _j0_single(x: tensor):
    a = arithmetic.abs(x)
    small = _near_j(a, tables.J0_SINGLE, tables.J0_ZEROS_SINGLE)
    small = where(a < 0.03125, fma(a * a, -0.25, 1.0), small)
    large = _wave(a, tables.MODULUS0, tables.PHASE0, 0.7853981633974483)
    return where(a < 7.5, small, large)


@library
def _j1_single(x: tensor):
    a = arithmetic.abs(x)
    small = a * _near_j(a, tables.J1_SINGLE, tables.J1_ZEROS_SINGLE)
    large = _wave(a, tables.MODULUS1, tables.PHASE1, -0.7853981633974483)
    return _signed(where(a < 7.5, small, large), x)


@library
def _y0_single(x: tensor):
    logarithm = 0.4412712003053032 * fast_log2f(x)  # 2/pi log 2
    j = _near_j(x, tables.J0_SINGLE, tables.J0_ZEROS_SINGLE)
    small = fma(logarithm, j, _poly(_inner(x), tables.Y0_SINGLE))
    large = _wave(x, tables.MODULUS0, tables.PHASE0, -0.7853981633974483)
    return where(x < 7.5, small, large)


@library
def _y1_single(x: tensor):
    logarithm = 0.4412712003053032 * fast_log2f(x)  # 2/pi log 2
    j = _near_j(x, tables.J1_SINGLE, tables.J1_ZEROS_SINGLE)
    regular = fma(logarithm, j, _poly(_inner(x), tables.Y1_SINGLE))
    small = where(x > 0, fma(x, regular, -0.6366197723675814 / x), where(x == 0, -INF, NAN))
    large = _wave(x, tables.MODULUS1, tables.PHASE1, -2.356194490192345)
    return where(x < 7.5, small, large)
