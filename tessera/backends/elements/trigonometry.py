"""Writes sine, cosine, tangent and their inverses: x = n pi/2 + r, or n pi + r, pi in three parts, polynomials of r.

Arguments that are too large for the three parts are handled by the target (`ElementBuilder.beyond`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tessera.backends.elements import coefficients as c
from tessera.backends.elements.builder import ElementBuilder
from tessera.backends.elements.floats import Floats, function
from tessera.dtypes import float32, float64

FAR = {float32: 32768.0, float64: 2.0**20}  # beyond this the reduction loses bits


# --- sine, cosine, tangent -----------------------------------------------------------------------------------
def _polynomials(m: Floats, r: str) -> tuple[str, str]:
    """Return (sin r, cos r) for |r| <= pi/4."""
    sin, cos = (c.SIN64, c.COS64) if m.double else (c.SIN, c.COS)
    z = m.mul(r, r)
    s = m.fma(m.mul(z, r), m.polynomial(sin, z), r)
    if not m.double:
        one = m.fma(z, m.const(-0.5), m.const(1.0))
        return s, m.fma(m.mul(z, z), m.polynomial(cos, z), one)
    minus_half = m.const(-0.5)  # z / 2 is exact: each fma rounds as the difference alone would
    one = m.fma(z, minus_half, m.const(1.0))
    lost = m.fma(z, minus_half, m.sub(m.const(1.0), one))
    return s, m.add(one, m.fma(m.mul(z, z), m.polynomial(cos, z), lost))


def turned(m: Floats, name: str, quadrant: str, r: str) -> str:
    """Return the function `name` of r + quadrant * pi/2; only two bits of the integer `quadrant` matter."""
    if name == "tan" and not m.double:
        return _turned_tan(m, quadrant, r)
    s, cosine = _polynomials(m, r)
    if name == "cos":
        quadrant = m.iop("add", quadrant, 1)
    else:
        s = m.sign_of(s, r)  # -0 too
    odd = m.x.cmp("icmp ne", m.int, m.iop("and", quadrant, 1), m.iconst(0))
    if name == "tan":
        return m.div(m.select(odd, m.neg(cosine), s), m.select(odd, s, cosine))
    value = m.bits(m.select(odd, cosine, s))
    sign = m.iop("shl", m.iop("and", quadrant, 2), 62 if m.double else 30)
    return m.from_bits(m.iop("xor", value, sign))


def _turned_tan(m: Floats, quadrant: str, r: str) -> str:
    """In fp32, by one polynomial. -1 / tan(r) has the sign of -r."""
    z = m.mul(r, r)
    t = m.sign_of(m.fma(m.mul(z, r), m.polynomial(c.TAN, z), r), r)  # -0 too
    odd = m.x.cmp("icmp ne", m.int, m.iop("and", quadrant, 1), m.iconst(0))
    return m.select(odd, m.neg(m.reciprocal(t)), t)


def _half_turns(m: Floats, name: str, x: str) -> str:
    """Sine or cosine of fp32: for x + pi/2 (cosine) or x = n pi + r a polynomial of r, with the sign of n."""
    if name == "cos":
        shifted = m.add(m.fma(x, m.const(1 / math.pi), m.const(0.5)), m.shifter())
        n = m.sub(m.sub(shifted, m.shifter()), m.const(0.5))
    else:
        shifted = m.fma(x, m.const(1 / math.pi), m.shifter())
        n = m.sub(shifted, m.shifter())
    r = x
    for part in c.HALF_PI:
        r = m.fma(n, m.const(-2 * part), r)
    z = m.mul(r, r)
    s = m.fma(m.mul(z, r), m.polynomial(c.SIN_HALF, z), r)
    if name == "sin":
        s = m.sign_of(s, r)  # -0 too
    return m.from_bits(m.iop("xor", m.bits(s), m.iop("shl", m.bits(shifted), 31)))


def _near(m: Floats, name: str, x: str) -> str:
    if not m.double and name != "tan":
        return _half_turns(m, name, x)
    shifted = m.fma(x, m.const(2 / math.pi), m.shifter())
    n, r = m.sub(shifted, m.shifter()), x
    for part in c.HALF_PI_64 if m.double else c.HALF_PI:
        r = m.fma(n, m.const(-part), r)
    return turned(m, name, m.bits(shifted), r)


def _periodic(name: str) -> Callable[[Floats, str], str]:
    def body(m: Floats, x: str) -> str:
        def near(inner: ElementBuilder, arguments: list[str]) -> tuple[str, str]:
            k = Floats(inner, m.t)
            far = k.cmp("uge", k.abs(arguments[0]), k.const(FAR[m.t]))
            return _near(k, name, arguments[0]), far

        return m.x.beyond(name, m.t, [x], near)

    return body


function("sin", float32, float64)(_periodic("sin"))
function("cos", float32, float64)(_periodic("cos"))
function("tan", float32, float64)(_periodic("tan"))


# --- inverses ----------------------------------------------------------------------------------------------------
@function("atan", float64)
def _atan(m: Floats, x: str) -> str:
    a, one = m.abs(x), m.const(1.0)
    big = m.cmp("ogt", a, one)
    t = m.select(big, m.div(one, a), a)
    middle = m.cmp("ogt", t, m.const(math.tan(math.pi / 8)))
    t = m.select(middle, m.div(m.sub(t, one), m.add(t, one)), t)
    z = m.mul(t, t)
    value = m.fma(m.mul(z, t), m.polynomial(c.ATAN64, z), t)
    value = m.select(middle, m.add(value, m.const(math.pi / 4)), value)
    other = m.add(m.sub(m.const(math.pi / 2), value), m.const(c.PI_2_LOW))
    return m.sign_of(m.select(big, other, value), x)


def _small_arctangent(m: Floats, t: str) -> str:
    """In fp32, for |t| <= 1."""
    z = m.mul(t, t)
    return m.fma(m.mul(z, t), m.polynomial(c.ATAN, z), t)


@function("atan", float32)
def _atan32(m: Floats, x: str) -> str:
    a = m.abs(x)
    big = m.cmp("ogt", a, m.const(1.0))
    value = _small_arctangent(m, m.select(big, m.reciprocal(a), a))
    other = _less(m, math.pi / 2, value, c.HALF_PI_LOW)
    return m.sign_of(m.select(big, other, value), x)


def angle(m: Floats, y: str, x: str, arctangent: Callable[[str], str], low: float) -> str:
    """Return the angle of the point (x, y) without its sign: the arctangent of the smaller over the larger, then by
    octant. Infinities count as 1, zeros as 0, and NaN stays. `low`: the error of pi/2."""
    ay, ax, one, zero = m.abs(y), m.abs(x), m.const(1.0), m.const(0.0)
    steep = m.cmp("ogt", ay, ax)
    small, large = m.select(steep, ax, ay), m.select(steep, ay, ax)
    ratio = m.select(m.cmp("oeq", small, large), one, m.div(small, large))
    ratio = m.select(m.cmp("oeq", m.add(small, large), zero), zero, ratio)
    value = arctangent(ratio)
    value = m.select(steep, _less(m, math.pi / 2, value, low), value)
    left = m.x.cmp("icmp slt", m.int, m.bits(x), m.iconst(0))
    return m.select(left, _less(m, math.pi, value, 2 * low), value)


def _less(m: Floats, whole: float, part: str, low: float) -> str:
    difference = m.sub(m.const(whole), part)
    return m.add(difference, m.const(low)) if low else difference


@function("atan2", float64)
def _atan2(m: Floats, y: str, x: str) -> str:
    return m.sign_of(angle(m, y, x, lambda ratio: m.math("atan", ratio), c.PI_2_LOW), y)


@function("atan2", float32)
def _atan2_32(m: Floats, y: str, x: str) -> str:
    return m.sign_of(angle(m, y, x, lambda ratio: _small_arctangent(m, ratio), c.HALF_PI_LOW), y)


def single_angle(m: Floats, y: str, x: str) -> str:
    """Return atan2 of fp32 numbers held in fp64, by one polynomial, with an error of 0.5 ulp of fp32."""

    def arctangent(ratio: str) -> str:
        z = m.mul(ratio, ratio)
        return m.fma(m.mul(ratio, z), m.polynomial(c.ATAN_SINGLE, z), ratio)

    return m.sign_of(angle(m, y, x, arctangent, 0.0), y)


def _cathetus(m: Floats, x: str) -> str:
    one = m.const(1.0)
    return m.call("sqrt", m.mul(m.sub(one, x), m.add(one, x)))


def _arcsine(m: Floats, x: str) -> tuple[str, str]:
    """Return (big, value) in fp32: asin |x|, or where |x| is above 1/2 (`big`) half of acos |x|."""
    a = m.abs(x)
    big = m.cmp("ogt", a, m.const(0.5))
    root = m.math("sqrt", m.fma(a, m.const(-0.5), m.const(0.5)))
    t = m.select(big, root, a)
    z = m.mul(t, t)
    return big, m.fma(m.mul(z, t), m.polynomial(c.ASIN, z), t)


@function("asin", float32)
def _asin32(m: Floats, x: str) -> str:
    big, value = _arcsine(m, x)
    other = m.add(m.fma(value, m.const(-2.0), m.const(math.pi / 2)), m.const(c.HALF_PI_LOW))
    return m.sign_of(m.select(big, other, value), x)


@function("acos", float32)
def _acos32(m: Floats, x: str) -> str:
    big, value = _arcsine(m, x)
    twice = m.add(value, value)
    left = m.select(m.below(x, 0.0), _less(m, math.pi, twice, 2 * c.HALF_PI_LOW), twice)
    return m.select(big, left, _less(m, math.pi / 2, m.sign_of(value, x), c.HALF_PI_LOW))


@function("asin", float64)
def _asin(m: Floats, x: str) -> str:
    return m.math("atan2", x, _cathetus(m, x))


@function("acos", float64)
def _acos(m: Floats, x: str) -> str:
    return m.math("atan2", _cathetus(m, x), x)
