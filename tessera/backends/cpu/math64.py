"""Evaluates functions of fp64 on vectors where no multi-word arithmetic is needed; other arguments go to the C library.

    exp     x = n ln 2 + r: 1 + r + r^2 q(r), 2^n multiplied in two steps
    log     x = m 2^e, s = (m - 1) / (m + 1): 2 s + s^3 p(s^2), and e ln 2 in two parts
    sin     x = n pi/2 + r, pi/2 in three parts: a polynomial of r, chosen by n

Polynomials are Chebyshev fits, their errors below 2^-55 of the result. The tests hold all functions to 2 ulp; found are
1.0, in sin and cos 1.8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.backends.cpu.lanes import Lanes
from tessera.backends.cpu.libm import guarded
from tessera.backends.elements.literals import float_literal, splat_literal
from tessera.dtypes import float64

EXP = (0.5000000000000001, 0.16666666666666669, 0.04166666666662413, 0.008333333333330062, 0.0013888888917213717,
       0.00019841269863053618, 2.4801521295954376e-05, 2.7557268459997064e-06, 2.7620088445409746e-07,
       2.510038549551032e-08)  # fmt: skip
LOG = (0.666666666666667, 0.3999999999989889, 0.28571428626253836, 0.22222211089379496, 0.1818289243253687,
       0.15331611722055008, 0.14617807153417325)  # fmt: skip
SIN = (-0.16666666666666666, 0.008333333333330946, -0.0001984126983675497, 2.755731610068303e-06,
       -2.5051131455427946e-08, 1.591810123027412e-10)  # fmt: skip
COS = (0.041666666666666664, -0.0013888888888887395, 2.4801587298763433e-05, -2.7557317270560326e-07,
       2.0876146024689747e-09, -1.1382614868556325e-11)  # fmt: skip
LN2, LN2_LOW = 0.6931471805599453, 2.3190468138462996e-17
# 33 bits, 33 bits, the rest.
HALF_PI = (
    1.5707963267341256,
    6.077100506303966e-11,
    2.0222662487959506e-21,
)
MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the nearest integer in the low bits
FAR = 2.0**20  # beyond this the reduction of sin and cos loses bits
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
MANTISSA = (1 << 52) - 1
D = "double"


def number(x: Lanes, value: float) -> str:
    return splat_literal(D, float_literal(value, float64), x.n)


def fma(x: Lanes, a: str, b: str, c: str) -> str:
    return x.call("fma", D, a, b, c)


def series(x: Lanes, coefficients: Sequence[float], at: str) -> str:
    total = number(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = fma(x, total, at, number(x, c))
    return total


def _clamp(x: Lanes, text: str, low: float, high: float) -> str:
    for name, bound in (("fcmp ogt", low), ("fcmp olt", high)):
        limit = number(x, bound)
        text = x.select(D, x.cmp(name, D, limit, text), limit, text)
    return text


def _scaled(x: Lanes, q: str, shifted: str) -> str:
    """q * 2^n, n in the low bits of `shifted`; in two steps, because 2^n alone may overflow or be subnormal."""
    n = x.convert("bitcast", D, shifted, "i64")
    n = x.op("ashr", "i64", x.op("shl", "i64", n, x.int("i64", 51)), x.int("i64", 51))
    half = x.op("ashr", "i64", n, x.int("i64", 1))
    for part in (half, x.op("sub", "i64", n, half)):
        bits = x.op("shl", "i64", x.op("add", "i64", part, x.int("i64", 1023)), x.int("i64", 52))
        q = x.op("fmul", D, q, x.convert("bitcast", "i64", bits, D))
    return q


def _exp_of(x: Lanes, r: str, shifted: str) -> str:
    square = x.op("fmul", D, r, r)
    rest = fma(x, square, series(x, EXP, r), r)
    return _scaled(x, x.op("fadd", D, rest, number(x, 1.0)), shifted)


def exp(x: Lanes, text: str) -> str:
    text = _clamp(x, text, -746.0, 710.0)
    shifted = fma(x, text, number(x, 1.4426950408889634), number(x, MAGIC))
    n = x.op("fsub", D, shifted, number(x, MAGIC))
    r = fma(x, n, number(x, -LN2_LOW), fma(x, n, number(x, -LN2), text))
    return _exp_of(x, r, shifted)


def exp2(x: Lanes, text: str) -> str:
    text = _clamp(x, text, -1076.0, 1025.0)
    shifted = x.op("fadd", D, text, number(x, MAGIC))
    part = x.op("fsub", D, text, x.op("fsub", D, shifted, number(x, MAGIC)))
    r = x.op("fmul", D, part, number(x, LN2))
    lost = fma(x, part, number(x, LN2), x.op("fneg", D, r))  # of the product's rounding
    r = x.op("fadd", D, r, fma(x, part, number(x, LN2_LOW), lost))
    return _exp_of(x, r, shifted)


def _split(x: Lanes, text: str) -> tuple[str, str]:
    """(m - 1, e) with text = m 2^e and m in [sqrt(1/2), sqrt(2))."""
    tiny = x.cmp("fcmp olt", D, text, number(x, 2.0**-1022))
    whole = x.select(D, tiny, x.op("fmul", D, text, number(x, 2.0**54)), text)
    extra = x.select("i64", tiny, x.int("i64", -54), x.int("i64", 0))
    offset = x.op("sub", "i64", x.convert("bitcast", D, whole, "i64"), x.int("i64", SQRT_HALF_BITS))
    e = x.op("add", "i64", x.op("ashr", "i64", offset, x.int("i64", 52)), extra)
    low = x.op("and", "i64", offset, x.int("i64", MANTISSA))
    m = x.convert("bitcast", "i64", x.op("add", "i64", low, x.int("i64", SQRT_HALF_BITS)), D)
    return x.op("fsub", D, m, number(x, 1.0)), x.convert("sitofp", "i64", e, D)


def _log_edges(x: Lanes, text: str, result: str) -> str:
    """Zero, infinity, negative numbers and NaN."""
    zero, infinity = number(x, 0.0), number(x, float("inf"))
    result = x.select(D, x.cmp("fcmp oeq", D, text, infinity), text, result)
    result = x.select(D, x.cmp("fcmp oeq", D, text, zero), number(x, float("-inf")), result)
    return x.select(D, x.cmp("fcmp oge", D, text, zero), result, number(x, float("nan")))


def _log1p(x: Lanes, f: str) -> tuple[str, str]:
    """log(1 + f) = f - tail, in two parts: tail = f^2/2 - s (f^2/2 + s^2 p(s^2)), s = f / (2 + f)."""
    s = x.op("fdiv", D, f, x.op("fadd", D, f, number(x, 2.0)))
    z = x.op("fmul", D, s, s)
    half = x.op("fmul", D, x.op("fmul", D, f, number(x, 0.5)), f)
    inner = fma(x, z, series(x, LOG, z), half)
    return half, x.op("fmul", D, s, inner)


def log(x: Lanes, text: str) -> str:
    f, e = _split(x, text)
    half, rest = _log1p(x, f)
    low = fma(x, e, number(x, 1.9082149292705877e-10), rest)
    small = x.op("fsub", D, x.op("fsub", D, half, low), f)
    # 0.693147180369… has 32 bits: its product with e is exact.
    result = fma(x, e, number(x, 0.6931471803691238), x.op("fneg", D, small))
    return _log_edges(x, text, result)


def log2(x: Lanes, text: str) -> str:
    f, e = _split(x, text)
    half, rest = _log1p(x, f)
    natural = x.op("fsub", D, f, x.op("fsub", D, half, rest))
    low = fma(x, natural, number(x, 2.0355273740931033e-17), e)
    return _log_edges(x, text, fma(x, natural, number(x, 1.4426950408889634), low))


def _sin_cos(x: Lanes, text: str, cosine: bool) -> str:
    shifted = fma(x, text, number(x, 0.6366197723675814), number(x, MAGIC))
    n = x.op("fneg", D, x.op("fsub", D, shifted, number(x, MAGIC)))
    r = text
    for part in HALF_PI:
        r = fma(x, n, number(x, part), r)
    z = x.op("fmul", D, r, r)
    s = fma(x, x.op("fmul", D, z, r), series(x, SIN, z), r)
    half = x.op("fmul", D, z, number(x, 0.5))
    one = x.op("fsub", D, number(x, 1.0), half)
    lost = x.op("fsub", D, x.op("fsub", D, number(x, 1.0), one), half)
    tail = fma(x, x.op("fmul", D, z, z), series(x, COS, z), lost)
    c = x.op("fadd", D, one, tail)
    quadrant = x.convert("bitcast", D, shifted, "i64")
    if cosine:
        quadrant = x.op("add", "i64", quadrant, x.int("i64", 1))
    odd = x.cmp("icmp ne", "i64", x.op("and", "i64", quadrant, x.int("i64", 1)), x.int("i64", 0))
    value = x.convert("bitcast", D, x.select(D, odd, c, s), "i64")
    sign = x.op("shl", "i64", x.op("and", "i64", quadrant, x.int("i64", 2)), x.int("i64", 62))
    return x.convert("bitcast", "i64", x.op("xor", "i64", value, sign), D)


def _periodic(x: Lanes, text: str, name: str) -> str:
    def near(inner: Lanes, arguments: list[str]) -> tuple[str, str]:
        far = inner.cmp("fcmp uge", D, inner.call("fabs", D, arguments[0]), number(inner, FAR))
        return _sin_cos(inner, arguments[0], name == "cos"), far

    return guarded(x, name, float64, [text], near)


VECTOR: dict[str, Callable[[Lanes, str], str]] = {
    "exp": exp, "exp2": exp2, "log": log, "log2": log2, "sin": lambda x, text: _periodic(x, text, "sin"),
    "cos": lambda x, text: _periodic(x, text, "cos"),
}  # fmt: skip
