"""Writes the remainder to the nearest whole quotient in fp64; targets have it in fp32."""

from __future__ import annotations

import math

from tessera.backends.elements.floats import Floats, function
from tessera.dtypes import float64


def turned_sign(m: Floats, value: str, x: str) -> str:
    """Return the value with its sign turned where x has one."""
    sign = m.iop("and", m.bits(x), -1 << (m.t.bits - 1))
    return m.from_bits(m.iop("xor", m.bits(value), sign))


@function("remainder", float64)
def _remainder(m: Floats, x: str, y: str) -> str:
    """By fmod of twice the divisor, or of the divisor where that is infinite, and the quotient is 0 or 1. Of a rest r
    < 2 b, r - b is exact between b/2 and 2 b, and so is b - (r - b)."""
    a, b = m.abs(x), m.abs(y)
    big = m.cmp("oge", b, m.const(2.0**1023))
    rest = m.select(big, a, m.math("fmod", a, m.select(big, b, m.add(b, b))))
    less = m.sub(rest, b)
    # r > b/2 is r > b - r, which is exact from b/2 to b; what has been taken off once is compared in the same way.
    once = m.cmp("ogt", rest, m.sub(b, rest))
    rest = m.select(once, less, rest)
    again = m.both(once, m.cmp("oge", less, m.sub(b, less)))
    rest = m.select(again, m.sub(less, b), rest)
    defined = m.both(m.cmp("one", b, m.const(0.0)), m.cmp("olt", a, m.const(math.inf)))
    return m.select(defined, turned_sign(m, rest, x), m.const(math.nan))
