"""Computes x to the power y in LLVM IR: the logarithm as an unevaluated sum of two numbers, times y, and its
exponential.

A relative error of 2**-24 in y log x is one of y log x units in the last place of the power: the product needs as many
bits more as its whole part has. In pairs of fp32 it has 11 more, which leaves the power within 2 ulp; in pairs of fp64
likewise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tessera.backends.gpu import mathtables as tables
from tessera.backends.gpu.mathlib import LN2_HIGH, LN2_LOW, log_edges, scaled, split_exponent
from tessera.backends.gpu.maths import Maths, function


@dataclass(frozen=True)
class Constants:
    """Of one type: log 2 in two parts, the first with trailing zeros; 2/3 in two parts; the numbers of terms; where
    exponentials are infinite or zero."""

    ln2: tuple[float, float]
    third: tuple[float, float]
    log_terms: int
    exp_terms: int
    most: float
    least: float


CONSTANTS = {
    "float": Constants(
        (float.fromhex("0x1.62e4p-1"), 1.4286068203094173e-06),
        (float.fromhex("0x1.555556p-1"), -1.9868214925130207e-08),
        log_terms=5,
        exp_terms=8,
        most=90.0,
        least=-110.0,
    ),
    "double": Constants(
        (LN2_HIGH, LN2_LOW),
        (2 / 3, 3.700743415417188e-17),
        log_terms=11,
        exp_terms=14,
        most=710.0,
        least=-750.0,
    ),
}


def _two_sum(m: Maths, a: str, b: str) -> tuple[str, str]:
    s = m.add(a, b)
    part = m.sub(s, a)
    return s, m.add(m.sub(a, m.sub(s, part)), m.sub(b, part))


def _quotient(m: Maths, f: str) -> tuple[str, str]:
    """f / (2 + f) as a pair."""
    below = m.add(f, m.const(2.0))
    lost = m.sub(f, m.sub(below, m.const(2.0)))
    inverse = m.div(m.const(1.0), below)
    s = m.mul(f, inverse)
    rest = m.fma(m.neg(s), below, f)
    return s, m.mul(m.fma(m.neg(s), lost, rest), inverse)


def _log_pair(m: Maths, a: str) -> tuple[str, str]:
    """log a as a pair, for a >= 0.

    a = 2**e (1 + f); with s = f / (2 + f) log(1 + f) = 2 s + 2/3 s**3 + 2/5 s**5 + ..., s and s**3 in pairs.
    """
    c = CONSTANTS[m.type]
    f, e = split_exponent(m, a)
    s, s_low = _quotient(m, f)
    z = m.mul(s, s)
    z_low = m.fma(m.mul(s, m.const(2.0)), s_low, m.fma(s, s, m.neg(z)))
    # 2/3 s**3 as a pair: its error counts where e is 0
    cube = m.mul(z, s)
    cube_low = m.fma(z, s_low, m.fma(z_low, s, m.fma(z, s, m.neg(cube))))
    third, third_low = m.const(c.third[0]), m.const(c.third[1])
    lead = m.mul(cube, third)
    lead_low = m.fma(cube, third, m.neg(lead))
    lead_low = m.fma(cube, third_low, m.fma(cube_low, third, lead_low))
    series = m.horner([2 / (2 * k + 5) for k in range(c.log_terms)], z)
    lead_low = m.fma(m.mul(cube, z), series, lead_low)
    # e log 2: the first product is exact
    big, big_low = m.mul(e, m.const(c.ln2[0])), m.mul(e, m.const(c.ln2[1]))
    total, t1 = _two_sum(m, big, m.mul(s, m.const(2.0)))
    total, t2 = _two_sum(m, total, lead)
    tail = m.add(m.add(t1, t2), m.fma(s_low, m.const(2.0), m.add(lead_low, big_low)))
    high = m.add(total, tail)
    return log_edges(m, a, high), m.sub(tail, m.sub(high, total))


def _exp_pair(m: Maths, high: str, low: str) -> str:
    """exp(high + low); any `low` where the result is infinite or zero."""
    c = CONSTANTS[m.type]
    near = m.call("maxnum", m.call("minnum", high, m.const(c.most)), m.const(c.least))
    n = m.rint(m.mul(near, m.const(1 / math.log(2))))
    r = m.fma(n, m.const(-c.ln2[1]), m.fma(n, m.const(-c.ln2[0]), near))
    within = m.below(m.abs(high), -c.least)
    r = m.add(r, m.select(within, low, m.const(0.0)))
    return scaled(m, m.horner(tables.EXP64[: c.exp_terms], r), n)


@function("pow", "float", "double")
def _pow(m: Maths, x: str, y: str) -> str:
    """|x|**y = exp(y log|x|), then the signs and special cases of IEEE pow."""
    w, one, inf = m.w, m.const(1.0), m.const(math.inf)
    a = m.abs(x)
    log_high, log_low = _log_pair(m, a)
    high = m.mul(y, log_high)
    low = m.fma(y, log_low, m.fma(y, log_high, m.neg(high)))
    grown = _exp_pair(m, high, low)
    whole = m.cmp("oeq", m.call("trunc", y), y)
    half = m.mul(y, m.const(0.5))
    odd = w.pure(f"and i1 {whole}, {m.cmp('une', m.call('trunc', half), half)}")
    negative = w.pure(f"icmp slt {m.int} {m.bits(x)}, 0")
    value = m.select(w.pure(f"and i1 {negative}, {odd}"), m.neg(grown), grown)
    broken = w.pure(f"and i1 {m.cmp('olt', x, m.const(0.0))}, {w.pure(f'xor i1 {whole}, true')}")
    broken = w.pure(f"and i1 {broken}, {m.cmp('one', a, inf)}")
    value = m.select(broken, m.const(math.nan), value)
    # 1**y and x**0 are 1 even for NaN; (-1)**inf is 1 as well
    value = m.select(m.cmp("uno", x, y), m.const(math.nan), value)
    both = w.pure(f"and i1 {m.cmp('oeq', a, one)}, {m.cmp('oeq', m.abs(y), inf)}")
    value = m.select(both, one, value)
    value = m.select(m.cmp("oeq", x, one), one, value)
    return m.select(m.cmp("oeq", y, m.const(0.0)), one, value)
