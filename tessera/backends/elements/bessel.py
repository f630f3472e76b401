"""Writes Bessel functions of fp32, whose large arguments have a branch of their own.

Below 7.5 J is its zeros times a polynomial of a*a, Y that plus a multiple of log(a) J. From there on both are a modulus
times the sine of a phase: polynomials of 1 / (a*a), of an angle that is reduced in fp64. I is a polynomial of a*a below
9, then exp(a) / sqrt(a) times one of 1/a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tessera.backends.elements import coefficients as c
from tessera.backends.elements.floats import Floats, function
from tessera.dtypes import float32, float64

TURN = 9.0  # up to here 11 terms do for I
WAVES = 7.5  # from here on 4 terms do for the modulus and the phase of J and Y
GROWTH = 0.055  # of the logarithm of I0 and of I1 / a by a * a, between 7 and 9


def _far(m: Floats, a: str, coefficients: Sequence[float]) -> str:
    """exp(a) is 2^r 2^n. The factor 2^(n - 12), and 2^12 of the rest, stay in range where the result does."""
    near = m.call("minnum", a, m.const(96.0))  # n stays below 2^7 + 12, and the result is infinite
    shifted = m.fma(near, m.const(1 / math.log(2)), m.shifter())
    n = m.sub(shifted, m.shifter())
    r = m.fma(near, m.const(c.LOG2_E[0]), m.neg(n))
    r = m.fma(near, m.const(c.LOG2_E[1]), r)
    power = m.from_bits(
        m.iop("add", m.iop("shl", m.bits(shifted), m.mantissa), (m.t.bias - 12) << m.mantissa)
    )
    root = m.math("rsqrt", a)
    size = m.mul(m.mul(root, m.polynomial(coefficients, m.mul(root, root))), m.const(2.0**12))
    value = m.mul(m.mul(m.math("exp2", r), size), power)
    return m.select(m.cmp("ogt", a, m.const(96.0)), m.const(math.inf), value)


def _bessel_i(m: Floats, a: str, usual: str, coefficients: Sequence[float]) -> str:
    rare = m.negated(m.below(a, TURN))  # NaN too
    return m.x.rarely(m.t, rare, usual, lambda: _far(m, a, coefficients))


def _near(m: Floats, a: str, factor: str | None, coefficients: Sequence[float]) -> str:
    """A polynomial of a * a / 4, times `factor`. The square's rounding error counts where the result grows by GROWTH
    of itself for each unit of the square."""
    square = m.mul(a, a)
    lost = m.mul(m.fma(a, a, m.neg(square)), m.const(GROWTH))
    value = m.polynomial([v * 0.25**k for k, v in enumerate(coefficients)], square)
    value = value if factor is None else m.mul(value, factor)
    return m.fma(value, lost, value)


@function("bessel_i0", float32)
def _bessel_i0(m: Floats, a: str) -> str:
    return _bessel_i(m, a, _near(m, a, None, c.BESSEL_I0_NEAR), c.BESSEL_I0_FAR)


@function("bessel_i1", float32)
def _bessel_i1(m: Floats, a: str) -> str:
    half = m.mul(a, m.const(0.5))
    return _bessel_i(m, a, _near(m, a, half, c.BESSEL_I1_NEAR), c.BESSEL_I1_FAR)


# --- J and Y -----------------------------------------------------------------------------------------------------
def _inner(m: Floats, a: str) -> str:
    return m.fma(m.mul(a, a), m.const(0.03125), m.const(-1.0))


def _near_zeros(m: Floats, a: str, coefficients: Sequence[float], zeros: Sequence[float]) -> str:
    """A polynomial times (a - z1) (a + z1) (a - z2) (a + z2), for zeros in two parts each."""

    def factor(high: float, low: float) -> str:
        below = m.sub(m.sub(a, m.const(high)), m.const(low))
        return m.mul(below, m.add(a, m.const(high)))

    product = m.mul(factor(zeros[0], zeros[1]), factor(zeros[2], zeros[3]))
    return m.mul(product, m.polynomial(coefficients, _inner(m, a)))


def _reduced(m: Floats, a: str, turn: float) -> tuple[str, str]:
    """Return (r, n) with a + turn = n pi + r, pi in two parts; n in the low bits of an i64. Beyond 2^50 the angle is
    that of 2^50."""
    k = Floats(m.x, float64)
    wide = m.x.convert("fpext", "float", m.call("minnum", a, m.const(2.0**50)), "double")
    shifted = k.fma(k.add(wide, k.const(turn)), k.const(1 / math.pi), k.shifter())
    n = k.sub(shifted, k.shifter())
    rest = k.fma(n, k.const(-1.2246467991473532e-16), k.fma(n, k.const(-math.pi), wide))
    r = m.x.convert("fptrunc", "double", k.add(rest, k.const(turn)), "float")
    return r, k.bits(shifted)


def _wave(m: Floats, a: str, order: int, turn: float) -> str:
    """Return the modulus times sin(a + turn + phase), for a >= 7.5."""
    root = m.math("rsqrt", a)
    t = m.mul(root, root)
    square = m.mul(t, t)
    r, n = _reduced(m, a, turn)
    r = m.fma(t, m.polynomial(c.BESSEL_PHASES[order], square), r)
    z = m.mul(r, r)
    sine = m.fma(m.mul(r, z), m.polynomial(c.BESSEL_SINE, z), r)
    odd = m.iop("shl", m.x.convert("trunc", "i64", n, "i32"), 31)
    turned = m.from_bits(m.iop("xor", m.bits(sine), odd))
    size = m.mul(root, m.polynomial(c.BESSEL_MODULI[order], square))
    return m.fma(size, turned, m.const(0.0))  # 0 at infinity, and not -0


def _oscillating(m: Floats, a: str, small: str, order: int, turn: float) -> str:
    rare = m.negated(m.below(a, WAVES))  # NaN too
    return m.x.rarely(m.t, rare, small, lambda: _wave(m, a, order, turn * math.pi))


@function("bessel_j0", float32)
def _bessel_j0(m: Floats, a: str) -> str:
    least = m.fma(m.mul(a, a), m.const(-0.25), m.const(1.0))
    small = m.select(m.below(a, 0.03125), least, _near_zeros(m, a, c.BESSEL_J0, c.BESSEL_J0_ZEROS))
    return _oscillating(m, a, small, 0, 0.25)


@function("bessel_j1", float32)
def _bessel_j1(m: Floats, a: str) -> str:
    small = m.mul(a, _near_zeros(m, a, c.BESSEL_J1, c.BESSEL_J1_ZEROS))
    return _oscillating(m, a, small, 1, -0.25)


def _scaled_log(m: Floats, a: str) -> str:
    return m.mul(m.math("fast_log2", a), m.const(2 / math.pi * math.log(2)))


@function("bessel_y0", float32)
def _bessel_y0(m: Floats, a: str) -> str:
    j = _near_zeros(m, a, c.BESSEL_J0, c.BESSEL_J0_ZEROS)
    small = m.fma(_scaled_log(m, a), j, m.polynomial(c.BESSEL_Y0, _inner(m, a)))
    return _oscillating(m, a, small, 0, -0.25)


@function("bessel_y1", float32)
def _bessel_y1(m: Floats, a: str) -> str:
    j = _near_zeros(m, a, c.BESSEL_J1, c.BESSEL_J1_ZEROS)
    regular = m.fma(_scaled_log(m, a), j, m.polynomial(c.BESSEL_Y1, _inner(m, a)))
    small = m.fma(a, regular, m.div(m.const(-2 / math.pi), a))
    edge = m.select(m.cmp("oeq", a, m.const(0.0)), m.const(-math.inf), m.const(math.nan))
    return _oscillating(m, a, m.select(m.cmp("ogt", a, m.const(0.0)), small, edge), 1, -0.75)
