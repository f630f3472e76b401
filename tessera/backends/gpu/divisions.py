"""Divides: indices without a guard, 64-bit ones of a thread together, floats by the target's fast instructions."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.analysis.provenance import BOUNDS, incoming
from tessera.backends.elements.arith import TABLE, is_float
from tessera.backends.elements.literals import number_in
from tessera.backends.gpu.elementwise import (
    constant_bits,
    from_float32,
    map_registers,
    most_of,
    register_rows,
    to_float32,
)  # fmt: skip
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.scalar import Scalar
from tessera.backends.gpu.types import llvm_type
from tessera.backends.gpu.writer import is_number
from tessera.dtypes import bfloat16, float16, float32, int1
from tessera.ir import Effect, ElementType, Op, Value, elem_of
from tessera.ir.applications import apply
from tessera.ops import arith, control

SHARED_DIVISOR = 4  # elements for each divisor, from which on its reciprocal is taken once
WORD = 1 << 32  # numbers of 32 bits
Key = tuple[str, str, str]


@lowers(arith.DivOp)
def _divide(fl: FunctionLowering, op: arith.DivOp) -> None:
    # Division is expensive, and what follows from equal quotients is then also computed only once.
    divisors, count = fl.get(op.rhs), max(len(fl.get(op.lhs)), len(fl.get(op.rhs)))
    elem = elem_of(op.lhs.type)
    if _divide_jointly(fl, op, elem):
        return
    fast = elem in (float16, bfloat16, float32) and not op.exact
    shared = fast and count >= SHARED_DIVISOR * len(set(divisors)) and not is_number(divisors[0])
    row = _div_by_few if shared else _div_fast if fast else TABLE[arith.DivOp]
    if not is_float(elem) and _is_index(op.rhs):
        row = _index_quotient
    map_registers(fl, op, row, constant_bits(fl, op.result))


@lowers(arith.RemOp)
def _rem(fl: FunctionLowering, op: arith.RemOp) -> None:
    elem = elem_of(op.lhs.type)
    if _divide_jointly(fl, op, elem):
        return
    plain = is_float(elem) or not _is_index(op.rhs)
    map_registers(fl, op, TABLE[arith.RemOp] if plain else _index_quotient)


def _is_index(v: Value) -> bool:
    """Whether a number is computed only from arguments, program ids, ranges and constants, not from memory."""
    seen: set[Value] = set()
    work = [v]
    while work:
        v = work.pop()
        if v in seen:
            continue
        seen.add(v)
        sources: Sequence[Value] = incoming(v)
        owner = v.owner if isinstance(v.owner, Op) else v.owner.parent
        if sources:
            pass
        elif isinstance(v.owner, Op):
            if v.owner.effects & Effect.READ:
                return False
            sources = v.owner.operands
        elif isinstance(owner, control.ForOp):
            sources = owner.operands[:BOUNDS]
        elif not isinstance(owner, control.FuncOp) or not owner.kernel:
            return False
        work += sources
    return True


def _index_quotient(x: Scalar, op: Op, elem: ElementType, a: str, b: str) -> str:
    """Divide without a guard: a divisor made of arguments and indices is assumed to be positive (analysis/sign.py).
    A dividend of which it is known that it is not negative takes an unsigned division, whose product by the divisor's
    reciprocal needs no correction."""
    bounded = elem is not int1 and elem.signed and is_number(b) and int(b) > 0
    most = most_of(x, a, elem) if bounded else None
    if most is not None:
        found = x.op(f"u{op.opcode}", llvm_type(elem), a, b)
        x.w.limits[found] = most // int(b) if op.opcode == "div" else min(most, int(b) - 1)
        return found
    if elem is int1 or number_in(b) is not None:
        return TABLE[type(op)](x, op, elem, a, b)
    return x.op(f"{'s' if elem.signed else 'u'}{op.opcode}", llvm_type(elem), a, b)


def _div_fast(x: Scalar, op: Op, elem: ElementType, a: str, b: str) -> str:
    wide = [to_float32(x, elem, v) for v in (a, b)]
    return from_float32(x, elem, x.own("div", float32, *wide) or x.op("fdiv", "float", *wide))


def _div_by_few(x: Scalar, op: Op, elem: ElementType, a: str, b: str) -> str:
    """Divide like the fast division of all floats, but compute once what depends on the divisor alone: its
    reciprocal, and the power of two that keeps both in range."""
    e = "float"
    a, b = (to_float32(x, elem, v) for v in (a, b))
    size = x.call("fabs", e, b)
    tiny = x.cmp("fcmp olt", e, size, x.f32(2.0**-126))
    huge = x.cmp("fcmp ogt", e, size, x.f32(2.0**126))
    scale = x.select(e, tiny, x.f32(2.0**24), x.f32(1.0))
    scale = x.select(e, huge, x.f32(0.25), scale)
    scaled = x.op("fmul", e, b, scale)
    inverse = x.own("rcp", float32, scaled) or x.op("fdiv", e, x.f32(1.0), scaled)
    scaled = x.op("fmul", e, a, scale)
    return from_float32(x, elem, x.op("fmul", e, scaled, inverse))


# --- 64-bit indices -------------------------------------------------------------------------------------------
def _divide_jointly(fl: FunctionLowering, op: arith.DivOp | arith.RemOp, elem: ElementType) -> bool:
    """Divide 64-bit indices in 32 bits in the threads whose registers all fit, after one test, in 64 bits in others.

    LLVM tests each pair of operands by itself, so that a thread waits for one division after the other. The quotient
    and the remainder of the same operands are computed together, equal quotients once. Return whether it is done."""
    if op in fl.ahead:
        fl.ahead.remove(op)
        return True
    if is_float(elem) or elem.bits < 64 or is_number(fl.get(op.rhs)[0]) or not _is_index(op.rhs):
        return False
    partner = _partner(op)
    div, rem = (op, partner) if isinstance(op, arith.DivOp) else (partner, op)
    numbers, divisors = register_rows(fl, op)
    equal = constant_bits(fl, div.result) if div is not None else 0
    firsts = [numbers[i & ~equal] for i in range(len(numbers))]
    wanted = list(zip(firsts, divisors, numbers if rem is not None else firsts, strict=True))
    if len(set(wanted)) == 1 or not apply("joint-divisions", op):
        return False
    found = _joint(fl, elem.signed, list(dict.fromkeys(wanted)), rem is not None)
    for done, results in zip((div, rem), zip(*(found[key] for key in wanted), strict=True)):
        if done is not None:
            fl.set(done.result, list(results))
    if partner is not None:
        fl.ahead.add(partner)
    return True


def _joint(
    fl: FunctionLowering, signed: bool, wanted: Sequence[Key], rests: bool
) -> dict[Key, tuple[str, str]]:
    """Return the quotient and the remainder of each of `wanted`: (a, the divisor, a number with the quotient of a)."""
    w = fl.w
    near, far, after = (w.label(name) for name in ("near", "far", "divided"))
    bits = ""
    for name in dict.fromkeys(name for key in wanted for name in key):
        bits = w.pure(f"or i64 {bits}, {name}") if bits else name
    w.branch_if(w.pure(f"icmp ult i64 {bits}, {WORD}"), near, far)
    ways: list[list[str]] = []
    for label, width in ((near, "i32"), (far, "i64")):
        with w.scope():
            w.start(label)
            row = [x for key in wanted for x in _divided(fl, signed, width, key, rests)]
            ways.append([w.pure(f"zext i32 {x} to i64") for x in row] if label == near else row)
            w.branch(after)
    w.start(after)
    names = [
        w.emit(f"phi i64 [ {x}, %{near} ], [ {y}, %{far} ]") for x, y in zip(*ways, strict=True)
    ]
    each = 2 if rests else 1
    return {key: (names[each * i], names[each * i + each - 1]) for i, key in enumerate(wanted)}


def _divided(fl: FunctionLowering, signed: bool, width: str, key: Key, rests: bool) -> list[str]:
    """Return the quotient of numbers in `width`, and what is left of the last of them. The target's own instruction
    for 64 bits is one that LLVM does not replace by a test and two divisions."""
    a, b, last = key if width == "i64" else (fl.w.pure(f"trunc i64 {v} to i32") for v in key)
    name = "sdiv" if signed else "udiv"
    found = fl.target.math(fl.w, name, "i64", [a, b]) if width == "i64" else None
    whole = found or fl.w.pure(f"udiv {width} {a}, {b}")
    if not rests:
        return [whole]
    return [whole, fl.w.pure(f"sub {width} {last}, {fl.w.pure(f'mul {width} {whole}, {b}')}")]


def _partner(op: Op) -> Op | None:
    """Return the remainder of the same operands in the block for a quotient, or the other way round."""
    wanted = arith.RemOp if isinstance(op, arith.DivOp) else arith.DivOp
    for user in op.operands[0].users():
        if isinstance(user, wanted) and user.operands == op.operands and user.parent is op.parent:
            return user
    return None
