"""Lowers element-wise ops: one function for each op class, from operand texts to the result's text.

Floats that LLVM does not compute with are widened to fp32, computed there, and rounded after every op, as the language
defines it. No element-wise op traps, and none is undefined: an integer divided by zero gives 0, and the dividend as
remainder; the smallest number divided by -1 wraps around to itself. The amount of a shift is unsigned: the type's width
or more leaves 0, or the sign in every bit. (GPUs omit the guard of quotients whose divisor is computed from arguments
and indices, which is assumed to be positive.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.backends.elements import (
    bessel,
    exponentials,
    inverses,
    power,
    remainders,
    trigonometry,
)
from tessera.backends.elements.builder import ElementBuilder
from tessera.backends.elements.casts import bitcast, cast, narrow, widen
from tessera.backends.elements.floats import evaluate
from tessera.backends.elements.literals import number_in
from tessera.dtypes import dtype, float32, int1
from tessera.ir import ElementType, Op, Type, elem_of
from tessera.ops import MATH_OPS, arith

# Importing them registers their rows.
_FUNCTIONS = (bessel, exponentials, inverses, power, remainders, trigonometry)
# (builder, op, element type of the first operand, *texts) -> text
Lowering = Callable[..., str]
TABLE: dict[type[Op], Lowering] = {}


def lowers(*classes: type[Op]) -> Callable[[Lowering], Lowering]:
    """Register the lowering of these op classes; a back end's own table may have different rows."""

    def register(fn: Lowering) -> Lowering:
        for c in classes:
            TABLE[c] = fn
        return fn

    return register


def lower(table: dict[type[Op], Lowering], x: ElementBuilder, op: Op, texts: list[str]) -> str:
    """Return the result of an element-wise op by its row of `table`."""
    t = elem_of(op.operands[0].type)
    fn = table[type(op)]
    exact = EXACT_BITS + SIGNS if isinstance(t, dtype) and t.bits > 8 else EXACT_BITS
    if is_float(t) and not x.is_native(t) and type(op) not in exact:
        result = fn(x, op, float32, *[widen(x, s, t) for s in texts])
        return narrow(x, result, t) if elem_of(op.results[0].type) == t else result
    return fn(x, op, t, *texts)


def is_float(t: Type) -> bool:
    return isinstance(t, dtype) and t.is_floating()


# --- sums, products, bits -----------------------------------------------------------------------------------
def _binary(float_name: str, int_name: str, bool_name: str) -> Lowering:
    def fn(x: ElementBuilder, op: Op, t: Type, a: str, b: str) -> str:
        if is_float(t):
            return x.op(f"{float_name} {x.flags}".strip(), x.type(t), a, b)
        return x.op(bool_name if t is int1 else int_name, x.type(t), a, b)

    return fn


TABLE[arith.AddOp] = _binary("fadd", "add", "xor")
TABLE[arith.SubOp] = _binary("fsub", "sub", "xor")
TABLE[arith.MulOp] = _binary("fmul", "mul", "and")
TABLE[arith.AndOp] = _binary("and", "and", "and")
TABLE[arith.OrOp] = _binary("or", "or", "or")
TABLE[arith.XorOp] = _binary("xor", "xor", "xor")


@lowers(arith.MulHiOp)
def _mulhi(x: ElementBuilder, op: Op, t: Any, a: str, b: str) -> str:
    wide = f"i{2 * t.bits}"
    high = x.op("lshr", wide, wide_product(x, t, a, b), x.int(wide, t.bits))
    return x.convert("trunc", wide, high, x.type(t))


def wide_product(x: ElementBuilder, t: Any, a: str, b: str) -> str:
    """Return all bits of a product of integers."""
    e, wide, grow = x.type(t), f"i{2 * t.bits}", "sext" if t.signed else "zext"
    return x.op("mul", wide, *(x.convert(grow, e, v, wide) for v in sorted((a, b))))


# --- quotients and shifts ---------------------------------------------------------------------------------
@lowers(arith.DivOp)
def _div(x: ElementBuilder, op: Op, t: Any, a: str, b: str) -> str:
    return x.op("fdiv", x.type(t), a, b) if is_float(t) else quotient(x, t, a, b)


