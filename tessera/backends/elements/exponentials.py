"""Writes exponentials, logarithms, hyperbolic functions and erf: range reduction, then polynomials.

    exp       x = n ln 2 + r: a polynomial of r, times 2^n in two steps or by one instruction
    log       x = 2^e (1 + f): a polynomial of f in fp32; s = f / (2 + f), a series of s^2 in fp64; e ln 2 in two parts
    tanh, erf polynomials near 0, exponentials beyond

The tests hold fp32 to 2 ulp and fp64 to 3 (tests/unit/test_cpu_math.py, test_simt_math.py).
"""

from __future__ import annotations

import math

from tessera.backends.elements import coefficients as c
from tessera.backends.elements.floats import Floats, function
from tessera.dtypes import float32, float64


# --- exponentials --------------------------------------------------------------------------------------------
def low_bits(m: Floats, shifted: str) -> str:
    """Return the integer n whose sum with `m.shifter()` is `shifted`."""
    unused = 51 if m.double else 9
    return m.iop("ashr", m.iop("shl", m.bits(shifted), unused), unused)


def _clamp(m: Floats, x: str, low: float, high: float) -> str:
    return m.at_most(m.at_least(x, low), high)


def _least(m: Floats, underflows: float, vanishes: float) -> float:
    """Return what is as good as all that is below: the result is 0 there. At `vanishes` n is -2 * 127, and both powers
    of two that `scaled` multiplies by are 0: where nothing else underflows, no product takes longer."""
    return vanishes if m.x.slow_underflow else underflows


@function("exp", float32)
def _exp32(m: Floats, x: str) -> str:
    near = x if m.x.has_scale else _clamp(m, x, _least(m, -105.0, -176.0), 89.0)
    r, n, shifted = _split_single(m, near, 1 / math.log(2), c.LN2)
    return _times_power(m, m.polynomial(c.EXP, r), n, shifted, x, -104.0)


def _split_single(
    m: Floats, x: str, per_unit: float, unit: tuple[float, float]
) -> tuple[str, str, str]:
    """Return (r, n, shifted) with x = n unit + r, and n in the low bits of `shifted`."""
    shifted = m.fma(x, m.const(per_unit), m.shifter())
    n = m.sub(shifted, m.shifter())
    r = m.fma(n, m.const(-unit[0]), x)
    return m.fma(n, m.const(-unit[1]), r), n, shifted


def _power_below(m: Floats, shifted: str, k: int) -> str:
    """Return 2^(n - k) of fp32 for the n in the low bits of `shifted`, where it is normal: the shift drops the rest."""
    return m.from_bits(m.iop("shl", m.iop("add", m.bits(shifted), m.t.bias - k), m.mantissa))


def _exp10_by_exp2(m: Floats, x: str) -> str:
    """2^r 2^n with x log2(10) = n + r, log2(10) in two parts. n stays where 2^n is normal; r has what goes beyond."""
    turns = m.mul(x, m.const(c.LOG2_10[0]))
    near = m.call("minnum", m.call("maxnum", turns, m.const(-126.0)), m.const(126.0))
    shifted = m.add(near, m.shifter())
    n = m.sub(shifted, m.shifter())
    r = m.fma(x, m.const(c.LOG2_10[1]), m.fma(x, m.const(c.LOG2_10[0]), m.neg(n)))
    return m.mul(m.math("exp2", r), _power_below(m, shifted, 0))


@function("exp10", float32)
def _exp10_32(m: Floats, x: str) -> str:
    if m.x.own("exp2", m.t, x) is not None:
        return _exp10_by_exp2(m, x)
    near = x if m.x.has_scale else _clamp(m, x, _least(m, -46.0, -76.45), 39.0)
    r, n, shifted = _split_single(m, near, math.log2(10), c.LOG10_2_SINGLE)
    return _times_power(m, m.polynomial(c.EXP10, r), n, shifted, x, -45.5)


