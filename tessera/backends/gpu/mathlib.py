"""Computes mathematical functions in LLVM IR: exp and the roots by hardware, the rest by range reduction and
polynomials.

Functions that the hardware approximates well are written in place; the others become internal functions, written once
a module. fp32 versions exist of those that hot loops use (log, log1p, sin, cos, tanh, erf, pow, ...); the rest of fp32
goes through the fp64 version, which makes it correctly rounded in all but a few cases in a million. fp16 and bf16 go
through fp32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tessera.backends.elements.arith import is_float
from tessera.backends.gpu import mathtables as tables
from tessera.backends.gpu.elementwise import elementwise, from_float32, to_float32
from tessera.backends.gpu.maths import FUNCTIONS, Maths, call_function, function
from tessera.backends.gpu.scalar import Scalar
from tessera.backends.gpu.types import llvm_type
from tessera.dtypes import float32, float64, int1
from tessera.ir import ElementType, Op
from tessera.ops import MATH_OPS, arith

LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")

# log10(2) in two parts; the first has trailing zeros, so that its product with an exponent is exact
LOG10_2_HIGH, LOG10_2_LOW = float.fromhex("0x1.34413508p-2"), float.fromhex("0x1.f79fef311f12bp-34")


# --- exponentials --------------------------------------------------------------------------------------------
def scaled(m: Maths, x: str, n: str) -> str:
    """x * 2**n in two steps, for an integer-valued float n beyond the range of exponents."""
    whole = m.to_int(n)
    half = m.iop("ashr", whole, 1)
    return m.mul(m.mul(x, m.whole(half)), m.whole(m.iop("sub", whole, half)))


@function("exp", "double")
def _exp64(m: Maths, x: str) -> str:
    near = m.call("maxnum", m.call("minnum", x, m.const(710.0)), m.const(-750.0))
    n = m.rint(m.mul(near, m.const(1 / math.log(2))))
    r = m.fma(n, m.const(-LN2_HIGH), near)
    r = m.fma(n, m.const(-LN2_LOW), r)
    result = scaled(m, m.horner(tables.EXP64, r), n)
    return m.select(m.cmp("uno", x, x), x, result)


@function("exp2", "double")
def _exp2_64(m: Maths, x: str) -> str:
    near = m.call("maxnum", m.call("minnum", x, m.const(1025.0)), m.const(-1080.0))
    n = m.rint(near)
    r = m.mul(m.sub(near, n), m.const(math.log(2)))
    result = scaled(m, m.horner(tables.EXP64, r), n)
    return m.select(m.cmp("uno", x, x), x, result)


@function("exp10", "double")
def _exp10_64(m: Maths, x: str) -> str:
    near = m.call("maxnum", m.call("minnum", x, m.const(309.0)), m.const(-330.0))
    n = m.rint(m.mul(near, m.const(math.log2(10))))
    r = m.fma(n, m.const(-LOG10_2_HIGH), near)
    r = m.fma(n, m.const(-LOG10_2_LOW), r)
    result = scaled(m, m.horner(tables.EXP64, m.mul(r, m.const(math.log(10)))), n)
    return m.select(m.cmp("uno", x, x), x, result)


@function("expm1", "double")
def _expm1_64(m: Maths, x: str) -> str:
    small = m.mul(
        x, m.horner((*tables.EXP64[1:], 1 / math.factorial(14), 1 / math.factorial(15)), x)
    )
    large = m.sub(m.function("exp", x), m.const(1.0))
    return m.select(m.below(m.abs(x), 0.4), small, large)


# --- logarithms ----------------------------------------------------------------------------------------------
def split_exponent(m: Maths, x: str) -> tuple[str, str]:
    """(f, e) with x = (1 + f) * 2**e and 1 + f between sqrt(1/2) and sqrt(2); for positive finite x."""
    double = m.type == "double"
    tiny = m.below(x, 2.0**-1022 if double else 2.0**-126)
    step = 54 if double else 25
    bits = m.bits(m.select(tiny, m.mul(x, m.const(2.0**step)), x))
    extra = m.w.pure(f"select i1 {tiny}, {m.int} {-step}, {m.int} 0")
    root, shift = (0x3FE6A09E667F3BCD, 52) if double else (0x3F3504F3, 23)
    offset = m.iop("sub", bits, root)
    e = m.iop("add", m.iop("ashr", offset, shift), extra)
    low = m.iop("and", offset, (1 << shift) - 1)
    return m.sub(m.from_bits(m.iop("add", low, root)), m.const(1.0)), m.to_float(e)


def log_edges(m: Maths, x: str, result: str) -> str:
    zero, inf = m.const(0.0), m.const(math.inf)
    result = m.select(m.cmp("oeq", x, inf), x, result)
    result = m.select(m.cmp("oeq", x, zero), m.const(-math.inf), result)
    return m.select(m.cmp("oge", x, zero), result, m.const(math.nan))


@function("log", "float")
def _log32(m: Maths, x: str) -> str:
    f, e = split_exponent(m, x)
    square = m.mul(f, f)
    cubic = m.mul(m.mul(square, f), m.horner(tables.LOG, f))
    tail = m.fma(e, m.const(-2.1219444005469058e-4), cubic)
    tail = m.fma(m.const(-0.5), square, tail)
    result = m.fma(e, m.const(0.693359375), m.add(f, tail))
    return log_edges(m, x, result)


@function("log1p", "float")
def _log1p32(m: Maths, x: str) -> str:
    """1 + x = (1 + f) * 2**e: f comes from x itself, not from the rounded sum."""
    root, four = 0x3F3504F3, 0x40800000
    total = m.add(x, m.const(1.0))
    e = m.iop("ashr", m.iop("sub", m.bits(total), root), 23)
    # Subnormal for e > 126.
    scale = m.mul(m.from_bits(m.iop("sub", four, m.iop("shl", e, 23))), m.const(0.25))
    f = m.fma(x, scale, m.sub(scale, m.const(1.0)))
    square, e = m.mul(f, f), m.to_float(e)
    tail = m.fma(m.const(-0.5), square, m.mul(m.mul(square, f), m.horner(tables.LOG, f)))
    tail = m.fma(e, m.const(-2.1219444005469058e-4), tail)
    result = m.fma(e, m.const(0.693359375), m.add(f, tail))
    result = log_edges(m, total, result)
    return m.select(m.cmp("oeq", x, m.const(0.0)), x, result)  # the sign of zero


def _log_base(m: Maths, x: str, per_two: float, factor_high: float, factor_low: float) -> str:
    """log_b(x) = e * log_b(2) + log(1 + f) * log_b(e), the last factor in two parts."""
    f, e = split_exponent(m, x)
    square = m.mul(f, f)
    tail = m.fma(m.const(-0.5), square, m.mul(m.mul(square, f), m.horner(tables.LOG, f)))
    low = m.mul(f, m.const(factor_low))
    low = m.fma(tail, m.const(factor_high), m.fma(tail, m.const(factor_low), low))
    result = m.fma(f, m.const(factor_high), low)
    if per_two != 1.0:
        high = 0.301025390625  # few bits, so that e * high is exact
        result = m.add(m.mul(e, m.const(high)), m.fma(e, m.const(per_two - high), result))
    else:
        result = m.add(e, result)
    return log_edges(m, x, result)


@function("log2", "float")
def _log2_32(m: Maths, x: str) -> str:
    return _log_base(m, x, 1.0, 1.4426950216293335, 1.925963033500011e-08)


@function("log10", "float")
def _log10_32(m: Maths, x: str) -> str:
    return _log_base(m, x, math.log10(2), 0.4342944920063019, -1.0103005e-08)


def _log64(m: Maths, x: str) -> tuple[str, str]:
    """(log(1 + f), e) of fp64."""
    f, e = split_exponent(m, x)
    s = m.div(f, m.add(f, m.const(2.0)))
    z = m.mul(s, s)
    half = m.mul(m.const(0.5), m.mul(f, f))
    r = m.mul(z, m.horner(tables.LOG64, z))
    # log(1 + f) = f - (f²/2 - s (f²/2 + R)): the large terms come without error
    return m.sub(f, m.sub(half, m.mul(s, m.add(half, r)))), e


@function("log", "double")
def _log_64(m: Maths, x: str) -> str:
    part, e = _log64(m, x)
    result = m.fma(e, m.const(LN2_HIGH), m.fma(e, m.const(LN2_LOW), part))
    return log_edges(m, x, result)


@function("log2", "double")
def _log2_64(m: Maths, x: str) -> str:
    part, e = _log64(m, x)
    low = 2.0355273740931033e-17  # log2(e) beyond 53 bits
    return log_edges(
        m, x, m.add(e, m.fma(part, m.const(1.4426950408889634), m.mul(part, m.const(low))))
    )


@function("log10", "double")
def _log10_64(m: Maths, x: str) -> str:
    part, e = _log64(m, x)
    tail = m.fma(e, m.const(LOG10_2_LOW), m.mul(part, m.const(math.log10(math.e))))
    return log_edges(m, x, m.fma(e, m.const(LOG10_2_HIGH), tail))


@function("log1p", "double")
def _log1p_64(m: Maths, x: str) -> str:
    u = m.add(x, m.const(1.0))
    correction = m.div(x, m.sub(u, m.const(1.0)))
    result = m.mul(m.function("log", u), correction)
    result = m.select(m.cmp("oeq", u, m.const(1.0)), x, result)
    return m.select(m.cmp("oeq", x, m.const(math.inf)), x, result)


# --- hyperbolic functions and erf ------------------------------------------------------------------------------------
@function("sinh", "double")
def _sinh(m: Maths, x: str) -> str:
    a = m.abs(x)
    e = m.function("expm1", m.call("minnum", a, m.const(700.0)))
    value = m.mul(m.const(0.5), m.add(e, m.div(e, m.add(e, m.const(1.0)))))
    half = m.function("exp", m.mul(a, m.const(0.5)))
    value = m.select(m.cmp("ogt", a, m.const(700.0)), m.mul(m.mul(m.const(0.5), half), half), value)
    return m.select(m.cmp("uno", x, x), x, m.sign_of(value, x))


@function("cosh", "double")
def _cosh(m: Maths, x: str) -> str:
    half = m.function("exp", m.mul(m.abs(x), m.const(0.5)))
    grown = m.mul(m.mul(m.const(0.5), half), half)
    return m.add(grown, m.div(m.const(0.25), grown))


@function("tanh", "double")
def _tanh64(m: Maths, x: str) -> str:
    e = m.function("expm1", m.mul(m.const(-2.0), m.abs(x)))
    value = m.div(m.neg(e), m.add(e, m.const(2.0)))
    return m.select(m.cmp("uno", x, x), x, m.sign_of(value, x))


@function("tanh", "float")
def _tanh32(m: Maths, x: str) -> str:
    a = m.abs(x)
    z = m.mul(x, x)
    small = m.fma(m.mul(z, x), m.horner(tables.TANH, z), x)
    grown = m.add(m.hardware("exp2", m.mul(a, m.const(2 / math.log(2)))), m.const(1.0))
    large = m.fma(m.const(-2.0), m.hardware("rcp", grown), m.const(1.0))
    return m.sign_of(m.select(m.below(a, 0.625), small, large), x)  # -0 too


@function("erf", "float")
def _erf32(m: Maths, x: str) -> str:
    a = m.abs(x)
    z = m.mul(x, x)
    small = m.mul(x, m.horner(tables.ERF, z))
    near = m.call("minnum", a, m.const(4.0))
    tail = m.hardware("exp2", m.neg(m.horner(tables.ERFC, near)))
    large = m.sign_of(m.sub(m.const(1.0), tail), x)
    result = m.select(m.below(a, 1.0), small, large)
    return m.select(m.cmp("uno", x, x), x, result)


@function("erf", "double")
def _erf64(m: Maths, x: str) -> str:
    a = m.abs(x)
    z = m.mul(x, x)
    small = m.mul(x, m.horner(tables.ERF64, z))
    near = m.call("minnum", a, m.const(6.5))
    t = m.div(m.const(2.0), m.add(near, m.const(2.0)))
    square = m.mul(near, near)
    rest = m.fma(near, near, m.neg(square))
    decay = m.mul(m.function("exp", m.neg(square)), m.sub(m.const(1.0), rest))
    tail = m.mul(decay, m.mul(t, m.horner(tables.ERFC64, t)))
    result = m.select(m.below(a, 1.0), small, m.sign_of(m.sub(m.const(1.0), tail), x))
    return m.select(m.cmp("uno", x, x), x, result)


# --- remainder -----------------------------------------------------------------------------------------------------
@function("fmod", "double")
def _fmod(m: Maths, x: str, y: str) -> str:
    """Remainder of the magnitudes, exact: multiples of y times a power of two are taken off, 50 bits of the quotient
    in a step. A quotient that rounded up leaves a remainder below zero, which one more divisor repairs."""
    w, zero = m.w, m.const(0.0)
    ay, start = m.abs(y), m.abs(x)
    loop, step, after = w.label("loop"), w.label("step"), w.label("done")
    valid = m.cmp("ogt", ay, zero)
    valid = w.pure(f"and i1 {valid}, {m.cmp('olt', start, m.const(math.inf))}")
    tiny = m.below(ay, 2.0**-1022)
    normal = m.select(tiny, m.mul(ay, m.const(2.0**54)), ay)
    short = w.pure(f"select i1 {tiny}, i64 54, i64 0")
    exponent = m.iop("sub", m.iop("lshr", m.bits(normal), 52), short)
    before = w.block
    w.branch(loop)
    w.start(loop)
    rest, following = w.fresh(), w.fresh()
    w.lines.append(f"  {rest} = phi double [ {start}, %{before} ], [ {following}, %{step} ]")
    more = w.pure(f"and i1 {valid}, {m.cmp('oge', rest, ay)}")
    w.branch_if(more, step, after)
    w.start(step)
    gap = m.iop("sub", m.iop("sub", m.iop("lshr", m.bits(rest), 52), exponent), 50)
    gap = w.call("i64", "llvm.smax.i64", [f"i64 {gap}", "i64 0"])
    gap = w.call("i64", "llvm.smin.i64", [f"i64 {gap}", "i64 2046"])
    half = m.iop("lshr", gap, 1)  # one power of two could be too large
    divisor = m.mul(m.mul(ay, m.whole(half)), m.whole(m.iop("sub", gap, half)))
    quotient = m.call("trunc", m.op("fdiv", rest, divisor))
    left = m.fma(m.neg(quotient), divisor, rest)
    fixed = m.add(left, divisor)
    w.lines.append(f"  {following} = select i1 {m.below(left, 0.0)}, double {fixed}, double {left}")
    w.branch(loop)
    w.start(after)
    result = m.sign_of(rest, x)
    defined = w.pure(f"and i1 {m.cmp('une', y, zero)}, {m.cmp('olt', start, m.const(math.inf))}")
    defined = w.pure(f"and i1 {defined}, {m.cmp('ord', y, y)}")
    return m.select(defined, result, m.const(math.nan))


# --- lowering ---------------------------------------------------------------------------------------------------------
INTRINSIC = {
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint", "round": "round",
}  # fmt: skip
IN_PLACE = {"tanh", "erf", "log", "log2", "log1p", "sin", "cos"}


def evaluate(x: Scalar, name: str, elem: ElementType, args: Sequence[str]) -> str:
    """The function `name` (an opcode) of one element."""
    if elem is not float32 and elem is not float64:
        wide = [to_float32(x, elem, v) for v in args]
        return from_float32(x, elem, evaluate(x, name, float32, wide))
    w, type = x.w, llvm_type(elem)
    m = Maths(w, x.target, type)
    if name in INTRINSIC:
        return m.call(INTRINSIC[name], *args)
    if elem is float32 and name == "exp":
        return m.hardware("exp2", m.mul(args[0], m.const(math.log2(math.e))))
    found = x.target.math(w, name, type, args)
    if found is not None:
        return found
    if name in ("sqrt", "sqrt_rn"):
        return m.call("sqrt", *args)
    if name == "rsqrt":
        return m.op("fdiv", m.const(1.0), m.call("sqrt", *args))
    if (name, type) in FUNCTIONS:
        if elem is float32 and name in IN_PLACE:
            return FUNCTIONS[name, type](m, *args)
        return m.function(name, *args)
    wide = [w.pure(f"fpext float {v} to double") for v in args]
    return w.pure(f"fptrunc double {call_function(w, x.target, name, 'double', wide)} to float")


@elementwise(*MATH_OPS.values(), arith.PowOp, arith.Atan2Op)
def _math(x: Scalar, op: Op, elem: ElementType, *args: str) -> str:
    return evaluate(x, op.opcode, elem, args)


@elementwise(arith.RemOp)
def _rem(x: Scalar, op: Op, elem: Any, a: str, b: str) -> str:
    """C's fmod, of narrower types in fp64, where the result is the same; integers by the shared row."""
    if is_float(elem):
        return evaluate(x, "fmod", elem, (a, b))
    return "false" if elem is int1 else x.op("srem" if elem.signed else "urem", x.type(elem), a, b)
