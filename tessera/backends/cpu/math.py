"""Lowers mathematical functions: by vector polynomials for fp32 (fp64: math64.py), else by libm lane by lane.

Each polynomial is a minimax fit made for this file (weighted least squares on Chebyshev nodes, iterated); bounds are
checked by the tests: exp, exp2, log, log2, sin, cos, tanh, erf within 2 ulp over their range. Powers: power.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.backends.cpu.lanes import Lanes
from tessera.backends.cpu.libm import guarded, libm
from tessera.backends.cpu.math64 import VECTOR as VECTOR64
from tessera.backends.elements.literals import float_literal, splat_literal, vector_type
from tessera.dtypes import dtype, float32, float64

EXP = (1.0, 1.0, 0.4999999344783053, 0.16666520630566417, 0.04166838803175015, 0.008368716986062084,
       0.001381459961885666)  # fmt: skip
EXP2 = (1.0, 0.6931472028682083, 0.24022647911799236, 0.055503324399659174, 0.009618437496948433,
        0.0013398887446056168, 0.000153533480158133)  # fmt: skip
LOG = (-0.49999988079071045, 0.33333325386047363, -0.25001585483551025, 0.20001985132694244, -0.16609056293964386,
       0.14181634783744812, -0.1324298083782196, 0.12905502319335938, -0.07623060792684555)  # fmt: skip
LOG2 = (-0.7213473320007324, 0.4808979034423828, -0.3606964349746704, 0.28858527541160583, -0.23963657021522522,
        0.20429615676403046, -0.19061289727687836, 0.18782590329647064, -0.11297335475683212)  # fmt: skip
SIN = (-0.1666666716337204, 0.008333329111337662, -0.0001983925758395344, 2.7175681225344306e-06)
COS = (0.0416666679084301, -0.0013888883404433727, 2.4799437596811913e-05, -2.720333895922522e-07)
TANH = (-0.3333333134651184, 0.13333198428153992, -0.053945690393447876, 0.021694356575608253,
        -0.008160693570971489, 0.0021268504206091166)  # fmt: skip
ERF = (0.1283791670955126,  # less 1: the rest is added exactly
       -0.3761262595653534, 0.11283581703901291, -0.026853572577238083, 0.005187676753848791,
       -0.000800279260147363, 7.823973282938823e-05)  # fmt: skip
ERFC = (-0.00027128172223456204, 1.6296371221542358, 0.9135432243347168, 0.1564149260520935, -0.03636781498789787,
        0.006065896712243557, -0.0006367131136357784, 3.128745811409317e-05)  # fmt: skip

MAGIC = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low bits
FAR = 32768.0  # beyond this the two-part reduction of sin and cos loses bits


def _fma(x: Lanes, a: str, b: str, c: str) -> str:
    return x.call("fma", "float", a, b, c)


def horner(x: Lanes, coefficients: Sequence[float], at: str) -> str:
    total = x.f32(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = _fma(x, total, at, x.f32(c))
    return total


def _clamp(x: Lanes, text: str, low: float, high: float) -> str:
    """Into [low, high], where `_scale` asks for it; NaN passes (the comparison is false, which picks the operand)."""
    if x.has_edges:
        return text
    for name, bound in (("fcmp ogt", low), ("fcmp olt", high)):
        text = x.select("float", x.cmp(name, "float", x.f32(bound), text), x.f32(bound), text)
    return text


def _scale(x: Lanes, q: str, n: str, shifted: str, above: str) -> str:
    """q * 2^n, n also in the low bits of `shifted`; zero where not `above`: the processor is slow at finding out that a
    product vanishes.

    The instruction takes NaN * 2^infinity for infinity, and a large n goes with a positive q, if not a small one.
    """
    if x.has_edges:
        ty = vector_type("float", x.n)
        operands = (f"{ty} {q}", f"{ty} {n}", f"{ty} zeroinitializer")
        return x.masked("scalef", *operands, mask=above)
    bits = x.convert("bitcast", "float", shifted, "i32")
    # Two steps, because 2^n alone may overflow or be subnormal.
    whole = x.op("shl", "i32", bits, x.int("i32", 9))
    whole = x.op("ashr", "i32", whole, x.int("i32", 9))
    half = x.op("ashr", "i32", whole, x.int("i32", 1))
    rest = x.op("sub", "i32", whole, half)
    for part in (half, rest):
        exponent = x.op("shl", "i32", x.op("add", "i32", part, x.int("i32", 127)), x.int("i32", 23))
        q = x.op("fmul", "float", q, x.convert("bitcast", "i32", exponent, "float"))
    return q


def exp(x: Lanes, text: str) -> str:
    near = _clamp(x, text, -105.0, 89.0)
    shifted = _fma(x, near, x.f32(1.4426950408889634), x.f32(MAGIC))
    n = x.op("fsub", "float", shifted, x.f32(MAGIC))
    r = _fma(x, n, x.f32(-0.693145751953125), near)
    r = _fma(x, n, x.f32(-1.428606765330187e-06), r)
    return _scale(x, horner(x, EXP, r), n, shifted, x.cmp("fcmp uge", "float", text, x.f32(-104.0)))


def exp2(x: Lanes, text: str) -> str:
    near = _clamp(x, text, -151.0, 129.0)
    shifted = x.op("fadd", "float", near, x.f32(MAGIC))
    n = x.op("fsub", "float", shifted, x.f32(MAGIC))
    r = x.op("fsub", "float", near, n)
    return _scale(
        x, horner(x, EXP2, r), n, shifted, x.cmp("fcmp uge", "float", text, x.f32(-150.0))
    )


def _split_log(x: Lanes, text: str) -> tuple[str, str]:
    """(f, e) with text = (1 + f) * 2^e and 1 + f in [sqrt(1/2), sqrt(2))."""
    tiny = x.cmp("fcmp olt", "float", text, x.f32(2.0**-126))
    scaled = x.select("float", tiny, x.op("fmul", "float", text, x.f32(2.0**25)), text)
    extra = x.select("i32", tiny, x.int("i32", -25), x.int("i32", 0))
    bits = x.convert("bitcast", "float", scaled, "i32")
    offset = x.op("sub", "i32", bits, x.int("i32", 0x3F3504F3))
    e = x.op("add", "i32", x.op("ashr", "i32", offset, x.int("i32", 23)), extra)
    low = x.op("and", "i32", offset, x.int("i32", 0x7FFFFF))
    mantissa = x.convert(
        "bitcast", "i32", x.op("add", "i32", low, x.int("i32", 0x3F3504F3)), "float"
    )
    return x.op("fsub", "float", mantissa, x.f32(1.0)), x.convert("sitofp", "i32", e, "float")


def _log_edges(x: Lanes, text: str, result: str) -> str:
    """Zero, infinity, negative numbers and NaN."""
    zero = x.f32(0.0)
    result = x.select("float", x.cmp("fcmp oeq", "float", text, x.f32(float("inf"))), text, result)
    result = x.select("float", x.cmp("fcmp oeq", "float", text, zero), x.f32(float("-inf")), result)
    return x.select("float", x.cmp("fcmp oge", "float", text, zero), result, x.f32(float("nan")))


def log(x: Lanes, text: str) -> str:
    f, e = _split_log(x, text)
    square = x.op("fmul", "float", f, f)
    tail = _fma(
        x, e, x.f32(-2.1219444005469058e-4), x.op("fmul", "float", square, horner(x, LOG, f))
    )
    result = _fma(x, e, x.f32(0.693359375), x.op("fadd", "float", f, tail))
    return _log_edges(x, text, result)


def log2(x: Lanes, text: str) -> str:
    f, e = _split_log(x, text)
    # 1.442695… in two parts, so that f * log2(e) keeps its low bits when e is 0.
    tail = _fma(
        x,
        f,
        x.f32(1.925963033500011e-08),
        x.op("fmul", "float", x.op("fmul", "float", f, f), horner(x, LOG2, f)),
    )
    result = x.op("fadd", "float", e, _fma(x, f, x.f32(1.4426950216293335), tail))
    return _log_edges(x, text, result)


def tanh(x: Lanes, text: str) -> str:
    a = x.call("fabs", "float", text)
    square = x.op("fmul", "float", text, text)
    small = _fma(x, x.op("fmul", "float", square, text), horner(x, TANH, square), text)
    grown = x.op("fadd", "float", exp(x, x.op("fadd", "float", a, a)), x.f32(1.0))
    large = x.op("fsub", "float", x.f32(1.0), x.op("fdiv", "float", x.f32(2.0), grown))
    found = x.select("float", x.cmp("fcmp olt", "float", a, x.f32(0.625)), small, large)
    return x.call("copysign", "float", found, text)  # -0 too


def erf(x: Lanes, text: str) -> str:
    a = x.call("fabs", "float", text)
    square = x.op("fmul", "float", text, text)
    small = _fma(x, text, horner(x, ERF, square), text)
    near = x.select("float", x.cmp("fcmp olt", "float", x.f32(4.0), a), x.f32(4.0), a)
    large = x.op("fsub", "float", x.f32(1.0), exp2(x, x.op("fneg", "float", horner(x, ERFC, near))))
    large = x.call("copysign", "float", large, text)
    return x.select("float", x.cmp("fcmp olt", "float", a, x.f32(1.0)), small, large)


def _sin_cos(x: Lanes, text: str, cosine: bool) -> str:
    """|text| up to FAR: r = text - n pi/2 in three parts, then the polynomial of the quadrant."""
    shifted = _fma(x, text, x.f32(0.6366197723675814), x.f32(MAGIC))
    n = x.op("fsub", "float", shifted, x.f32(MAGIC))
    r = text
    for part in (1.5707962512969971, 7.549789415861596e-08, 5.390302529957765e-15):
        r = _fma(x, n, x.f32(-part), r)
    z = x.op("fmul", "float", r, r)
    s = _fma(x, x.op("fmul", "float", z, r), horner(x, SIN, z), r)
    c = _fma(x, x.op("fmul", "float", z, z), horner(x, COS, z), _fma(x, z, x.f32(-0.5), x.f32(1.0)))
    quadrant = x.convert("bitcast", "float", shifted, "i32")
    if cosine:
        quadrant = x.op("add", "i32", quadrant, x.int("i32", 1))
    odd = x.cmp("icmp ne", "i32", x.op("and", "i32", quadrant, x.int("i32", 1)), x.int("i32", 0))
    value = x.convert("bitcast", "float", x.select("float", odd, c, s), "i32")
    sign = x.op("shl", "i32", x.op("and", "i32", quadrant, x.int("i32", 2)), x.int("i32", 30))
    return x.convert("bitcast", "i32", x.op("xor", "i32", value, sign), "float")


def _periodic(x: Lanes, text: str, name: str) -> str:
    """sin and cos: the polynomial, or libm for all lanes when any argument is large."""

    def near(inner: Lanes, arguments: list[str]) -> tuple[str, str]:
        size = inner.call("fabs", "float", arguments[0])
        far = inner.cmp("fcmp uge", "float", size, inner.f32(FAR))
        return _sin_cos(inner, arguments[0], name == "cos"), far

    return guarded(x, name, float32, [text], near)


def rsqrt(x: Lanes, text: str, t: dtype) -> str:
    element = "double" if t is float64 else "float"
    one = splat_literal(element, float_literal(1.0, t), x.n)
    return x.op("fdiv", element, one, x.call("sqrt", element, text))


VECTOR: dict[str, Callable[[Lanes, str], str]] = {
    "exp": exp, "exp2": exp2, "log": log, "log2": log2, "tanh": tanh, "erf": erf,
    "sin": lambda x, text: _periodic(x, text, "sin"), "cos": lambda x, text: _periodic(x, text, "cos"),
}  # fmt: skip
INTRINSIC = {
    "sqrt": "sqrt", "sqrt_rn": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint",
    "round": "round",
}  # fmt: skip


def math(x: Lanes, name: str, text: str, t: dtype) -> str:
    """The function `name` (an opcode of ops.MATH) of fp32 or fp64 lanes."""
    if name in INTRINSIC:
        return x.call(INTRINSIC[name], "double" if t is float64 else "float", text)
    if name == "rsqrt":
        return rsqrt(x, text, t)
    vector = {float32: VECTOR, float64: VECTOR64}[t]
    if name in vector:
        return vector[name](x, text)
    return libm(x, name, t, text)
