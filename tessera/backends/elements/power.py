"""Writes x to the power y: the exponential of y log |x|, then the signs and special cases of IEEE's pow.

A relative error of 2^-24 in y log x is an error of y log x units in the last place of the power: the product needs as
many additional bits as its integral part has. fp32 computed in fp64 has them, which leaves an error of at most 0.51
ulp. Where fp64 is slow, and in fp64 itself, the logarithm is an unevaluated sum of two numbers: 11 more bits in fp32,
which keep the power within 2 ulp, and likewise in fp64.
"""

from __future__ import annotations

import math

from tessera.backends.elements import coefficients as c
from tessera.backends.elements.builder import ElementBuilder
from tessera.backends.elements.exponentials import (
    log_edges,
    low_bits,
    split_bits,
    split_exponent,
    unit,
)
from tessera.backends.elements.floats import Floats, function
from tessera.dtypes import float32, float64


def _signs(m: Floats, size: str, x: str, y: str, least: float | None = None) -> str:
    """Give |x|^y its sign for a whole y, and NaN for other powers of numbers between `least` and 0."""
    half = m.mul(y, m.const(0.5))
    whole = m.cmp("oeq", m.call("trunc", y), y)
    odd = m.both(whole, m.cmp("une", m.call("trunc", half), half))
    signed = m.select(odd, m.sign_of(size, x), size)
    broken = m.below(x, 0.0)
    if least is not None:
        broken = m.both(broken, m.cmp("one", x, m.const(least)))
    return m.select(m.both(broken, m.negated(whole)), m.const(math.nan), signed)


def _edges(m: Floats, size: str, x: str, y: str) -> str:
    """Correct |x|^y for negative bases, NaN, x = 1 and y = 0: 1^y and x^0 are 1 even for NaN."""
    one, nan = m.const(1.0), m.const(math.nan)
    signed = _signs(m, size, x, y, -math.inf)
    signed = m.select(m.cmp("uno", x, y), nan, signed)
    unit = m.either(m.cmp("oeq", x, one), m.cmp("oeq", y, m.const(0.0)))
    return m.select(unit, one, signed)


# --- fp32 in fp64 ---------------------------------------------------------------------------------------------
def power_in_fp64(m: Floats, x: str, y: str) -> str:
    """Compute fp32 by log2 |x| = e + 2/ln 2 atanh(f / (2 + f)), a series of 8 terms, and 2^(n + r), one of 11."""
    k = Floats(m.x, float64)
    a, wide = (m.x.convert("fpext", "float", v, "double") for v in (m.abs(x), y))
    f, e = split_bits(k, a)
    s = k.div(f, k.add(f, k.const(2.0)))
    log = k.fma(s, k.polynomial(c.ATANH, k.mul(s, s)), k.to_float(e))
    log = k.select(k.cmp("oeq", a, k.const(math.inf)), a, log)
    log = k.select(k.cmp("oeq", a, k.const(0.0)), k.const(-math.inf), log)
    # 1 to an infinite power is 1.
    t = k.select(k.cmp("oeq", a, k.const(1.0)), k.const(0.0), k.mul(wide, log))
    t = k.at_most(k.at_least(t, -200.0), 200.0)
    shifted = k.add(t, k.shifter())
    q = k.polynomial(c.EXP2_SERIES, k.sub(t, k.sub(shifted, k.shifter())))
    grown = k.from_bits(k.iop("add", k.bits(q), k.iop("shl", k.bits(shifted), k.mantissa)))
    grown = k.select(k.cmp("uno", t, t), t, grown)
    return _edges(m, m.x.convert("fptrunc", "double", grown, "float"), x, y)