@lowers(arith.RemOp)
def _rem(x: ElementBuilder, op: Op, t: Any, a: str, b: str) -> str:
    """Return C's remainder, with the sign of `a`."""
    if is_float(t):
        return _math(x, "fmod", t, a, b)
    e = x.type(t)
    if t is int1:
        return x.constant(int1, 0)
    if _divides_plainly(t, b):
        return x.op("srem" if t.signed else "urem", e, a, b)
    whole = x.divided(t, a, b)  # any quotient will do where b is 0
    if whole is None and t.bits > 32:
        is_zero, _, safe = _safe_divisor(x, t, b)  # by -1, as by 1, nothing is left
        rest = x.op("srem" if t.signed else "urem", e, a, safe)
        return x.select(e, is_zero, a, rest)
    whole = whole or quotient(x, t, a, b)
    return x.op("sub", e, a, x.op("mul", e, whole, b))


def _divides_plainly(t: dtype, b: str) -> bool:
    """Whether LLVM's own division is defined for every dividend."""
    divisor = number_in(b)
    return divisor is not None and divisor != 0 and (divisor != -1 or not t.signed)


def quotient(x: ElementBuilder, t: dtype, a: str, b: str) -> str:
    """Return the integer quotient, rounded toward zero: 0 where b is 0, and no trap for the smallest number over -1."""
    if t is int1:
        return x.op("and", "i1", a, b)
    e = x.type(t)
    if _divides_plainly(t, b):
        return x.op("sdiv" if t.signed else "udiv", e, a, b)
    if x.n > 1 and t.bits <= 32:
        return _quotient_in_fp64(x, t, a, b)
    zero = x.int(e, 0)
    is_zero = x.cmp("icmp eq", e, b, zero)
    found = x.divided(t, a, b)
    if found is not None:
        return x.select(e, is_zero, zero, found)
    is_zero, minus, safe = _safe_divisor(x, t, b)
    q = x.select(e, is_zero, zero, x.op("sdiv" if t.signed else "udiv", e, a, safe))
    return x.select(e, minus, x.op("sub", e, zero, a), q) if t.signed else q


def _safe_divisor(x: ElementBuilder, t: dtype, b: str) -> tuple[str, str, str]:
    """Return (whether b is 0, whether it is -1, b or 1 instead of these): LLVM's division is not defined for either."""
    e = x.type(t)
    unsafe = is_zero = x.cmp("icmp eq", e, b, x.int(e, 0))
    minus = ""
    if t.signed:
        minus = x.cmp("icmp eq", e, b, x.int(e, -1))
        unsafe = x.op("or", "i1", is_zero, minus)
    return is_zero, minus, x.select(e, unsafe, x.int(e, 1), b)


def _quotient_in_fp64(x: ElementBuilder, t: dtype, a: str, b: str) -> str:
    """Divide in fp64: exact for at most 32 bits, and far faster than one division per lane."""
    e, zero = x.type(t), x.int(x.type(t), 0)
    name, back = ("sitofp", "fptosi") if t.signed else ("uitofp", "fptoui")
    is_zero = x.cmp("icmp eq", e, b, zero)
    safe = x.select(e, is_zero, x.int(e, 1), b)
    wide = (x.convert(name, e, v, "double") for v in (a, safe))
    whole = x.convert("fptosi" if t.bits == 32 else back, "double", x.op("fdiv", "double", *wide), "i64")  # fmt: skip
    return x.select(e, is_zero, zero, x.convert("trunc", "i64", whole, e))


@lowers(arith.ShlOp, arith.ShrOp)
def _shift(x: ElementBuilder, op: Op, t: Any, a: str, b: str) -> str:
    e = x.type(t)
    name = "shl" if op.opcode == "shl" else "ashr" if t.signed else "lshr"
    amount = number_in(b)
    if amount is not None and 0 <= amount < t.bits:
        return x.op(name, e, a, b)
    found = x.shifted(name, t, a, b) if amount is None else None
    if found is not None:
        return found
    fits = x.cmp("icmp ult", e, b, x.int(e, t.bits))
    if name == "ashr":
        return x.op(name, e, a, x.select(e, fits, b, x.int(e, t.bits - 1)))
    return x.select(e, fits, x.op(name, e, a, x.select(e, fits, b, x.int(e, 0))), x.int(e, 0))


# --- choices ------------------------------------------------------------------------------------------------
def _extremum(word: str) -> Lowering:
    def fn(x: ElementBuilder, op: Any, t: Any, a: str, b: str) -> str:
        e = x.type(t)
        if is_float(t):
            return x.call(f"{word}imum" if op.propagate_nan else f"{word}num", e, a, b)
        if t is int1:
            return x.op("and" if word == "min" else "or", e, a, b)
        return x.call(f"{'s' if t.signed else 'u'}{word}", e, a, b)

    return fn


