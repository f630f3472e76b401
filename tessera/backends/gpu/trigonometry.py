"""Computes sine, cosine, tangent and their inverses in LLVM IR: exact reduction of any argument, then polynomials."""

from __future__ import annotations

import math

from tessera.backends.elements.literals import float_literal
from tessera.backends.gpu import mathtables as tables
from tessera.backends.gpu.maths import Maths, function
from tessera.dtypes import float64


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

    x = m 2**e. Bits of 2/pi of weight 4 2**-e and more only add whole turns; the 192 bits that follow, times m, give
    the turn in quarters with two bits before the point.
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
    lower = w.pure(f"fmul double {lower}, {float_literal(2.0**-64, float64)}")
    r = w.pure(
        f"fmul double {w.pure(f'fadd double {upper}, {lower}')}, {float_literal(2.0**-64, float64)}"
    )
    r = w.pure(f"fmul double {r}, {float_literal(math.pi / 2, float64)}")
    negative = m.below(x, 0.0)
    quadrant = w.pure(
        f"select i1 {negative}, i32 {w.pure(f'sub i32 0, {quadrant}')}, i32 {quadrant}"
    )
    r = w.pure(f"select i1 {negative}, double {w.pure(f'fneg double {r}')}, double {r}")
    return quadrant, r if double else w.pure(f"fptrunc double {r} to float")


def _reduced(m: Maths, x: str) -> tuple[str, str]:
    """(quadrant as i32, r) with x = quadrant * pi/2 + r in fp64; branches for large arguments."""
    w = m.w
    far = m.cmp("oge", m.abs(x), m.const(2.0**28))
    n = m.rint(m.mul(x, m.const(2 / math.pi)))
    r = x
    for part in tables.PI_2:
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


def _wave(m: Maths, quadrant: str, r: str, cosine: int) -> str:
    """sin(r + quadrant * pi/2), or cos of it."""
    w = m.w
    s, c = _polynomials(m, r)
    if cosine:
        quadrant = w.pure(f"add i32 {quadrant}, 1")
    odd = w.pure(f"icmp ne i32 {w.pure(f'and i32 {quadrant}, 1')}, 0")
    minus = w.pure(f"icmp ne i32 {w.pure(f'and i32 {quadrant}, 2')}, 0")
    value = m.select(odd, c, s)
    return m.select(minus, m.neg(value), value)


@function("sin", "double")
def _sin64(m: Maths, x: str) -> str:
    value = _wave(m, *_reduced(m, x), 0)
    return m.select(m.cmp("oeq", x, m.const(0.0)), x, value)  # -0 too


@function("cos", "double")
def _cos64(m: Maths, x: str) -> str:
    return _wave(m, *_reduced(m, x), 1)


def _far(m: Maths, x: str, cosine: int) -> str:
    infinite = m.cmp("oeq", m.abs(x), m.const(math.inf))
    return m.select(infinite, m.const(math.nan), _wave(m, *_large(m, x), cosine))


@function("far_sin", "float")
def _far_sin(m: Maths, x: str) -> str:
    return _far(m, x, 0)


@function("far_cos", "float")
def _far_cos(m: Maths, x: str) -> str:
    return _far(m, x, 1)


def _wave32(m: Maths, x: str, name: str) -> str:
    """In place for |x| < 48000; a branch calls a function for larger ones.

    Adding 1.5 * 2**23 rounds x * 2/pi to a whole number, whose last bits are then those of the sum.
    """
    w, shift = m.w, m.const(1.5 * 2.0**23)
    cosine = name == "cos"
    total = m.fma(x, m.const(2 / math.pi), shift)
    n, r = m.sub(total, shift), x
    for part in tables.PI_2_SINGLE:
        r = m.fma(n, m.const(-part), r)
    near = _wave(m, m.bits(total), r, cosine)
    if not cosine:
        near = m.select(m.cmp("oeq", x, m.const(0.0)), x, near)  # -0 too
    far = m.cmp("oge", m.abs(x), m.const(48000.0))
    before, slow, after = w.block, w.label("far"), w.label("waved")
    w.branch_if(far, slow, after)
    with w.scope():
        w.start(slow)
        value = m.function(f"far_{name}", x)
        last = w.block
        w.branch(after)
    w.start(after)
    return w.emit(f"phi float [ {near}, %{before} ], [ {value}, %{last} ]")


@function("sin", "float")
def _sin32(m: Maths, x: str) -> str:
    return _wave32(m, x, "sin")


@function("cos", "float")
def _cos32(m: Maths, x: str) -> str:
    return _wave32(m, x, "cos")


@function("tan", "double")
def _tan(m: Maths, x: str) -> str:
    w = m.w
    quadrant, r = _reduced(m, x)
    s, c = _polynomials(m, r)
    odd = w.pure(f"icmp ne i32 {w.pure(f'and i32 {quadrant}, 1')}, 0")
    value = m.div(m.select(odd, m.neg(c), s), m.select(odd, s, c))
    return m.select(m.cmp("oeq", x, m.const(0.0)), x, value)  # -0 too


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
    angle = m.select(
        swap, m.add(m.sub(m.const(math.pi / 2), angle), m.const(tables.PI_2[1])), angle
    )
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