# --- pairs -----------------------------------------------------------------------------------------------------
LN2 = (float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33"))
"""log 2; the first part has trailing zeros, so that its product with an exponent is exact."""
THIRD = (2 / 3, 3.700743415417188e-17)
LOG_TERMS, EXP_TERMS = 11, 14
MOST, LEAST = 710.0, -750.0  # where exponentials are infinite or zero


def _two_sum(m: Floats, a: str, b: str) -> tuple[str, str]:
    s = m.add(a, b)
    part = m.sub(s, a)
    return s, m.add(m.sub(a, m.sub(s, part)), m.sub(b, part))


def _quotient(m: Floats, f: str) -> tuple[str, str]:
    """Return f / (2 + f) as a pair."""
    below = m.add(f, m.const(2.0))
    lost = m.sub(f, m.sub(below, m.const(2.0)))
    inverse = m.reciprocal(below)
    s = m.mul(f, inverse)
    rest = m.fma(m.neg(s), below, f)
    return s, m.mul(m.fma(m.neg(s), lost, rest), inverse)


def _log_pair(m: Floats, a: str) -> tuple[str, str]:
    """Return log a as a pair, for a >= 0.

    a = 2^e (1 + f); with s = f / (2 + f) log(1 + f) = 2 s + 2/3 s^3 + 2/5 s^5 + ..., s and s^3 in pairs.
    """
    f, places, _ = split_exponent(m, a)
    e = m.mul(places, m.const(unit(m)))
    s, s_low = _quotient(m, f)
    z = m.mul(s, s)
    z_low = m.fma(m.mul(s, m.const(2.0)), s_low, m.fma(s, s, m.neg(z)))
    # 2/3 s^3 is a pair, as its error counts where e is 0
    cube = m.mul(z, s)
    cube_low = m.fma(z, s_low, m.fma(z_low, s, m.fma(z, s, m.neg(cube))))
    third, third_low = (m.const(v) for v in THIRD)
    lead = m.mul(cube, third)
    lead_low = m.fma(cube, third, m.neg(lead))
    lead_low = m.fma(cube, third_low, m.fma(cube_low, third, lead_low))
    series = m.polynomial([2 / (2 * i + 5) for i in range(LOG_TERMS)], z)
    lead_low = m.fma(m.mul(cube, z), series, lead_low)
    # e log 2: the first product is exact
    big, big_low = m.mul(e, m.const(LN2[0])), m.mul(e, m.const(LN2[1]))
    total, t1 = _two_sum(m, big, m.mul(s, m.const(2.0)))
    total, t2 = _two_sum(m, total, lead)
    tail = m.add(m.add(t1, t2), m.fma(s_low, m.const(2.0), m.add(lead_low, big_low)))
    high = m.add(total, tail)
    return log_edges(m, a, high), m.sub(tail, m.sub(high, total))


def _exp_pair(m: Floats, high: str, low: str) -> str:
    """Return exp(high + low); `low` is ignored where the result is infinite or zero."""
    near = m.at_most(m.at_least(high, LEAST), MOST)
    shifted = m.fma(near, m.const(1 / math.log(2)), m.shifter())
    n = m.sub(shifted, m.shifter())
    r = m.fma(n, m.const(-LN2[1]), m.fma(n, m.const(-LN2[0]), near))
    within = m.below(m.abs(high), -LEAST)
    r = m.add(r, m.select(within, low, m.const(0.0)))
    return m.scaled(m.polynomial(c.EXP_SERIES[:EXP_TERMS], r), low_bits(m, shifted))


@function("pow", float64)
def _pow64(m: Floats, x: str, y: str) -> str:
    a = m.abs(x)
    log_high, log_low = _log_pair(m, a)
    high = m.mul(y, log_high)
    low = m.fma(y, log_low, m.fma(y, log_high, m.neg(high)))
    # 1 to an infinite power is 1.
    grown = m.select(m.cmp("oeq", a, m.const(1.0)), m.const(1.0), _exp_pair(m, high, low))
    return _edges(m, grown, x, y)


# --- pairs of fp32 ----------------------------------------------------------------------------------------------
def _log2_sum(m: Floats, f: str, e: str) -> tuple[str, str]:
    """Return log2((1 + f) 2^e) as a pair: with s = f / (2 + f) it is e and s times a series of s^2, whose first term
    is a pair."""
    s, s_low = _quotient(m, f)
    z = m.mul(s, s)
    first = m.mul(s, m.const(c.TWO_LOG2_E[0]))
    low = m.fma(s, m.const(c.TWO_LOG2_E[0]), m.neg(first))
    low = m.fma(s_low, m.const(c.TWO_LOG2_E[0]), m.fma(s, m.const(c.TWO_LOG2_E[1]), low))
    low = m.fma(m.mul(z, s), m.polynomial(c.ATANH[1:6], z), low)
    high = m.add(e, first)  # e is 0 or larger than what is added
    low = m.add(low, m.sub(first, m.sub(high, e)))
    total = m.add(high, low)
    return total, m.sub(low, m.sub(total, high))


def _scaled_log(m: Floats, y: str, log: tuple[str, str]) -> tuple[str, str]:
    """Return y times a pair, as a pair."""
    high = m.mul(y, log[0])
    return high, m.fma(y, log[1], m.fma(y, log[0], m.neg(high)))


def _exp2_pair(m: Floats, high: str, low: str) -> str:
    """Return 2^(high + low): 2^r 2^(n + k) 2^-k, whose k keeps the factors normal; NaN gives any number."""
    near = m.call("maxnum", m.call("minnum", high, m.const(131.0)), m.const(-152.0))
    shifted = m.add(near, m.shifter())
    r = m.sub(near, m.sub(shifted, m.shifter()))
    within = m.below(m.abs(high), 200.0)
    e = m.math("exp2", m.add(r, m.select(within, low, m.const(0.0))))
    small = m.below(near, 0.0)
    bias = m.x.select(m.int, small, m.iconst((127 + 32) << 23), m.iconst((127 - 8) << 23))
    power = m.from_bits(m.iop("add", m.iop("shl", m.bits(shifted), 23), bias))
    return m.mul(m.mul(e, power), m.select(small, m.const(2.0**-32), m.const(2.0**8)))


@function("far_pow", float32)
def _any_pow32(m: Floats, x: str, y: str) -> str:
    a, inf = m.abs(x), m.const(math.inf)
    f, places, _ = split_exponent(m, a)
    log, low = _log2_sum(m, f, m.mul(places, m.const(unit(m))))
    log = m.select(m.cmp("oeq", a, inf), a, log)
    log = m.select(m.cmp("oeq", a, m.const(0.0)), m.const(-math.inf), log)
    # 1 to an infinite power is 1.
    grown = _exp2_pair(m, *_scaled_log(m, y, (log, low)))
    return _edges(m, m.select(m.cmp("oeq", a, m.const(1.0)), m.const(1.0), grown), x, y)


@function("pow", float32)
def _pow32(m: Floats, x: str, y: str) -> str:
    """Normal numbers whose power is normal need no care for edges, but for the signs of negative bases."""

    def near(inner: ElementBuilder, arguments: list[str]) -> tuple[str, str]:
        k = Floats(inner, m.t)
        x, y = arguments
        a = k.abs(x)
        f, e = split_bits(k, a)
        high, low = _scaled_log(k, y, _log2_sum(k, f, k.to_float(e)))
        grown = k.math("exp2", high)
        grown = k.fma(grown, k.mul(low, k.const(math.log(2))), grown)
        odd_size = k.iop("sub", k.bits(a), 1 << k.mantissa)
        odd = inner.cmp("icmp uge", k.int, odd_size, k.iconst(0xFE << k.mantissa))
        large = k.negated(k.below(k.abs(high), 126.0))  # NaN and infinite exponents too
        return _signs(k, grown, x, y), k.either(odd, large)

    return m.x.beyond("pow", m.t, [x, y], near)
