"""Mathematical functions in LLVM IR: exp and the roots by hardware, the rest by range reduction and polynomials.

Functions that the hardware approximates well are written in place; the others become internal functions, written once a
module. fp32 versions exist of those that hot loops use (log, sin, cos, tanh, erf, ...); the rest of fp32 goes through the
fp64 version, which makes it correctly rounded in all but a few cases in a million. fp16 and bf16 go through fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tessera.backends.gpu import mathtables as tables
from tessera.backends.gpu.elementwise import integer_remainder, map_registers, narrow, widen
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.target import GpuTarget
from tessera.backends.gpu.types import float_literal, llvm_type
from tessera.backends.gpu.writer import Writer
from tessera.dtypes import float32, float64
from tessera.errors import InternalError
from tessera.ir import Op, elem_of
from tessera.ops import MATH_OPS, arith

LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")

# log10(2) in two parts; the first has trailing zeros, so that its product with an exponent is exact
LOG10_2_HIGH, LOG10_2_LOW = float.fromhex("0x1.34413508p-2"), float.fromhex("0x1.f79fef311f12bp-34")


class Maths:
    """Writes scalar arithmetic of one float type."""

    def __init__(self, w: Writer, target: GpuTarget, type: str) -> None:
        self.w, self.target, self.type = w, target, type
        self.elem = float64 if type == "double" else float32
        self.int = "i64" if type == "double" else "i32"
        self.suffix = "f64" if type == "double" else "f32"

    def const(self, value: float) -> str:
        return float_literal(self.elem, value)

    def op(self, name: str, a: str, b: str) -> str:
        return self.w.pure(f"{name} {self.type} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        return self.op("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.op("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.op("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        """A quick quotient in fp32, a correctly rounded one in fp64."""
        return self.target.math(self.w, "div", self.type, [a, b]) or self.op("fdiv", a, b)

    def neg(self, a: str) -> str:
        return self.w.pure(f"fneg {self.type} {a}")

    def call(self, name: str, *args: str) -> str:
        typed = [f"{self.type} {a}" for a in args]
        return self.w.call(self.type, f"llvm.{name}.{self.suffix}", typed)

    def fma(self, a: str, b: str, c: str) -> str:
        return self.call("fma", a, b, c)

    def abs(self, a: str) -> str:
        return self.call("fabs", a)

    def rint(self, a: str) -> str:
        return self.call("rint", a)

    def sign_of(self, size: str, sign: str) -> str:
        return self.call("copysign", size, sign)

    def cmp(self, predicate: str, a: str, b: str) -> str:
        return self.w.pure(f"fcmp {predicate} {self.type} {a}, {b}")

    def below(self, a: str, bound: float) -> str:
        return self.cmp("olt", a, self.const(bound))

    def select(self, c: str, a: str, b: str) -> str:
        return self.w.pure(f"select i1 {c}, {self.type} {a}, {self.type} {b}")

    def iop(self, name: str, a: str, b: str | int) -> str:
        return self.w.pure(f"{name} {self.int} {a}, {b}")

    def bits(self, a: str) -> str:
        return self.w.pure(f"bitcast {self.type} {a} to {self.int}")

    def from_bits(self, a: str) -> str:
        return self.w.pure(f"bitcast {self.int} {a} to {self.type}")

    def to_int(self, a: str) -> str:
        """A whole number of moderate size as an integer."""
        return self.w.pure(f"fptosi {self.type} {a} to {self.int}")

    def to_float(self, a: str) -> str:
        return self.w.pure(f"sitofp {self.int} {a} to {self.type}")

    def horner(self, coefficients: Sequence[float], x: str) -> str:
        total = self.const(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.const(c))
        return total

    def hardware(self, name: str, *args: str) -> str:
        found = self.target.math(self.w, name, self.type, args)
        if found is None:
            raise InternalError(f"the target has no {name} for {self.type}")
        return found

    def function(self, name: str, *args: str) -> str:
        """Call the internal function `name`; written at its first use."""
        return call_function(self.w, self.target, name, self.type, args)

    def whole(self, a: str) -> str:
        """2**a for an integer a in the range of exponents."""
        shift, bias = (52, 1023) if self.type == "double" else (23, 127)
        return self.from_bits(self.iop("shl", self.iop("add", a, bias), shift))


Body = Callable[..., str]
FUNCTIONS: dict[tuple[str, str], Body] = {}


def function(name: str, *types: str) -> Callable[[Body], Body]:
    def register(fn: Body) -> Body:
        for t in types:
            FUNCTIONS[name, t] = fn
        return fn

    return register


def call_function(w: Writer, target: GpuTarget, name: str, type: str, args: Sequence[str]) -> str:
    """Call fn(args) of one type as an internal function of the module."""
    symbol = f"@tessera.{name}.{type}"
    module = w.module
    if symbol not in module.defined:
        module.defined.add(symbol)
        body = Writer(module)
        m = Maths(body, target, type)
        result = FUNCTIONS[name, type](m, *[f"%a{i}" for i in range(len(args))])
        params = ", ".join(f"{type} %a{i}" for i in range(len(args)))
        head = f"define internal {type} {symbol}({params}) nounwind memory(none) {{"
        lines = [head, "entry:", *body.prologue, *body.lines, f"  ret {type} {result}", "}"]
        module.functions.append("\n".join(lines))
    return w.pure(f"call {type} {symbol}({', '.join(f'{type} {a}' for a in args)})")


# --- exponentials --------------------------------------------------------------------------------------------
def _scaled(m: Maths, x: str, n: str) -> str:
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
    result = _scaled(m, m.horner(tables.EXP64, r), n)
    return m.select(m.cmp("uno", x, x), x, result)


@function("exp2", "double")
def _exp2_64(m: Maths, x: str) -> str:
    near = m.call("maxnum", m.call("minnum", x, m.const(1025.0)), m.const(-1080.0))
    n = m.rint(near)
    r = m.mul(m.sub(near, n), m.const(math.log(2)))
    result = _scaled(m, m.horner(tables.EXP64, r), n)
    return m.select(m.cmp("uno", x, x), x, result)


@function("exp10", "double")
def _exp10_64(m: Maths, x: str) -> str:
    near = m.call("maxnum", m.call("minnum", x, m.const(309.0)), m.const(-330.0))
    n = m.rint(m.mul(near, m.const(math.log2(10))))
    r = m.fma(n, m.const(-LOG10_2_HIGH), near)
    r = m.fma(n, m.const(-LOG10_2_LOW), r)
    result = _scaled(m, m.horner(tables.EXP64, m.mul(r, m.const(math.log(10)))), n)
    return m.select(m.cmp("uno", x, x), x, result)


@function("expm1", "double")
def _expm1_64(m: Maths, x: str) -> str:
    small = m.mul(x, m.horner(tables.EXP64[1:] + (1 / math.factorial(14), 1 / math.factorial(15)), x))
    large = m.sub(m.function("exp", x), m.const(1.0))
    return m.select(m.below(m.abs(x), 0.4), small, large)


# --- logarithms ----------------------------------------------------------------------------------------------
def _split(m: Maths, x: str) -> tuple[str, str]:
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


def _log_edges(m: Maths, x: str, result: str) -> str:
    zero, inf = m.const(0.0), m.const(math.inf)
    result = m.select(m.cmp("oeq", x, inf), x, result)
    result = m.select(m.cmp("oeq", x, zero), m.const(-math.inf), result)
    return m.select(m.cmp("oge", x, zero), result, m.const(math.nan))


@function("log", "float")
def _log32(m: Maths, x: str) -> str:
    f, e = _split(m, x)
    square = m.mul(f, f)
    cubic = m.mul(m.mul(square, f), m.horner(tables.LOG, f))
    tail = m.fma(e, m.const(-2.1219444005469058e-4), cubic)
    tail = m.fma(m.const(-0.5), square, tail)
    result = m.fma(e, m.const(0.693359375), m.add(f, tail))
    return _log_edges(m, x, result)


def _log_base(m: Maths, x: str, per_two: float, factor_high: float, factor_low: float) -> str:
    """log_b(x) = e * log_b(2) + log(1 + f) * log_b(e), the last factor in two parts."""
    f, e = _split(m, x)
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
    return _log_edges(m, x, result)


@function("log2", "float")
def _log2_32(m: Maths, x: str) -> str:
    return _log_base(m, x, 1.0, 1.4426950216293335, 1.925963033500011e-08)


@function("log10", "float")
def _log10_32(m: Maths, x: str) -> str:
    return _log_base(m, x, math.log10(2), 0.4342944920063019, -1.0103005e-08)


def _log64(m: Maths, x: str) -> tuple[str, str]:
    """(log(1 + f), e) of fp64."""
    f, e = _split(m, x)
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
    return _log_edges(m, x, result)


@function("log2", "double")
def _log2_64(m: Maths, x: str) -> str:
    part, e = _log64(m, x)
    low = 2.0355273740931033e-17  # log2(e) beyond 53 bits
    return _log_edges(m, x, m.add(e, m.fma(part, m.const(1.4426950408889634), m.mul(part, m.const(low)))))


@function("log10", "double")
def _log10_64(m: Maths, x: str) -> str:
    part, e = _log64(m, x)
    tail = m.fma(e, m.const(LOG10_2_LOW), m.mul(part, m.const(math.log10(math.e))))
    return _log_edges(m, x, m.fma(e, m.const(LOG10_2_HIGH), tail))


@function("log1p", "double")
def _log1p_64(m: Maths, x: str) -> str:
    u = m.add(x, m.const(1.0))
    correction = m.div(x, m.sub(u, m.const(1.0)))
    result = m.mul(m.function("log", u), correction)
    result = m.select(m.cmp("oeq", u, m.const(1.0)), x, result)
    return m.select(m.cmp("oeq", x, m.const(math.inf)), x, result)


# --- trigonometry ------------------------------------------------------------------------------------------------
def _polynomials(m: Maths, r: str) -> tuple[str, str]:
    """(sin r, cos r) for |r| <= pi/4."""
    sin, cos = (tables.SIN64, tables.COS64) if m.type == "double" else (tables.SIN, tables.COS)
    z = m.mul(r, r)
    s = m.fma(m.mul(z, r), m.horner(sin, z), r)
    c = m.fma(m.mul(z, z), m.horner(cos, z), m.fma(z, m.const(-0.5), m.const(1.0)))
    return s, c


def _large(m: Maths, x: str) -> tuple[str, str]:
    """(quadrant as i32, r) of a large argument, exact: the bits of 2/pi around its exponent times its mantissa.

    x = m 2**e. Bits of 2/pi of weight 4 2**-e and more only add whole turns; the 192 bits that follow, times m, give the
    turn in quarters with two bits before the point.
    """
    w, double = m.w, m.type == "double"
    shift, bias = (52, 1075) if double else (23, 150)
    raw = m.bits(m.abs(x))
    e = m.iop("sub", m.iop("lshr", raw, shift), bias)
    mantissa = m.iop("or", m.iop("and", raw, (1 << shift) - 1), 1 << shift)
    if not double:
        mantissa, e = w.pure(f"zext i32 {mantissa} to i64"), w.pure(f"sext i32 {e} to i64")
    first = w.pure(f"add i64 {e}, 62")  # bit e - 2 of the number, 64 zeros stand before it
    word, bit = w.pure(f"lshr i64 {first}, 6"), w.pure(f"and i64 {first}, 63")
    table = [0, *tables.TWO_OVER_PI]
    values = ", ".join(f"i64 {v - (1 << 64) if v >> 63 else v}" for v in table)
    w.module.constant(
        f"@tessera.two_over_pi = internal unnamed_addr addrspace(4) constant [{len(table)} x i64] [{values}]"
    )
    chunks: list[str] = []
    for i in range(4):
        at = w.pure(f"add i64 {word}, {i}")
        place = w.pure(
            f"getelementptr [{len(table)} x i64], ptr addrspace(4) @tessera.two_over_pi, i64 0, i64 {at}"
        )
        chunks.append(w.emit(f"load i64, ptr addrspace(4) {place}"))
    window = [
        w.call("i64", "llvm.fshl.i64", [f"i64 {chunks[i]}", f"i64 {chunks[i + 1]}", f"i64 {bit}"])
        for i in range(3)
    ]
    wide = [w.pure(f"zext i64 {x} to i128") for x in (*window, mantissa)]
    low = w.pure(f"lshr i128 {w.pure(f'mul i128 {wide[2]}, {wide[3]}')}, 64")
    top = w.pure(f"or disjoint i128 {w.pure(f'shl i128 {wide[0]}, 64')}, {wide[1]}")
    turns = w.pure(f"add i128 {w.pure(f'mul i128 {top}, {wide[3]}')}, {low}")
    quarter = w.pure(f"trunc i128 {w.pure(f'lshr i128 {turns}, 126')} to i32")
    half = w.pure(f"trunc i128 {w.pure(f'lshr i128 {turns}, 125')} to i32")
    quadrant = w.pure(f"add i32 {quarter}, {w.pure(f'and i32 {half}, 1')}")
    rest = w.pure(f"shl i128 {turns}, 2")  # signed: what is left of the quarter after rounding
    upper = w.pure(f"trunc i128 {w.pure(f'lshr i128 {rest}, 64')} to i64")
    lower = w.pure(f"trunc i128 {rest} to i64")
    upper = w.pure(f"sitofp i64 {upper} to double")
    lower = w.pure(f"uitofp i64 {lower} to double")
    lower = w.pure(f"fmul double {lower}, {float_literal(float64, 2.0**-64)}")
    r = w.pure(f"fmul double {w.pure(f'fadd double {upper}, {lower}')}, {float_literal(float64, 2.0**-64)}")
    r = w.pure(f"fmul double {r}, {float_literal(float64, math.pi / 2)}")
    negative = m.below(x, 0.0)
    quadrant = w.pure(
        f"select i1 {negative}, i32 {w.pure(f'sub i32 0, {quadrant}')}, i32 {quadrant}"
    )
    r = w.pure(f"select i1 {negative}, double {w.pure(f'fneg double {r}')}, double {r}")
    return quadrant, r if double else w.pure(f"fptrunc double {r} to float")


def _reduced(m: Maths, x: str) -> tuple[str, str]:
    """(quadrant as i32, r) with x = quadrant * pi/2 + r; branches for large arguments."""
    w = m.w
    parts = tables.PI_2 if m.type == "double" else tables.PI_2_SINGLE
    bound = 2.0**28 if m.type == "double" else 48000.0
    far = m.cmp("oge", m.abs(x), m.const(bound))
    n = m.rint(m.mul(x, m.const(2 / math.pi)))
    r = x
    for part in parts:
        r = m.fma(n, m.const(-part), r)
    near_q = w.call("i32", f"llvm.fptosi.sat.i32.{m.suffix}", [f"{m.type} {n}"])
    before, slow, after = w.block, w.label("far"), w.label("reduced")
    w.branch_if(far, slow, after)
    with w.scope():
        w.start(slow)
        far_q, far_r = _large(m, x)
        last = w.block
        w.branch(after)
    w.start(after)
    quadrant = w.emit(f"phi i32 [ {near_q}, %{before} ], [ {far_q}, %{last} ]")
    r = w.emit(f"phi {m.type} [ {r}, %{before} ], [ {far_r}, %{last} ]")
    infinite = m.cmp("oeq", m.abs(x), m.const(math.inf))
    return quadrant, m.select(infinite, m.const(math.nan), r)


def _wave(m: Maths, x: str, cosine: int) -> str:
    w = m.w
    quadrant, r = _reduced(m, x)
    s, c = _polynomials(m, r)
    if cosine:
        quadrant = w.pure(f"add i32 {quadrant}, 1")
    odd = w.pure(f"icmp ne i32 {w.pure(f'and i32 {quadrant}, 1')}, 0")
    minus = w.pure(f"icmp ne i32 {w.pure(f'and i32 {quadrant}, 2')}, 0")
    value = m.select(odd, c, s)
    return m.select(minus, m.neg(value), value)


@function("sin", "float", "double")
def _sin(m: Maths, x: str) -> str:
    return _wave(m, x, 0)


@function("cos", "float", "double")
def _cos(m: Maths, x: str) -> str:
    return _wave(m, x, 1)


@function("tan", "double")
def _tan(m: Maths, x: str) -> str:
    w = m.w
    quadrant, r = _reduced(m, x)
    s, c = _polynomials(m, r)
    odd = w.pure(f"icmp ne i32 {w.pure(f'and i32 {quadrant}, 1')}, 0")
    return m.div(m.select(odd, m.neg(c), s), m.select(odd, s, c))


@function("atan", "double")
def _atan(m: Maths, x: str) -> str:
    a = m.abs(x)
    big = m.cmp("ogt", a, m.const(1.0))
    t = m.select(big, m.div(m.const(1.0), a), a)
    middle = m.cmp("ogt", t, m.const(math.tan(math.pi / 8)))
    t = m.select(middle, m.div(m.sub(t, m.const(1.0)), m.add(t, m.const(1.0))), t)
    z = m.mul(t, t)
    value = m.fma(m.mul(z, t), m.horner(tables.ATAN64, z), t)
    value = m.select(middle, m.add(value, m.const(math.pi / 4)), value)
    other = m.add(m.sub(m.const(math.pi / 2), value), m.const(tables.PI_2[1]))
    return m.sign_of(m.select(big, other, value), x)


@function("atan2", "double")
def _atan2(m: Maths, y: str, x: str) -> str:
    """Angle of (x, y): the smaller over the larger, then by octant; infinities count as 1, zeros as 0."""
    ay, ax = m.abs(y), m.abs(x)
    swap = m.cmp("ogt", ay, ax)
    top, bottom = m.select(swap, ax, ay), m.select(swap, ay, ax)
    inf = m.const(math.inf)
    both = m.cmp("oeq", top, inf)
    ratio = m.div(top, bottom)
    ratio = m.select(both, m.const(1.0), ratio)
    ratio = m.select(m.cmp("oeq", bottom, m.const(0.0)), m.const(0.0), ratio)
    angle = m.function("atan", ratio)
    angle = m.select(swap, m.add(m.sub(m.const(math.pi / 2), angle), m.const(tables.PI_2[1])), angle)
    negative = m.w.pure(f"icmp slt {m.int} {m.bits(x)}, 0")
    turned = m.add(m.sub(m.const(math.pi), angle), m.const(2 * tables.PI_2[1]))
    angle = m.sign_of(m.select(negative, turned, angle), y)
    return m.select(m.cmp("uno", x, y), m.const(math.nan), angle)


def _cathetus(m: Maths, x: str) -> str:
    one = m.const(1.0)
    return m.call("sqrt", m.mul(m.sub(one, x), m.add(one, x)))


@function("asin", "double")
def _asin(m: Maths, x: str) -> str:
    return m.function("atan2", x, _cathetus(m, x))


@function("acos", "double")
def _acos(m: Maths, x: str) -> str:
    return m.function("atan2", _cathetus(m, x), x)


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
    return m.select(m.below(a, 0.625), small, m.sign_of(large, x))


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


# --- powers ------------------------------------------------------------------------------------------------------------
@function("pow", "double")
def _pow(m: Maths, x: str, y: str) -> str:
    """|x|**y = exp(y log|x|), then the signs and special cases of IEEE pow."""
    w, one, inf = m.w, m.const(1.0), m.const(math.inf)
    a = m.abs(x)
    log = m.function("log", a)
    high = m.mul(y, log)
    low = m.fma(y, log, m.neg(high))
    grown = m.function("exp", high)
    finite = m.cmp("olt", m.abs(high), m.const(700.0))
    grown = m.select(finite, m.fma(grown, low, grown), grown)
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


@function("fmod", "double")
def _fmod(m: Maths, x: str, y: str) -> str:
    """Remainder of the magnitudes, exact: multiples of y times a power of two are taken off, 50 bits of the quotient in
    a step. A quotient that rounded up leaves a remainder below zero, which one more divisor repairs."""
    w, zero = m.w, m.const(0.0)
    ay, start = m.abs(y), m.abs(x)
    loop, step, after = w.label("loop"), w.label("step"), w.label("done")
    valid = m.cmp("ogt", ay, zero)
    valid = w.pure(f"and i1 {valid}, {m.cmp('olt', start, m.const(math.inf))}")
    exponent = m.iop("lshr", m.bits(ay), 52)
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
    scale = m.whole(w.call("i64", "llvm.smin.i64", [f"i64 {gap}", "i64 1000"]))
    divisor = m.mul(ay, scale)
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
IN_PLACE = {"tanh", "erf", "log", "log2"}


def evaluate(fl: FunctionLowering, name: str, elem: Any, args: Sequence[str]) -> str:
    """The function `name` (an opcode) of one element."""
    if elem is not float32 and elem is not float64:
        if elem.is_fp8():
            raise InternalError(f"{name} has no {elem} form: convert to fp16 or fp32 first")
        return narrow(fl, elem, evaluate(fl, name, float32, [widen(fl, elem, x) for x in args]))
    w, type = fl.w, llvm_type(elem)
    m = Maths(w, fl.target, type)
    if name in INTRINSIC:
        return m.call(INTRINSIC[name], *args)
    if elem is float32 and name == "exp":
        return m.hardware("exp2", m.mul(args[0], m.const(math.log2(math.e))))
    found = fl.target.math(w, name, type, args)
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
    wide = [w.pure(f"fpext float {x} to double") for x in args]
    return w.pure(f"fptrunc double {call_function(w, fl.target, name, 'double', wide)} to float")


def _element(fl: FunctionLowering, op: Op, elem: Any, *args: str) -> str:
    return evaluate(fl, op.opcode, elem, args)


@lowers(arith.RemOp)
def _rem(fl: FunctionLowering, op: arith.RemOp) -> None:
    floats = elem_of(op.lhs.type).is_floating()
    map_registers(fl, op, _remainder if floats else integer_remainder)


def _remainder(fl: FunctionLowering, op: Op, elem: Any, a: str, b: str) -> str:
    """C's fmod; narrower types in fp64, where the result is the same."""
    return evaluate(fl, "fmod", elem, (a, b))


@lowers(*MATH_OPS.values(), arith.PowOp, arith.Atan2Op)
def _math(fl: FunctionLowering, op: Any) -> None:
    map_registers(fl, op, _element)
