"""Lowers element-wise ops on vectors: one function for each op class, from operand texts to the result's text.

Small floats are widened to fp32, computed and rounded after every op, as the language says. Integer division never
traps: by zero it gives zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.backends.cpu.casts import Lanes, bitcast, cast, constant, is_small_float, narrow, widen
from tessera.backends.cpu.libm import libm
from tessera.backends.cpu.llvm_text import lane_type
from tessera.backends.cpu.math import math
from tessera.backends.cpu.power import pow32
from tessera.backends.cpu.quotients import atan2, fmod
from tessera.dtypes import dtype, float32, int1, int32
from tessera.ir import Op, Type, elem_of
from tessera.ops import MATH_OPS, arith

Lowering = Callable[..., str]
TABLE: dict[type[Op], Lowering] = {}


def lowers(*classes: type[Op]) -> Callable[[Lowering], Lowering]:
    """Register fn(lanes, op, element type of the first operand, *texts) → text."""

    def register(fn: Lowering) -> Lowering:
        for c in classes:
            TABLE[c] = fn
        return fn

    return register


def lower(x: Lanes, op: Op, texts: list[str]) -> str:
    """The result of an element-wise op on `x.n` lanes."""
    t = elem_of(op.operands[0].type)
    if is_small_float(t) and type(op) in _THROUGH_FP32:
        wide = [widen(x, s, t) for s in texts]
        result = TABLE[type(op)](x, op, float32, *wide)
        return narrow(x, result, t) if elem_of(op.results[0].type) == t else result
    return TABLE[type(op)](x, op, t, *texts)


def _is_float(t: Type) -> bool:
    return isinstance(t, dtype) and t.is_floating()


def _ty(t: Type) -> str:
    return lane_type(t, 1)


def _binary(float_name: str, int_name: str, bool_name: str) -> Lowering:
    def fn(x: Lanes, op: Op, t: Type, a: str, b: str) -> str:
        if _is_float(t):
            return x.op(f"{float_name} {x.em.flags}".strip(), _ty(t), a, b)
        return x.op(bool_name if t is int1 else int_name, _ty(t), a, b)

    return fn


TABLE[arith.AddOp] = _binary("fadd", "add", "xor")
TABLE[arith.SubOp] = _binary("fsub", "sub", "xor")
TABLE[arith.MulOp] = _binary("fmul", "mul", "and")
TABLE[arith.AndOp] = _binary("and", "and", "and")
TABLE[arith.OrOp] = _binary("or", "or", "or")
TABLE[arith.XorOp] = _binary("xor", "xor", "xor")


@lowers(arith.DivOp)
def _div(x: Lanes, op: Op, t: Any, a: str, b: str) -> str:
    return x.op("fdiv", _ty(t), a, b) if _is_float(t) else quotient(x, t, a, b)


# Four bits for each class of the product: quiet NaN, signalling NaN, zero, one, -infinity, infinity, negative,
# positive, the first lowest. 1: the product is the quotient; 0: the corrected one is.
PRODUCT_AT_EDGES = 0x110101


def divide_by_one(x: Lanes, a: str, b: str) -> str:
    """fp32 lanes by one number, rounded as a division is: a product with its reciprocal and a correction (Markstein).

    Where the reciprocal would leave the normal numbers both are scaled first; infinities, which the correction turns
    into NaN, are taken from the product.
    """
    one, e = Lanes(x.em, x.facts, 1), "float"
    size = one.call("fabs", e, b)
    tiny = one.cmp("fcmp olt", e, size, one.f32(2.0**-126))
    huge = one.cmp("fcmp ogt", e, size, one.f32(2.0**126))
    scale = one.select(e, huge, one.f32(2.0**-64), one.f32(1.0))
    scale = one.select(e, tiny, one.f32(2.0**64), scale)
    b = one.op("fmul", e, b, scale)
    inverse = x.em.splat(e, one.op("fdiv", e, one.f32(1.0), b), x.n)
    a = x.op("fmul", e, a, x.em.splat(e, scale, x.n))
    first = x.op("fmul", e, a, inverse)
    rest = x.call(
        "fma", e, x.em.op(f"fneg {lane_type(float32, x.n)} {first}"), x.em.splat(e, b, x.n), a
    )
    better = x.call("fma", e, rest, inverse, first)
    if x.has_edges:
        ty, ints = lane_type(float32, x.n), f"<{x.n} x i32>"
        table = f"{ints} splat (i32 {PRODUCT_AT_EDGES})"
        return x.masked("fixupimm", f"{ty} {better}", f"{ty} {first}", table, "i32 0")
    return x.select(e, x.cmp("fcmp uno", e, better, better), first, better)


@lowers(arith.RemOp)
def _rem(x: Lanes, op: Op, t: Any, a: str, b: str) -> str:
    if _is_float(t):
        return fmod(x, a, b) if t is float32 else libm(x, "fmod", t, a, b)
    if t is int1:
        return constant(int1, 0, x.n)
    if _nonzero_literal(b):
        return x.op("srem" if t.signed else "urem", _ty(t), a, b)
    return x.op("sub", _ty(t), a, x.op("mul", _ty(t), quotient(x, t, a, b), b))


def _nonzero_literal(text: str) -> bool:
    number = text.removeprefix("splat (").rstrip(")").split(" ")[-1]
    return number.isdigit() and number != "0"


def quotient(x: Lanes, t: dtype, a: str, b: str) -> str:
    """Integer quotient toward zero; 0 where b is 0, and no trap for the smallest number over -1."""
    if t is int1:
        return x.op("and", "i1", a, b)
    e = _ty(t)
    if _nonzero_literal(b):
        return x.op("sdiv" if t.signed else "udiv", e, a, b)
    zero = x.int(e, 0)
    is_zero = x.cmp("icmp eq", e, b, zero)
    if x.n > 1 and t.bits <= 32:
        # Exact in fp64, and far faster than one division a lane.
        name, back = ("sitofp", "fptosi") if t.signed else ("uitofp", "fptoui")
        safe = x.select(e, is_zero, x.int(e, 1), b)
        q = x.op(
            "fdiv", "double", x.convert(name, e, a, "double"), x.convert(name, e, safe, "double")
        )
        whole = x.convert(
            "trunc", "i64", x.convert("fptosi" if t.bits == 32 else back, "double", q, "i64"), e
        )
        return x.select(e, is_zero, zero, whole)
    unsafe, minus = is_zero, ""
    if t.signed:
        minus = x.cmp("icmp eq", e, b, x.int(e, -1))
        unsafe = x.op("or", "i1", is_zero, minus)
    safe = x.select(e, unsafe, x.int(e, 1), b)
    q = x.select(e, is_zero, zero, x.op("sdiv" if t.signed else "udiv", e, a, safe))
    return x.select(e, minus, x.op("sub", e, zero, a), q) if t.signed else q


def _shift(left: bool) -> Lowering:
    def fn(x: Lanes, op: Op, t: Any, a: str, b: str) -> str:
        e = _ty(t)
        name = "shl" if left else ("ashr" if t.signed else "lshr")
        if _nonzero_literal(b) and int(b.rstrip(")").split(" ")[-1]) < t.bits:
            return x.op(name, e, a, b)
        fits = x.cmp("icmp ult", e, b, x.int(e, t.bits))
        if name == "ashr":
            return x.op(name, e, a, x.select(e, fits, b, x.int(e, t.bits - 1)))
        return x.select(e, fits, x.op(name, e, a, x.select(e, fits, b, x.int(e, 0))), x.int(e, 0))

    return fn


TABLE[arith.ShlOp] = _shift(True)
TABLE[arith.ShrOp] = _shift(False)


def _extremum(word: str) -> Lowering:
    def fn(x: Lanes, op: Any, t: Any, a: str, b: str) -> str:
        if t is float32 and x.has_edges and not op.propagate_nan:
            ty, kind = lane_type(t, x.n), 4 if word == "min" else 5  # 4: the sign is the result's
            return x.masked(
                "range", f"{ty} {a}", f"{ty} {b}", f"i32 {kind}", f"{ty} zeroinitializer"
            )
        if _is_float(t):
            return x.call(f"{word}imum" if op.propagate_nan else f"{word}num", _ty(t), a, b)
        return x.call(f"{'s' if t.signed else 'u'}{word}", _ty(t), a, b)

    return fn


TABLE[arith.MinOp] = _extremum("min")
TABLE[arith.MaxOp] = _extremum("max")


@lowers(arith.MulHiOp)
def _mulhi(x: Lanes, op: Op, t: Any, a: str, b: str) -> str:
    e, wide = _ty(t), f"i{2 * t.bits}"
    grow = "sext" if t.signed else "zext"
    product = x.op("mul", wide, x.convert(grow, e, a, wide), x.convert(grow, e, b, wide))
    return x.convert("trunc", wide, x.op("lshr", wide, product, x.int(wide, t.bits)), e)


@lowers(arith.PowOp)
def _pow(x: Lanes, op: Op, t: Any, a: str, b: str) -> str:
    return pow32(x, a, b) if t is float32 else libm(x, "pow", t, a, b)


@lowers(arith.Atan2Op)
def _atan2(x: Lanes, op: Op, t: Any, a: str, b: str) -> str:
    return atan2(x, a, b) if t is float32 else libm(x, "atan2", t, a, b)


@lowers(arith.CopySignOp)
def _copysign(x: Lanes, op: Op, t: Type, a: str, b: str) -> str:
    return x.call("copysign", _ty(t), a, b)


FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


@lowers(arith.CmpOp)
def _cmp(x: Lanes, op: Any, t: Any, a: str, b: str) -> str:
    p = op.predicate
    if _is_float(t):
        return x.cmp(f"fcmp {FLOAT_PREDICATES[p]}", _ty(t), a, b)
    if p not in ("eq", "ne"):
        p = ("s" if isinstance(t, dtype) and t.signed else "u") + p
    return x.cmp(f"icmp {p}", _ty(t), a, b)


@lowers(arith.SelectOp)
def _select(x: Lanes, op: Op, t: Type, c: str, a: str, b: str) -> str:
    return x.select(_ty(elem_of(op.results[0].type)), c, a, b)


@lowers(arith.FmaOp)
def _fma(x: Lanes, op: Op, t: Type, a: str, b: str, c: str) -> str:
    return x.call("fma", _ty(t), a, b, c)


@lowers(arith.NegOp)
def _neg(x: Lanes, op: Op, t: Any, a: str) -> str:
    if is_small_float(t):
        return x.op("xor", _ty(t), a, x.int(_ty(t), 1 << (t.bits - 1)))
    if _is_float(t):
        return x.op("fneg", _ty(t), a)
    return a if t is int1 else x.op("sub", _ty(t), x.int(_ty(t), 0), a)


@lowers(arith.AbsOp)
def _abs(x: Lanes, op: Op, t: Any, a: str) -> str:
    if is_small_float(t):
        return x.op("and", _ty(t), a, x.int(_ty(t), (1 << (t.bits - 1)) - 1))
    if _is_float(t):
        return x.call("fabs", _ty(t), a)
    if not t.signed:
        return a
    ty = lane_type(t, x.n)
    return x.em.call(ty, f"llvm.abs.{x.suffix(_ty(t))}", f"{ty} {a}", "i1 false")


@lowers(*MATH_OPS.values())
def _math(x: Lanes, op: Op, t: Any, a: str) -> str:
    return math(x, op.opcode, a, t)


@lowers(arith.IsNanOp)
def _isnan(x: Lanes, op: Op, t: Type, a: str) -> str:
    return x.cmp("fcmp uno", _ty(t), a, a)


@lowers(arith.PopcOp)
def _popc(x: Lanes, op: Op, t: Type, a: str) -> str:
    return _count(x, t, x.call("ctpop", _ty(t), a))


@lowers(arith.ClzOp)
def _clz(x: Lanes, op: Op, t: Type, a: str) -> str:
    return _count(x, t, x.call("ctlz", _ty(t), a, extra=("i1 false",)))


def _count(x: Lanes, t: Any, text: str) -> str:
    return x.convert("zext" if t.bits < 32 else "trunc", _ty(t), text, _ty(int32))


@lowers(arith.CastOp)
def _cast(x: Lanes, op: Any, t: Any, a: str) -> str:
    return cast(x, a, t, elem_of(op.result.type), op.rounding)


@lowers(arith.BitcastOp)
def _bitcast(x: Lanes, op: Op, t: Type, a: str) -> str:
    return bitcast(x, a, t, elem_of(op.results[0].type))


@lowers(arith.HintOp)
def _hint(x: Lanes, op: Op, t: Type, a: str) -> str:
    return a


_EXACT_BITS = (
    arith.NegOp,
    arith.AbsOp,
    arith.CastOp,
    arith.BitcastOp,
    arith.HintOp,
    arith.SelectOp,
)
_THROUGH_FP32 = {c for c in TABLE if c not in _EXACT_BITS}
