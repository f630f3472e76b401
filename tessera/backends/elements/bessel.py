"""Writes the modified Bessel functions I of fp32: a polynomial of a*a, beyond 9 exp(a) / sqrt(a) times one of 1/a."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tessera.backends.elements import coefficients as c
from tessera.backends.elements.floats import Floats, function
from tessera.dtypes import float32

TURN = 9.0  # up to here 11 terms do
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
