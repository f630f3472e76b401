"""Writes the parts of the shared math functions (elements/) that a GPU must provide: reduction of large angles, fmod.

fp32 functions used in hot loops are inlined, others are written once a module. A function without an fp32 version
goes through the fp64 one, whose result is correctly rounded in all but a few cases in a million.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tessera.backends.elements.builder import ElementBuilder
from tessera.backends.elements.floats import Floats, function
from tessera.backends.elements.literals import float_literal
from tessera.backends.elements.remainders import turned_sign
from tessera.backends.elements.trigonometry import turned
from tessera.backends.gpu.scalar import Scalar
from tessera.dtypes import float32, float64

TWO_OVER_PI = (
    0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484,
    0xE99C7026B45F7E41, 0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7, 0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB, 0xF0CFBC209AF4361D,
)  # fmt: skip
"""The bits of 2/pi after the binary point."""


def scalar(m: Floats) -> Scalar:
    assert isinstance(m.x, Scalar)
    return m.x


# --- large angles --------------------------------------------------------------------------------------------
def _reduced(m: Floats, x: str) -> tuple[str, str]:
    """Return (quadrant, r) of a large argument, exactly: the bits of 2/pi around its exponent times its mantissa.

    x = m 2**e. Bits of 2/pi of weight 4 2**-e and more only add whole turns; the 192 bits that follow, times m, give
    the turn in quarters with two bits before the point.
    """
    w, double, shift = scalar(m).w, m.double, m.mantissa
    raw = m.bits(m.abs(x))
    e = m.iop("sub", m.iop("lshr", raw, shift), m.t.bias + shift)
    mantissa = m.iop("or", m.iop("and", raw, (1 << shift) - 1), 1 << shift)
    if not double:
        mantissa, e = w.pure(f"zext i32 {mantissa} to i64"), w.pure(f"sext i32 {e} to i64")
    first = w.pure(f"add i64 {e}, 62")  # bit e - 2 of the number, which is preceded by 64 zeros
    word, bit = w.pure(f"lshr i64 {first}, 6"), w.pure(f"and i64 {first}, 63")
    table = [0, *TWO_OVER_PI]
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
    quarter = w.pure(f"trunc i128 {w.pure(f'lshr i128 {turns}, 126')} to {m.int}")
    half = w.pure(f"trunc i128 {w.pure(f'lshr i128 {turns}, 125')} to {m.int}")
    quadrant = m.iop("add", quarter, m.iop("and", half, 1))
    rest = w.pure(f"shl i128 {turns}, 2")  # signed: the remainder of the quarter after rounding
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
    quadrant = m.x.select(m.int, negative, m.iop("sub", m.iconst(0), quadrant), quadrant)
    r = w.pure(f"select i1 {negative}, double {w.pure(f'fneg double {r}')}, double {r}")
    return quadrant, r if double else w.pure(f"fptrunc double {r} to float")


def _far(name: str) -> Callable[[Floats, str], str]:
    def body(m: Floats, x: str) -> str:
        finite = m.cmp("olt", m.abs(x), m.const(math.inf))
        return m.select(finite, turned(m, name, *_reduced(m, x)), m.const(math.nan))

    return body


function("far_sin", float32, float64)(_far("sin"))
function("far_cos", float32, float64)(_far("cos"))
function("far_tan", float64)(_far("tan"))


# --- remainder -----------------------------------------------------------------------------------------------------
@function("fmod", float64)
def _fmod(m: Floats, x: str, y: str) -> str:
    """Return the exact remainder of the magnitudes. Each step subtracts a multiple of y times a power of two, for 50
    bits of the quotient. A quotient that rounded up leaves a negative remainder, which one more divisor corrects."""
    w, zero = scalar(m).w, m.const(0.0)
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
    half = m.iop("lshr", gap, 1)  # a single power of two could overflow
    divisor = m.mul(m.mul(ay, m.power_of_two(half)), m.power_of_two(m.iop("sub", gap, half)))
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


def _fmod_by_fp64(m: Floats, x: str, y: str) -> str:
    wide = [m.x.convert("fpext", "float", v, "double") for v in (x, y)]
    return m.x.convert("fptrunc", "double", Floats(m.x, float64).math("fmod", *wide), "float")


def _divided(m: Floats, a: str, inverse: str) -> tuple[str, str]:
    """Return the whole number nearest to a times an inverse, off by 5/8 below 2^20, and as the low bits of the
    first. The sum with `shifter` rounds: an instruction that rounds takes a quarter of the lanes at a time."""
    shifted = m.fma(a, inverse, m.shifter())
    return shifted, m.sub(shifted, m.shifter())


def _rest(m: Floats, a: str, b: str, whole: str) -> str:
    return m.fma(m.neg(whole), b, a)


def _never_negative(m: Floats, rest: str, b: str) -> str:
    return m.select(m.below(rest, 0.0), m.add(rest, b), rest)


@function("far_fmod", float32)
def _any_fmod32(m: Floats, x: str, y: str) -> str:
    """For quotients below 2^40 in two steps, of 20 bits each, whose rests are exact: less than a divisor in size, and
    multiples of its last place."""
    a, b = m.abs(x), m.abs(y)
    inverse = m.reciprocal(b)
    quotient = m.mul(a, inverse)
    first = m.call("rint", m.mul(quotient, m.const(2.0**-20)))
    rest = _rest(m, a, m.mul(b, m.const(2.0**20)), first)
    rest = _never_negative(m, _rest(m, rest, b, m.call("rint", m.mul(rest, inverse))), b)
    far = m.cmp("uge", quotient, m.const(2.0**40))  # and where the divisor is 0 or subnormal
    far = m.either(far, m.cmp("uge", b, m.const(2.0**100)))
    return m.x.rarely(m.t, far, m.sign_of(rest, x), lambda: _fmod_by_fp64(m, x, y))


def _near(k: Floats, x: str, y: str) -> tuple[str, str, str, str]:
    """Return (shifted, rest, divisor, far) of the magnitudes: with the nearest whole quotient, at most one off, the
    rest is exact: three quarters of a divisor in size."""
    a, b = k.abs(x), k.abs(y)
    shifted, whole = _divided(k, a, k.reciprocal(b))
    far = k.cmp("uge", whole, k.const(2.0**20))  # and where the divisor is 0 or subnormal
    far = k.either(far, k.cmp("uge", b, k.const(2.0**126)))
    return shifted, _rest(k, a, b, whole), b, far


@function("fmod", float32)
def _fmod32(m: Floats, x: str, y: str) -> str:
    def near(inner: ElementBuilder, arguments: list[str]) -> tuple[str, str]:
        k = Floats(inner, m.t)
        _, rest, b, far = _near(k, *arguments)
        return k.sign_of(_never_negative(k, rest, b), arguments[0]), far

    return m.x.beyond("fmod", m.t, [x, y], near)


@function("remainder", float32)
def _remainder32(m: Floats, x: str, y: str) -> str:
    """Twice the rest beside the divisor tells whether the other neighbour is nearer. Bits of positive floats are in
    order: the quotient's lowest one, added, takes it at a tie, too, where this one is odd."""

    def near(inner: ElementBuilder, arguments: list[str]) -> tuple[str, str]:
        k = Floats(inner, m.t)
        shifted, rest, b, far = _near(k, *arguments)
        size = k.abs(rest)
        double = k.iop("add", k.bits(k.add(size, size)), k.iop("and", k.bits(shifted), 1))
        other = inner.cmp("icmp ugt", k.int, double, k.bits(b))
        rest = k.select(other, k.sub(rest, k.sign_of(b, rest)), rest)
        return turned_sign(k, rest, arguments[0]), far

    return m.x.beyond("remainder", m.t, [x, y], near)


@function("far_remainder", float32)
def _any_remainder32(m: Floats, x: str, y: str) -> str:
    wide = [m.x.convert("fpext", "float", v, "double") for v in (x, y)]
    return m.x.convert("fptrunc", "double", Floats(m.x, float64).math("remainder", *wide), "float")