TABLE[arith.MinOp] = _extremum("min")
TABLE[arith.MaxOp] = _extremum("max")
FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


@lowers(arith.CmpOp)
def _cmp(x: ElementBuilder, op: Any, t: Type, a: str, b: str) -> str:
    p = op.predicate
    if is_float(t):
        return x.cmp(f"fcmp {FLOAT_PREDICATES[p]}", x.type(t), a, b)
    if p not in ("eq", "ne"):
        p = ("s" if isinstance(t, dtype) and t.signed else "u") + p
    return x.cmp(f"icmp {p}", x.type(t), a, b)


@lowers(arith.SelectOp)
def _select(x: ElementBuilder, op: Op, t: Type, c: str, a: str, b: str) -> str:
    if c in ("true", "false") or a == b:
        return b if c == "false" else a
    return x.select(x.type(elem_of(op.results[0].type)), c, a, b)


@lowers(arith.IsNanOp)
def _isnan(x: ElementBuilder, op: Op, t: Type, a: str) -> str:
    return x.cmp("fcmp uno", x.type(t), a, a)


# --- one operand, and floats --------------------------------------------------------------------------------
@lowers(arith.CopySignOp)
def _copysign(x: ElementBuilder, op: Op, t: Type, a: str, b: str) -> str:
    return x.call("copysign", x.type(t), a, b)


@lowers(arith.FmaOp)
def _fma(x: ElementBuilder, op: Op, t: Type, a: str, b: str, c: str) -> str:
    return x.call("fma", x.type(t), a, b, c)


@lowers(arith.NegOp)
def _neg(x: ElementBuilder, op: Op, t: Any, a: str) -> str:
    e = x.type(t)
    if is_float(t):
        if x.is_native(t):
            return x.op("fneg", e, a)
        return x.op("xor", e, a, x.int(e, 1 << (t.bits - 1)))
    return a if t is int1 else x.op("sub", e, x.int(e, 0), a)


@lowers(arith.AbsOp)
def _abs(x: ElementBuilder, op: Op, t: Any, a: str) -> str:
    e = x.type(t)
    if is_float(t):
        if x.is_native(t):
            return x.call("fabs", e, a)
        return x.op("and", e, a, x.int(e, (1 << (t.bits - 1)) - 1))
    return x.call("abs", e, a, extra=("i1 false",)) if t.signed else a


@lowers(arith.PopcOp, arith.ClzOp)
def _count(x: ElementBuilder, op: Op, t: Any, a: str) -> str:
    narrow_type, e = x.type(t), f"i{max(t.bits, 32)}"
    a = x.convert("zext", narrow_type, a, e)
    if op.opcode == "popc":
        return x.convert("trunc", e, x.call("ctpop", e, a), "i32")
    count = x.convert("trunc", e, x.call("ctlz", e, a, extra=("i1 false",)), "i32")
    return x.op("sub", "i32", count, x.int("i32", 32 - t.bits)) if t.bits < 32 else count


@lowers(*MATH_OPS.values(), arith.PowOp, arith.Atan2Op, arith.RemainderOp)
def _function(x: ElementBuilder, op: Op, t: Any, *args: str) -> str:
    return _math(x, op.opcode, t, *args)


def _math(x: ElementBuilder, name: str, t: dtype, *args: str) -> str:
    """Return a mathematical function; floats of fewer than 32 bits are computed in fp32 and rounded."""
    if t.bits >= 32:
        return evaluate(x, name, t, *args)
    wide = [widen(x, a, t) for a in args]
    return narrow(x, evaluate(x, name, float32, *wide), t)


@lowers(arith.CastOp)
def _cast(x: ElementBuilder, op: Any, t: Any, a: str) -> str:
    return cast(x, a, t, elem_of(op.result.type), op.rounding)


@lowers(arith.BitcastOp)
def _bitcast(x: ElementBuilder, op: Op, t: ElementType, a: str) -> str:
    return bitcast(x, a, t, elem_of(op.results[0].type))


@lowers(arith.HintOp)
def _hint(x: ElementBuilder, op: Op, t: Type, a: str) -> str:
    return a


# These ops copy the bits of floats that are integers to LLVM, or round only once; and those of signs, but in 8 bits,
# where a sign may be that of a NaN, and infinities saturate.
EXACT_BITS = (arith.CastOp, arith.BitcastOp, arith.HintOp, arith.SelectOp)
SIGNS = (arith.NegOp, arith.AbsOp)
