"""Applies the shared rows (elements/arith.py) to each register, and adds the GPU's own: sums that keep constants
separate for addresses, pairs of 16-bit floats, fast division (casts: casts.py, math: mathlib.py)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from tessera.backends.elements.arith import TABLE, is_float, wide_product
from tessera.backends.elements.arith import Lowering as Element
from tessera.backends.elements.casts import narrow, widen
from tessera.backends.gpu.differences import compare_difference, shares_difference
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.scalar import Scalar
from tessera.backends.gpu.types import literal, llvm_type
from tessera.backends.gpu.writer import is_number, split
from tessera.dtypes import bfloat16, dtype, float16, float32, int1, int64
from tessera.ir import ElementType, Op, Value, elem_of
from tessera.ir.applications import apply
from tessera.ops import arith
from tessera.passes.neutral.fold import constant_of


def elementwise(*classes: type[Op]) -> Callable[[Element], Element]:
    """Register `fn(x, op, elem, *names) -> name` for one element; `elem` is the type of the first operand."""

    def register(fn: Element) -> Element:
        def lower(fl: FunctionLowering, op: Op) -> None:
            map_registers(fl, op, fn)

        lowers(*classes)(lower)
        return fn

    return register


def map_registers(fl: FunctionLowering, op: Op, fn: Element, equal: int = 0) -> None:
    """Apply `fn` to each register, once for equal operands; a list of one value stands for all registers. Registers
    whose numbers differ only in bits of `equal` are known to get equal results."""
    rows = register_rows(fl, op)
    count = len(rows[0])
    if equal and count > 1:
        rows = [[names[i & ~equal] for i in range(count)] for names in rows]
    elem, x = elem_of(op.operands[0].type), fl.scalars
    done: dict[tuple[str, ...], str] = {}
    result: list[str] = []
    for names in zip(*rows):
        found = done.get(names)
        if found is None:
            found = done[names] = fn(x, op, elem, *names)
        result.append(found)
    fl.set(op.results[0], result)


def register_rows(fl: FunctionLowering, op: Op) -> list[list[str]]:
    """Return the registers of each operand, equally many of all."""
    lists = [fl.get(v) for v in op.operands]
    count = max([len(names) for names in lists])
    return [names if len(names) == count else names * count for names in lists]


for _cls, _row in TABLE.items():
    elementwise(_cls)(_row)


@elementwise(arith.DirectedOp)
def _directed(x: Scalar, op: arith.DirectedOp, elem: dtype, *names: str) -> str:
    found = x.own(f"{op.function}_{op.direction}", elem, *names)
    assert found is not None, "the front end asks for it where the target has it"
    return found


# --- constants ---------------------------------------------------------------------------------------------
@lowers(arith.ConstOp)
def _const(fl: FunctionLowering, op: arith.ConstOp) -> None:
    t = op.result.type
    count = t.layout.size("register") if getattr(t, "layout", None) is not None else 1
    fl.set(op.result, [literal(elem_of(t), op.value)] * count)


# --- integers and floats --------------------------------------------------------------------------------------
PAIRED = (float16, bfloat16)


@lowers(arith.AddOp, arith.SubOp, arith.MulOp)
def _sum(fl: FunctionLowering, op: Any) -> None:
    elem = elem_of(op.lhs.type)
    if elem in PAIRED and max(len(fl.get(op.lhs)), len(fl.get(op.rhs))) % 2 == 0:
        _paired(fl, op)
        return
    integers = not is_float(elem) and elem is not int1
    map_registers(fl, op, _int_sum if integers else TABLE[type(op)])


def _int_sum(x: Scalar, op: Op, elem: ElementType, a: str, b: str) -> str:
    w, t = x.w, llvm_type(elem)
    if op.opcode == "add":
        return w.add(t, a, b)
    if op.opcode == "mul":
        if _has_high_half(op, elem):
            return w.pure(f"trunc i64 {wide_product(x, elem, a, b)} to {t}")
        return w.mul(t, a, b)
    if is_number(b):
        return w.add(t, a, str(-int(b)))
    base, constant = split(w.offsets, a)
    if not base:
        return w.pure(f"sub {t} {a}, {b}")
    return w.add_const(t, w.pure(f"sub {t} {base}, {b}"), constant)


def _has_high_half(op: Op, elem: ElementType) -> bool:
    """Whether the high half of this 32-bit product is computed, too: one instruction gives both halves."""
    operands = set(op.operands)
    return elem.bits == 32 and any(
        isinstance(user, arith.MulHiOp) and set(user.operands) == operands
        for v in operands
        if not isinstance(v.op, arith.ConstOp)
        for user in v.users()
    )


def _paired(fl: FunctionLowering, op: Any) -> None:
    """Compute two 16-bit floats in one instruction, for neighbouring registers."""
    w, t, flags = fl.w, llvm_type(elem_of(op.lhs.type)), fl.scalars.flags
    left, right = fl.get(op.lhs), fl.get(op.rhs)
    count = max(len(left), len(right))
    left, right = (x if len(x) == count else x * count for x in (left, right))
    how = f"f{op.opcode} {flags} <2 x {t}>" if flags else f"f{op.opcode} <2 x {t}>"
    result: list[str] = []
    for i in range(0, len(left), 2):
        a, b = w.pair(t, left[i], left[i + 1]), w.pair(t, right[i], right[i + 1])
        result += w.unpair(t, w.pure(f"{how} {a}, {b}"))
    fl.set(op.result, result)


@elementwise(arith.ShlOp)
def _shl(x: Scalar, op: Op, elem: ElementType, a: str, b: str) -> str:
    if is_number(b) and 0 <= int(b) < elem.bits:
        return x.w.mul(llvm_type(elem), a, str(1 << int(b)))
    return TABLE[arith.ShlOp](x, op, elem, a, b)


def most_of(x: Scalar, a: str, elem: ElementType) -> int | None:
    """The largest value of a register that is never negative; None where that is not known, or the sum wraps."""
    base, constant = split(x.w.offsets, a)
    most = x.w.limits.get(base)
    if most is None or constant < 0 or not isinstance(elem, dtype):
        return None
    return most + constant if most + constant < 1 << (elem.bits - 1) else None


def to_float32(x: Scalar, elem: Any, text: str) -> str:
    return text if elem is float32 else widen(x, text, elem)


def from_float32(x: Scalar, elem: Any, text: str) -> str:
    return text if elem is float32 else narrow(x, text, elem)


def _and(x: Scalar, op: Op, elem: ElementType, a: str, b: str) -> str:
    return x.w.and_(llvm_type(elem), a, b)


@lowers(arith.AndOp)
def _and_bounds(fl: FunctionLowering, op: arith.AndOp) -> None:
    """`0 <= x and x < c` is one unsigned comparison, and false in registers that hold no number between: of each eight
    neighbours, two may be 1 or 2. What is known of a register stays known."""
    tested = _within(fl, op.lhs.op, op.rhs.op) or _within(fl, op.rhs.op, op.lhs.op)
    map_registers(fl, op, _and)
    if tested is None:
        return
    value, first, end = tested
    t, equal = llvm_type(elem_of(value.type)), constant_bits(fl, op.result)
    names, found, (step, rests) = fl.get(value), list(fl.get(op.result)), _residues(fl, value)
    for i, known in enumerate(found):
        name = names[i & ~equal] if len(names) > 1 else names[0]
        if known in ("true", "false"):
            continue
        if first + (rests[i % len(rests)] - first) % step >= end and apply("known-registers", op):
            found[i] = "false"
        elif first == 0:
            found[i] = fl.w.pure(f"icmp ult {t} {name}, {end}")
            fl.w.below[found[i]] = (t, name, end)
    fl.set(op.result, found)


def _within(fl: FunctionLowering, low: Op | None, high: Op | None) -> tuple[Value, int, int] | None:
    """Return (x, a, c) if the comparisons are x >= a and x < c, for numbers that are not negative."""
    if not isinstance(low, arith.CmpOp) or not isinstance(high, arith.CmpOp):
        return None
    e = elem_of(low.lhs.type)
    if low.lhs is not high.lhs or not isinstance(e, dtype) or not e.is_int() or not e.signed:
        return None
    first, last = (_common(fl.get(v.rhs)) for v in (low, high))
    if first is None or last is None or not is_number(first) or not is_number(last):
        return None
    begin, end = int(first) + (low.predicate == "gt"), int(last) + (high.predicate == "le")
    fits = low.predicate in ("ge", "gt") and high.predicate in ("lt", "le") and begin >= 0
    return (low.lhs, begin, end) if fits and 0 <= end < 1 << (e.bits - 1) else None


def _residues(fl: FunctionLowering, v: Value) -> tuple[int, list[int]]:
    """Return a number, and what is left of each register's integers when they are divided by it: runs begin at its
    multiples, and all threads have the same places in them."""
    layout, facts, best = getattr(v.type, "layout", None), fl.axis.facts(v), (1, [0])
    if layout is None:
        return best
    for d, run in enumerate(facts.contiguity):
        threads = [b[d] for dim in layout.in_dims if dim != "register" for b in layout.bases(dim)]
        step, rests = gcd(run, facts.divisibility[d], *threads), [0]
        for base in layout.bases("register"):
            rests += [(r ^ base[d]) % step for r in rests]
        best = max(best, (step, rests))
    return best


def _common(names: Sequence[str]) -> str | None:
    """What all registers of a tile are; None if they differ, as in a range of which a thread holds several numbers."""
    return names[0] if len(set(names)) == 1 else None


@elementwise(arith.NegOp)
def _neg(x: Scalar, op: Op, elem: ElementType, a: str) -> str:
    if is_float(elem) and elem.bits == 16:
        t = llvm_type(elem)
        if flipped := x.target.math(x.w, "flip_sign", "i16", [x.convert("bitcast", t, a, "i16")]):
            return x.convert("bitcast", "i16", flipped, t)
    return TABLE[arith.NegOp](x, op, elem, a)


@elementwise(arith.AbsOp)
def _abs(x: Scalar, op: Op, elem: ElementType, a: str) -> str:
    w, t = x.w, llvm_type(elem)
    if is_float(elem) and elem.bits == 16:
        bits = x.convert("bitcast", t, a, "i16")  # for ptxas' sake, as the sign above
        return x.convert("bitcast", "i16", x.op("and", "i16", bits, "32767"), t)
    if is_float(elem) or not elem.signed:
        return TABLE[arith.AbsOp](x, op, elem, a)
    # ptxas assumes that the result of its instruction is non-negative, but that of the least number is not.
    negative = w.pure(f"ashr {t} {a}, {elem.bits - 1}")
    flipped = w.pure(f"xor {t} {a}, {negative}")
    return w.add(t, flipped, w.pure(f"lshr {t} {a}, {elem.bits - 1}"))


ORDERS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


# --- choices -------------------------------------------------------------------------------------------------
@lowers(arith.CmpOp)
def _compare(fl: FunctionLowering, op: arith.CmpOp) -> None:
    if shares_difference(fl, op) and apply("compare-differences", op):
        compare_difference(fl, op)
    else:
        map_registers(fl, op, _compared, constant_bits(fl, op.result))


def _compared(x: Scalar, op: arith.CmpOp, elem: ElementType, a: str, b: str) -> str:
    """Compare; the result is constant if all threads' elements of a register are on one side of a number, as in a tile
    of 1,024 beyond the end of a row of 768, or of another register's, as off the diagonal of a triangular mask. Nothing
    is then loaded, computed or stored for them."""
    if op.predicate in ORDERS and not is_float(elem):
        ends = [_ends(x, v, elem) for v in (a, b)]
        if ends[0] and ends[1]:
            (base, first), (other, second) = (split(x.w.offsets, v) for v in (a, b))
            if base == other:  # both are the base and their own number more
                ends = [(first,), (second,)]
            found = {ORDERS[op.predicate](m, n) for m in ends[0] for n in ends[1]}
            if len(found) == 1 and apply("known-registers", op):
                return "true" if found.pop() else "false"
    return TABLE[arith.CmpOp](x, op, elem, a, b)


def _ends(x: Scalar, a: str, elem: ElementType) -> tuple[int, ...]:
    """Return the least and the largest value of a register that is never negative; nothing where that is not known."""
    if is_number(a):
        return (int(a),) if int(a) >= 0 else ()
    most = most_of(x, a, elem)
    return () if most is None else (split(x.w.offsets, a)[1], most)


@elementwise(arith.SelectOp)
def _select(x: Scalar, op: arith.SelectOp, elem: ElementType, c: str, a: str, b: str) -> str:
    """`x + n if x < 0 else x` in 64 bits adds what the sign's bits leave of n: there are no selects of halves."""
    test, t, fixed = op.condition.op, elem_of(op.result.type), c in ("true", "false")
    if fixed or t is not int64 or not isinstance(test, arith.CmpOp) or test.lhs is not op.on_false:
        return TABLE[arith.SelectOp](x, op, elem, c, a, b)
    (base, more), (other, less) = split(x.w.offsets, a), split(x.w.offsets, b)
    if test.predicate != "lt" or constant_of(test.rhs) != 0 or base != other or not base:
        return TABLE[arith.SelectOp](x, op, elem, c, a, b)
    sign = x.w.pure(f"ashr i64 {b}, 63")
    return x.w.add("i64", b, x.w.pure(f"and i64 {sign}, {more - less}"))


def constant_bits(fl: FunctionLowering, v: Value) -> int:
    """Return bits of register numbers that move within runs of equal elements, as in masks before a row's end."""
    layout = getattr(v.type, "layout", None)
    if layout is None:
        return 0
    runs, bases = fl.axis.facts(v).constancy, layout.bases("register")
    within = [all(c < run for c, run in zip(base, runs)) for base in bases]
    return sum(1 << i for i, fits in enumerate(within) if fits)


@lowers(arith.HintOp)
def _hint(fl: FunctionLowering, op: arith.HintOp) -> None:
    fl.set(op.result, fl.get(op.x))
