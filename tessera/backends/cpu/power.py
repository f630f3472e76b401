"""Computes x to the power y in fp32 on vectors: 2^(y log2 |x|) in fp64, which leaves an error of at most 0.51 ulp.

    |x| = m 2^e, m in [sqrt(1/2), sqrt(2))     log2 m = 2/ln 2 · atanh((m - 1) / (m + 1)), a series of eight terms
    t = y (e + log2 m) = n + r                 2^r by a series of eleven terms, 2^n added to the exponent

Zeros, infinities and NaN are those of C.
"""

from __future__ import annotations

import math

from tessera.backends.cpu.emitter import Emitter
from tessera.backends.cpu.lanes import Lanes
from tessera.backends.cpu.math64 import MANTISSA, SQRT_HALF_BITS, number, series
from tessera.backends.elements.literals import vector_type

ATANH = tuple(2 / math.log(2) / (2 * k + 1) for k in range(8))
EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in range(11))


def pow32(x: Lanes, base: str, exponent: str) -> str:
    """By a function that all uses share."""
    ty, name = vector_type("float", x.n), f"tessera.pow32.v{x.n}"
    if f"@{name}" not in x.em.globals:
        x.em.globals[f"@{name}"] = None
        em = Emitter(x.em.declarations, x.em.globals)
        a, b = em.parameter("%x"), em.parameter("%y")
        result = _power(Lanes(em, x.facts, x.n), a, b)
        text = f"define internal {ty} @{name}({ty} %x, {ty} %y) nounwind {{\n  {em.body()}\n  ret {ty} {result}\n}}"
        x.em.globals[text] = None
    return x.em.op(f"call {ty} @{name}({ty} {base}, {ty} {exponent})")


def _log2(x: Lanes, a: str) -> str:
    """Of positive finite numbers."""
    offset = x.op(
        "sub", "i64", x.convert("bitcast", "double", a, "i64"), x.int("i64", SQRT_HALF_BITS)
    )
    e = x.convert("sitofp", "i64", x.op("ashr", "i64", offset, x.int("i64", 52)), "double")
    low = x.op("and", "i64", offset, x.int("i64", MANTISSA))
    m = x.convert("bitcast", "i64", x.op("add", "i64", low, x.int("i64", SQRT_HALF_BITS)), "double")
    one = number(x, 1.0)
    s = x.op("fdiv", "double", x.op("fsub", "double", m, one), x.op("fadd", "double", m, one))
    return x.call("fma", "double", s, series(x, ATANH, x.op("fmul", "double", s, s)), e)


def _exp2(x: Lanes, t: str) -> str:
    """Of numbers that are far from the ends of fp64."""
    n = x.call("rint", "double", t)
    q = series(x, EXP2, x.op("fsub", "double", t, n))
    steps = x.convert("fptosi", "double", n, "i64")
    bits = x.op(
        "add",
        "i64",
        x.convert("bitcast", "double", q, "i64"),
        x.op("shl", "i64", steps, x.int("i64", 52)),
    )
    return x.convert("bitcast", "i64", bits, "double")


def _power(x: Lanes, base: str, exponent: str) -> str:
    a = x.convert("fpext", "float", x.call("fabs", "float", base), "double")
    y = x.convert("fpext", "float", exponent, "double")
    zero, one, infinity = (number(x, v) for v in (0.0, 1.0, math.inf))

    def pick(condition: str, chosen: str, other: str) -> str:
        return x.select("double", condition, chosen, other)

    def equal(p: str, q: str) -> str:
        return x.cmp("fcmp oeq", "double", p, q)

    log = pick(equal(a, zero), number(x, -math.inf), pick(equal(a, infinity), a, _log2(x, a)))
    t = pick(equal(a, one), zero, x.op("fmul", "double", y, log))  # 1 to an infinite power is 1
    t = pick(x.cmp("fcmp olt", "double", t, number(x, -200.0)), number(x, -200.0), t)
    t = pick(x.cmp("fcmp ogt", "double", t, number(x, 200.0)), number(x, 200.0), t)
    unordered = x.cmp("fcmp uno", "double", t, t)
    value = pick(unordered, t, _exp2(x, pick(unordered, zero, t)))
    result = x.convert("fptrunc", "double", value, "float")
    return _signed(x, result, base, exponent)


def _signed(x: Lanes, result: str, base: str, exponent: str) -> str:
    """What negative bases, NaN, x = 1 and y = 0 make of |x|^y."""

    def whole(text: str) -> str:
        return x.cmp("fcmp oeq", "float", x.call("trunc", "float", text), text)

    def pick(condition: str, chosen: str, other: str) -> str:
        return x.select("float", condition, chosen, other)

    zero, one, nan = x.f32(0.0), x.f32(1.0), x.f32(math.nan)
    integer = whole(exponent)
    even = whole(x.op("fmul", "float", exponent, x.f32(0.5)))
    odd = x.op("and", "i1", integer, x.op("xor", "i1", even, x.int("i1", 1)))
    signed = pick(odd, x.call("copysign", "float", result, base), result)
    negative = x.cmp("fcmp olt", "float", base, zero)
    finite = x.cmp("fcmp one", "float", base, x.f32(-math.inf))
    none = x.op(
        "and", "i1", x.op("and", "i1", negative, finite), x.op("xor", "i1", integer, x.int("i1", 1))
    )
    signed = pick(none, nan, signed)
    signed = pick(x.cmp("fcmp uno", "float", base, exponent), nan, signed)
    unit = x.op(
        "or",
        "i1",
        x.cmp("fcmp oeq", "float", base, one),
        x.cmp("fcmp oeq", "float", exponent, zero),
    )
    return pick(unit, one, signed)