@function("expm1", float32)
def _expm1_32(m: Floats, x: str) -> str:
    """With p = exp(r) - 1 it is 2 ((p + 1) 2^(n-1) - 1/2): the power of n itself could overflow before the result."""
    r, _, shifted = _split_single(m, _clamp(m, x, -30.0, 89.0), 1 / math.log(2), c.LN2)
    p = m.fma(m.mul(r, r), m.polynomial(c.EXPM1, r), r)
    power = _power_below(m, shifted, 1)
    half = m.fma(p, power, m.sub(power, m.const(0.5)))
    return m.select(m.below(m.abs(x), 2.0**-25), x, m.add(half, half))


@function("exp2", float32)
def _exp2_32(m: Floats, x: str) -> str:
    near = x if m.x.has_scale else _clamp(m, x, _least(m, -151.0, -254.0), 129.0)
    shifted = m.add(near, m.shifter())
    n = m.sub(shifted, m.shifter())
    r = m.sub(near, n)
    return _times_power(m, m.polynomial(c.EXP2, r), n, shifted, x, -150.0)


def _times_power(m: Floats, q: str, n: str, shifted: str, x: str, least: float) -> str:
    """Return q * 2^n, with n also in the low bits of `shifted`. The instruction gives infinity for NaN * 2^infinity,
    but a large n comes with a positive q, if not a small one. Below `least` the instruction is avoided: it is slow to
    underflow."""
    if m.x.has_scale:
        return m.x.scale(q, n, m.cmp("uge", x, m.const(least)))
    return m.scaled(q, low_bits(m, shifted))


def _exp_of(m: Floats, r: str, shifted: str) -> str:
    square = m.mul(r, r)
    rest = m.fma(square, m.polynomial(c.EXP64, r), r)
    return m.scaled(m.add(rest, m.const(1.0)), low_bits(m, shifted))


def _split_exp(m: Floats, x: str, per_unit: float, unit: tuple[float, float]) -> tuple[str, str]:
    """Return (r, shifted) with x = n unit + r, and n in the low bits of `shifted`."""
    shifted = m.fma(x, m.const(per_unit), m.shifter())
    n = m.sub(shifted, m.shifter())
    r = m.fma(n, m.const(-unit[0]), x)
    return m.fma(n, m.const(-unit[1]), r), shifted


@function("exp", float64)
def _exp64(m: Floats, x: str) -> str:
    near = _clamp(m, x, -746.0, 710.0)
    return _exp_of(m, *_split_exp(m, near, 1 / math.log(2), c.LN2_64))


@function("exp2", float64)
def _exp2_64(m: Floats, x: str) -> str:
    near = _clamp(m, x, -1076.0, 1025.0)
    shifted = m.add(near, m.shifter())
    part = m.sub(near, m.sub(shifted, m.shifter()))
    r = m.mul(part, m.const(c.LN2_64[0]))
    lost = m.fma(part, m.const(c.LN2_64[0]), m.neg(r))  # the rounding error of the product
    return _exp_of(m, m.add(r, m.fma(part, m.const(c.LN2_64[1]), lost)), shifted)


@function("exp10", float64)
def _exp10(m: Floats, x: str) -> str:
    r, shifted = _split_exp(m, _clamp(m, x, -330.0, 309.0), math.log2(10), c.LOG10_2)
    return _exp_of(m, m.mul(r, m.const(math.log(10))), shifted)


@function("expm1", float64)
def _expm1(m: Floats, x: str) -> str:
    """As that of fp32: of exp(x), a difference with 1 would leave what was rounded, up to 4 ulp near 0.4."""
    r, shifted = _split_exp(m, _clamp(m, x, -40.0, 710.0), 1 / math.log(2), c.LN2_64)
    p = m.fma(m.mul(r, r), m.polynomial(c.EXP64, r), r)
    power = m.power_of_two(m.iop("sub", low_bits(m, shifted), 1))
    half = m.fma(p, power, m.sub(power, m.const(0.5)))
    return m.select(m.below(m.abs(x), 2.0**-54), x, m.add(half, half))


# --- logarithms ----------------------------------------------------------------------------------------------
ROOT_HALF = {float32: 0x3F3504F3, float64: 0x3FE6A09E667F3BCD}  # bits of sqrt(1/2)


def split_bits(m: Floats, x: str) -> tuple[str, str]:
    """Return (f, e) with x = (1 + f) * 2^e, 1 + f in sqrt(1/2) .. sqrt(2), e an integer, for positive normal x."""
    root = ROOT_HALF[m.t]
    offset = m.iop("sub", m.bits(x), root)
    e = m.iop("ashr", offset, m.mantissa)
    low = m.iop("and", offset, (1 << m.mantissa) - 1)
    return m.sub(m.from_bits(m.iop("add", low, root)), m.const(1.0)), e


def split_exponent(m: Floats, x: str) -> tuple[str, str, str]:
    """Return (f, places, normal) for all positive finite x: f as of `split_bits`, e as a float in `places` (`unit`),
    and x, or a normal number for a subnormal one.

    What is selected is x or e itself, and nothing needs x later: a GPU multiplies and adds under a predicate then, and
    has no instruction that selects."""
    tiny, step = m.below(x, 2.0 ** (1 - m.t.bias)), m.mantissa + 2
    normal = m.select(tiny, m.mul(x, m.const(2.0**step)), x)
    whole = m.bits(normal)
    field = m.iop("and", m.iop("sub", whole, ROOT_HALF[m.t]), -1 << m.mantissa)
    f = m.sub(m.from_bits(m.iop("sub", whole, field)), m.const(1.0))
    places = m.to_float(field)
    return f, m.select(tiny, m.sub(places, m.const(step / unit(m))), places), normal


def unit(m: Floats) -> float:
    """An exponent of 1 in `places`, the value of the exponent's bits in their place: a power of two, which is a factor
    of the constant that an exponent is multiplied by."""
    return 0.5**m.mantissa


def log_edges(m: Floats, x: str, result: str) -> str:
    """Replace the result for zero, infinity, negative numbers and NaN."""
    own = m.x.approximate("normal_log2", m.t, x)
    if own is not None:  # an instruction gives all of these; 0 wraps around
        special = m.x.cmp("icmp uge", m.int, m.iop("sub", m.bits(x), 1), m.iconst(0x7F7FFFFF))
        return m.select(special, own, result)
    inf = m.const(math.inf)
    most = m.iconst(0x7FF0000000000000 if m.double else 0x7F800000)
    special = m.x.cmp("icmp uge", m.int, m.bits(x), most)  # infinity, NaN, and what has a sign
    result = m.select(special, m.fma(x, inf, inf), result)
    return m.select(m.cmp("oeq", x, m.const(0.0)), m.const(-math.inf), result)


def _log_of(m: Floats, f: str, places: str, sign: float = 1.0) -> str:
    """log((1 + f) 2^e) in fp32; `places` may have the other sign. Where e is not 0 the result is 0.35 at least."""
    near = m.fma(m.mul(f, f), m.polynomial(c.LOG, f), f)
    return m.fma(places, m.const(sign * math.log(2) * unit(m)), near)


@function("log", float32)
def _log32(m: Floats, x: str) -> str:
    f, places, normal = split_exponent(m, x)
    return log_edges(m, normal, _log_of(m, f, places))


@function("log1p", float32)
def log1p_single(m: Floats, x: str) -> str:
    """Where there is an instruction for logarithms it gives those of sums from 2^126.5 on, and for what is special."""
    total = m.add(x, m.const(1.0))
    own = m.x.approximate("normal_log2", m.t, total)
    if own is None:
        return log_edges(m, total, _log_of_sum(m, x, total)[0])
    result, places = _log_of_sum(m, x, total, 0)
    # Also where the sum is 0, negative or NaN, whose field is no exponent.
    far = m.cmp("ogt", m.abs(places), m.const(126.5 / unit(m)))
    return m.select(far, m.mul(own, m.const(math.log(2))), result)


def log1p_limited(m: Floats, x: str) -> str:
    """log(1 + x) of fp32 for x > -1, up to 2^126."""
    return _log_of_sum(m, x, m.add(x, m.const(1.0)), 0)[0]


def _log_of_sum(m: Floats, x: str, total: str, spare: int = 2) -> tuple[str, str]:
    """Return (log(1 + x), places) for x from -1 to infinity, both excluded; -e in `places`.

    1 + x = (1 + f) * 2^e: f comes from x itself, not from the rounded sum. What is added to -0 is -0: the opposite of
    0, and -e, which is 0, times a negative factor. 2^-e is subnormal for e > 126, so it is made as 2^(spare - e)."""
    most = m.iconst(ROOT_HALF[m.t] + (1 << m.mantissa) - 1)
    field = m.iop("and", m.x.op("sub", m.int, most, m.bits(total)), -1 << m.mantissa)
    scale = m.from_bits(m.iop("add", field, (m.t.bias + spare) << m.mantissa))
    if spare:
        scale = m.mul(scale, m.const(0.5**spare))
    f = m.fma(x, scale, m.neg(m.sub(m.const(1.0), scale)))
    places = m.to_float(field)
    return _log_of(m, f, places, -1.0), places


@function("log2", float32)
def _log2_32(m: Floats, x: str) -> str:
    f, places, normal = split_exponent(m, x)
    tail = m.mul(f, m.fma(f, m.polynomial(c.LOG2, f), m.const(c.LOG2_E[1])))
    near = m.fma(f, m.const(c.LOG2_E[0]), tail)
    return log_edges(m, normal, m.fma(places, m.const(unit(m)), near))


@function("log10", float32)
def _log10_32(m: Floats, x: str) -> str:
    """e log10(2) + log(1 + f) log10(e), the latter in two parts."""
    f, places, normal = split_exponent(m, x)
    high, low = (m.const(v) for v in c.LOG10_E)
    tail = m.mul(m.mul(f, f), m.polynomial(c.LOG, f))
    result = m.fma(f, high, m.fma(tail, high, m.mul(f, low)))
    return log_edges(m, normal, m.fma(places, m.const(math.log10(2) * unit(m)), result))


def _log1p_parts(m: Floats, f: str) -> tuple[str, str]:
    """(half, rest) with log(1 + f) = f - (half - rest): half = f^2/2, rest = s (half + s^2 p(s^2)), s = f / (2 + f)."""
    s = m.div(f, m.add(f, m.const(2.0)))
    z = m.mul(s, s)
    half = m.mul(m.mul(f, m.const(0.5)), f)
    return half, m.mul(s, m.fma(z, m.polynomial(c.LOG64, z), half))


def _natural(m: Floats, f: str) -> str:
    half, rest = _log1p_parts(m, f)
    return m.sub(f, m.sub(half, rest))


@function("log", float64)
def _log64(m: Floats, x: str) -> str:
    f, places, normal = split_exponent(m, x)
    high, short = (m.const(v * unit(m)) for v in c.LN2_SHORT)
    half, rest = _log1p_parts(m, f)
    small = m.sub(m.sub(half, m.fma(places, short, rest)), f)
    return log_edges(m, normal, m.fma(places, high, m.neg(small)))


@function("log2", float64)
def _log2_64(m: Floats, x: str) -> str:
    f, places, normal = split_exponent(m, x)
    natural = _natural(m, f)
    low = m.fma(natural, m.const(c.LOG2_E_64[1]), m.mul(places, m.const(unit(m))))
    return log_edges(m, normal, m.fma(natural, m.const(c.LOG2_E_64[0]), low))


@function("log10", float64)
def _log10_64(m: Floats, x: str) -> str:
    f, places, normal = split_exponent(m, x)
    high, low = (m.const(v * unit(m)) for v in c.LOG10_2)
    tail = m.fma(places, low, m.mul(_natural(m, f), m.const(math.log10(math.e))))
    return log_edges(m, normal, m.fma(places, high, tail))


@function("log1p", float64)
def _log1p64(m: Floats, x: str) -> str:
    total = m.add(x, m.const(1.0))
    correction = m.div(x, m.sub(total, m.const(1.0)))
    result = m.mul(m.math("log", total), correction)
    result = m.select(m.cmp("oeq", total, m.const(1.0)), x, result)
    return m.select(m.cmp("oeq", x, m.const(math.inf)), x, result)


# --- hyperbolic functions and erf ------------------------------------------------------------------------------
@function("sinh", float64)
def _sinh(m: Floats, x: str) -> str:
    a = m.abs(x)
    e = m.math("expm1", m.at_most(a, 700.0))
    value = m.mul(m.const(0.5), m.add(e, m.div(e, m.add(e, m.const(1.0)))))
    half = m.math("exp", m.mul(a, m.const(0.5)))
    value = m.select(m.cmp("ogt", a, m.const(700.0)), m.mul(m.mul(m.const(0.5), half), half), value)
    return m.sign_of(value, x)


def _quarter_exp(m: Floats, a: str) -> str:
    """Return exp(a) / 4 of fp32 for a >= 0: where it overflows, four times it is far beyond infinity."""
    r, _, shifted = _split_single(m, m.at_most(a, 90.0), 1 / math.log(2), c.LN2)
    return m.mul(m.polynomial(c.EXP, r), _power_below(m, shifted, 2))


@function("sinh", float32)
def _sinh32(m: Floats, x: str) -> str:
    a, z = m.abs(x), m.mul(x, x)
    small = m.fma(m.mul(z, x), m.polynomial(c.SINH, z), x)
    grown = _quarter_exp(m, a)
    half = m.fma(m.reciprocal(grown), m.const(-0.0625), grown)
    return m.sign_of(m.select(m.below(a, 1.0), small, m.add(half, half)), x)


@function("cosh", float32)
def _cosh32(m: Floats, x: str) -> str:
    grown = _quarter_exp(m, m.abs(x))
    half = m.fma(m.reciprocal(grown), m.const(0.0625), grown)
    return m.add(half, half)


@function("cosh", float64)
def _cosh(m: Floats, x: str) -> str:
    half = m.math("exp", m.mul(m.abs(x), m.const(0.5)))
    grown = m.mul(m.mul(m.const(0.5), half), half)
    return m.add(grown, m.div(m.const(0.25), grown))


@function("tanh", float64)
def _tanh64(m: Floats, x: str) -> str:
    e = m.math("expm1", m.mul(m.const(-2.0), m.abs(x)))
    return m.sign_of(m.div(m.neg(e), m.add(e, m.const(2.0))), x)


def _moderate_exp2(m: Floats, x: str, least: float, most: float) -> str:
    """Return 2^x of fp32 where only results between 2^least and 2^most matter, which are normal."""
    own = m.x.own("exp2", m.t, x)
    if own is not None or m.x.has_scale:
        return own or m.math("exp2", x)
    near = m.at_most(x, most) if least == 0 else m.at_least(x, least)
    shifted = m.add(near, m.shifter())
    r = m.sub(near, m.sub(shifted, m.shifter()))
    return m.mul(m.polynomial(c.EXP2, r), _power_below(m, shifted, 0))


@function("tanh", float32)
def _tanh32(m: Floats, x: str) -> str:
    a, z = m.abs(x), m.mul(x, x)
    small = m.fma(m.mul(z, x), m.polynomial(c.TANH, z), x)
    power = _moderate_exp2(m, m.mul(a, m.const(2 / math.log(2))), 0, 64)
    grown = m.add(power, m.const(1.0))
    large = m.fma(m.const(-2.0), m.reciprocal(grown), m.const(1.0))
    return m.sign_of(m.select(m.below(a, 0.625), small, large), x)  # -0 too


@function("erf", float32)
def _erf32(m: Floats, x: str) -> str:
    a, z = m.abs(x), m.mul(x, x)
    small = m.fma(x, m.polynomial(c.ERF, z), x)
    tail = _moderate_exp2(m, m.neg(m.polynomial(c.ERFC, m.at_most(a, 4.0))), -64, 0)
    large = m.sign_of(m.sub(m.const(1.0), tail), x)
    return m.select(m.below(a, 1.0), small, large)


@function("erf", float64)
def _erf64(m: Floats, x: str) -> str:
    a, z = m.abs(x), m.mul(x, x)
    small = m.mul(x, m.polynomial(c.ERF64, z))
    near = m.at_most(a, 6.5)
    t = m.div(m.const(2.0), m.add(near, m.const(2.0)))
    square = m.mul(near, near)
    rest = m.fma(near, near, m.neg(square))
    decay = m.mul(m.math("exp", m.neg(square)), m.sub(m.const(1.0), rest))
    tail = m.mul(decay, m.mul(t, m.polynomial(c.ERFC64, t)))
    return m.select(m.below(a, 1.0), small, m.sign_of(m.sub(m.const(1.0), tail), x))
