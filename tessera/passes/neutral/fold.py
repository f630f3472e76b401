"""Folds constants and removes ops without effect, by rules. Each rule's docstring is before → after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.analysis.host_code import MIRRORED
from tessera.dtypes import dtype, int1
from tessera.ir import Block, Op, Rewriter, RuleSet, TileType, Type, Value, elem_of, rule, shape_of
from tessera.ops import arith, tile

FOLD = RuleSet()
SHAPE = RuleSet()


def constant_of(v: Value) -> Any:
    """Return the number that a value holds in every element, or None."""
    op = v.op
    if isinstance(op, arith.ConstOp):
        return op.value
    return constant_of(op.x) if isinstance(op, tile.SplatOp) else None


def is_zero(v: Value) -> bool:
    """Whether a value holds +0 in every element."""
    value = constant_of(v)
    return value is not None and value == 0 and str(value)[0] != "-"


def zero_of(t: Type) -> int | float | bool:
    """Return zero as constants of a type, or of its elements, hold it."""
    e = elem_of(t)
    return 0.0 if e.is_floating() else False if e is int1 else 0


def _is_int(v: Value) -> bool:
    e = elem_of(v.type)
    return isinstance(e, dtype) and e.is_int()


def wrap(value: int, t: dtype) -> int | bool:
    """Return `value` modulo the width of integer type t."""
    if t is int1:
        return bool(value & 1)
    value &= (1 << t.bits) - 1
    return value - (1 << t.bits) if t.signed and value >> (t.bits - 1) else value


def make_const(rw: Rewriter, value: object, t: Type) -> Value:
    return rw.emit(arith.ConstOp(value=value, results=[t]))


def _quotient(a: int, b: int) -> int | None:
    return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int | None:
    q = _quotient(a, b)
    return None if q is None else a - q * b


_INTEGER: dict[type[Op], Callable[[int, int], int | None]] = {
    arith.AddOp: lambda a, b: a + b,
    arith.SubOp: lambda a, b: a - b,
    arith.MulOp: lambda a, b: a * b,
    arith.DivOp: _quotient,
    arith.RemOp: _remainder,
    arith.AndOp: lambda a, b: a & b,
    arith.OrOp: lambda a, b: a | b,
    arith.XorOp: lambda a, b: a ^ b,
    arith.MinOp: min,
    arith.MaxOp: max,
    arith.ShlOp: lambda a, b: a << b if 0 <= b < 64 else None,
    arith.ShrOp: lambda a, b: a >> b if 0 <= b < 64 else None,
}


@rule(FOLD, *_INTEGER)
def fold_integers(op: arith.Binary, rw: Rewriter) -> Value | None:
    """const a ∘ const b  →  const (a ∘ b)"""
    if not _is_int(op.lhs):
        return None
    a, b = constant_of(op.lhs), constant_of(op.rhs)
    if a is None or b is None:
        return None
    value = _INTEGER[type(op)](int(a), int(b))
    return None if value is None else make_const(rw, wrap(value, elem_of(op.lhs.type)), op.lhs.type)


@rule(
    FOLD, arith.AddOp, arith.MulOp, arith.AndOp, arith.OrOp, arith.XorOp, arith.MinOp, arith.MaxOp, arith.CmpOp
)  # fmt: skip
def constant_right(op: arith.Binary | arith.CmpOp, rw: Rewriter) -> Op | Value | None:
    """const ∘ x  →  x ∘ const   (commutative, or a comparison turned; so that other rules look on one side only)"""
    if constant_of(op.lhs) is None or constant_of(op.rhs) is not None:
        return None
    if isinstance(op, arith.CmpOp):
        turned = MIRRORED.get(op.predicate, op.predicate)
        return rw.emit(arith.CmpOp(op.rhs, op.lhs, predicate=turned))
    rw.set_operands(op, op.rhs, op.lhs)
    return op


@rule(FOLD, arith.AddOp, arith.SubOp, arith.OrOp, arith.XorOp, arith.ShlOp, arith.ShrOp)
def zero_right(op: arith.Binary, rw: Rewriter) -> Value | None:
    """x + 0, x - 0, x | 0, x ^ 0, x << 0, x >> 0  →  x   (integers)"""
    return op.lhs if _is_int(op.lhs) and constant_of(op.rhs) == 0 else None


@rule(FOLD, arith.MulOp, arith.DivOp)
def one_right(op: arith.Binary, rw: Rewriter) -> Value | None:
    """x * 1, x / 1  →  x   (exact for floats too)"""
    return op.lhs if constant_of(op.rhs) == 1 and elem_of(op.lhs.type) is not int1 else None


@rule(FOLD, arith.PowOp)
def small_power(op: arith.PowOp, rw: Rewriter) -> Value | None:
    """pow x, 2 → x * x;  pow x, 3 → x * x * x   (no edges: signs, infinities and NaN are those of the product)"""
    n = constant_of(op.rhs)
    if n not in (2, 3):
        return None
    square = rw.emit(arith.MulOp(op.lhs, op.lhs))
    return square if n == 2 else rw.emit(arith.MulOp(square, op.lhs))


@rule(FOLD, arith.MulOp)
def times_zero(op: arith.MulOp, rw: Rewriter) -> Value | None:
    """x * 0  →  0   (integers)"""
    return op.rhs if _is_int(op.lhs) and constant_of(op.rhs) == 0 else None


@rule(FOLD, arith.RemOp)
def remainder_of_one(op: arith.RemOp, rw: Rewriter) -> Value | None:
    """x % 1  →  0   (integers)"""
    return make_const(rw, 0, op.lhs.type) if _is_int(op.lhs) and constant_of(op.rhs) == 1 else None


@rule(FOLD, arith.AndOp, arith.OrOp)
def logic_identity(op: arith.Binary, rw: Rewriter) -> Value | None:
    """x & x, x | x, m & true, m | false → x;  m & false → false, m | true → true"""
    if op.lhs is op.rhs:
        return op.lhs
    c = constant_of(op.rhs)
    if elem_of(op.lhs.type) is not int1 or c is None:
        return None
    return op.lhs if bool(c) == isinstance(op, arith.AndOp) else op.rhs


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def known_results(block: Block, inputs: Sequence[Value]) -> dict[Value, int | bool]:
    """Return the integers of a block that are known if its arguments are `inputs`. `false & x` is false for any x, and
    `true | x` is true."""
    known: dict[Value, int | bool] = {}

    def of(v: Value) -> int | bool | None:
        return known.get(v, constant_of(v) if _is_int(v) else None)

    for arg, v in zip(block.args, inputs, strict=True):
        if (c := of(v)) is not None:
            known[arg] = c
    for op in block:
        if isinstance(op, arith.CmpOp | arith.Binary) and _is_int(op.lhs):
            found = _computed(op, of(op.lhs), of(op.rhs))
            if found is not None:
                known[op.result] = found
    return known


def _computed(
    op: arith.CmpOp | arith.Binary, a: int | bool | None, b: int | bool | None
) -> int | bool | None:
    if isinstance(op, arith.AndOp | arith.OrOp) and op.result.type is int1:
        decisive = isinstance(op, arith.OrOp)
        if a is decisive or b is decisive:
            return decisive
    if a is None or b is None:
        return None
    if isinstance(op, arith.CmpOp):
        return _COMPARE[op.predicate](a, b)
    value = _INTEGER[type(op)](int(a), int(b)) if type(op) in _INTEGER else None
    return None if value is None else wrap(value, elem_of(op.result.type))


@rule(FOLD, arith.CmpOp)
def fold_compare(op: arith.CmpOp, rw: Rewriter) -> Value | None:
    """const a < const b  →  true or false   (integers)"""
    if not _is_int(op.lhs):
        return None
    a, b = constant_of(op.lhs), constant_of(op.rhs)
    if a is None or b is None:
        return None
    return make_const(rw, _COMPARE[op.predicate](a, b), op.result.type)


@rule(FOLD, arith.CmpOp)
def compare_with_itself(op: arith.CmpOp, rw: Rewriter) -> Value | None:
    """x == x, x <= x, x >= x → true;  x != x, x < x, x > x → false   (integers and pointers: no NaN)"""
    e = elem_of(op.lhs.type)
    if op.lhs is not op.rhs or (isinstance(e, dtype) and e.is_floating()):
        return None
    return make_const(rw, op.predicate in ("eq", "le", "ge"), op.result.type)


@rule(FOLD, arith.CmpOp)
def compare_narrow(op: arith.CmpOp, rw: Rewriter) -> Value | None:
    """cast x < cast y → x < y;  cast x < const c → x < const c   (integers that the cast widens, c of x's type)"""
    x = before_widening(op.lhs)
    if x is None:
        return None
    y, c = before_widening(op.rhs), constant_of(op.rhs)
    if y is not None and y.type == x.type:
        return rw.emit(arith.CmpOp(x, y, predicate=op.predicate))
    if c is None or wrap(int(c), elem_of(x.type)) != int(c):
        return None
    return rw.emit(arith.CmpOp(x, make_const(rw, int(c), x.type), predicate=op.predicate))


def before_widening(v: Value) -> Value | None:
    """The integer of fewer bits that a cast widens to `v`, with the same value."""
    if not isinstance(v.op, arith.CastOp) or not _is_int(v) or not _is_int(v.op.x):
        return None
    narrow, wide = elem_of(v.op.x.type), elem_of(v.type)
    if narrow is int1 or wide.bits <= narrow.bits or (narrow.signed and not wide.signed):
        return None
    return v.op.x


@rule(FOLD, arith.SubOp, arith.XorOp)
def cancel(op: arith.Binary, rw: Rewriter) -> Value | None:
    """x - x, x ^ x  →  0   (integers)"""
    if op.lhs is not op.rhs or not _is_int(op.lhs):
        return None
    return make_const(rw, wrap(0, elem_of(op.lhs.type)), op.lhs.type)


@rule(FOLD, arith.SelectOp)
def condition_itself(op: arith.SelectOp, rw: Rewriter) -> Value | None:
    """select c, true, false → c;  select c, false, true → c ^ true"""
    if elem_of(op.result.type) is not int1:
        return None
    a, b = constant_of(op.on_true), constant_of(op.on_false)
    if a is None or b is None or bool(a) == bool(b):
        return None
    return op.condition if a else rw.emit(arith.XorOp(op.condition, op.on_false))


@rule(FOLD, arith.SelectOp)
def known_select(op: arith.SelectOp, rw: Rewriter) -> Value | None:
    """select true, x, y → x;  select false, x, y → y;  select c, x, x → x"""
    if op.on_true is op.on_false:
        return op.on_true
    c = constant_of(op.condition)
    return None if c is None else op.on_true if c else op.on_false


@rule(FOLD, arith.CastOp, arith.BitcastOp)
def same_cast(op: arith.CastOp, rw: Rewriter) -> Value | None:
    """cast x to its own type  →  x"""
    return op.x if op.x.type == op.result.type else None


@rule(FOLD, arith.CastOp)
def fold_cast(op: arith.CastOp, rw: Rewriter) -> Value | None:
    """cast (const n)  →  const n   (from integers; floats only where the value is exact)"""
    e, c = elem_of(op.result.type), constant_of(op.x)
    if c is None or not _is_int(op.x) or not isinstance(e, dtype):
        return None
    if e.is_int():
        return make_const(rw, bool(c) if e is int1 else wrap(int(c), e), op.result.type)
    exact = abs(int(c)) <= 1 << (e.mantissa + 1) and not e.is_fp8()
    return make_const(rw, float(c), op.result.type) if exact else None


@rule(FOLD, arith.AddPtrOp)
def no_offset(op: arith.AddPtrOp, rw: Rewriter) -> Value | None:
    """addptr p, 0  →  p"""
    return op.ptr if constant_of(op.offset) == 0 else None


@rule(FOLD, arith.AddOp)
def add_constants(op: arith.AddOp, rw: Rewriter) -> Value | None:
    """(x + a) + b  →  x + (a + b)   (integers wrap, so this is exact)"""
    inner, b = op.lhs.op, constant_of(op.rhs)
    if b is None or not _is_int(op.lhs) or not isinstance(inner, arith.AddOp):
        return None
    a = constant_of(inner.rhs)
    if a is None:
        return None
    total = make_const(rw, wrap(int(a) + int(b), elem_of(op.lhs.type)), op.lhs.type)
    return rw.emit(arith.AddOp(inner.lhs, total))


@rule(FOLD, arith.AddOp)
def accumulate_in_dot(op: arith.AddOp, rw: Rewriter) -> Value | None:
    """dot(a, b, 0) + c  →  dot(a, b, c)"""
    for dot, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        d = dot.op
        if isinstance(d, tile.DotOp) and len(dot.uses) == 1 and constant_of(d.acc) == 0:
            if d.parent is not op.parent or elem_of(other.type).bits < 32:
                continue
            return rw.emit(tile.DotOp(d.a, d.b, other, results=[op.result.type], **d.attrs))
    return None


# --- shapes of uniform tiles ---------------------------------------------------------------------------------
@rule(SHAPE, tile.SplatOp)
def splat_constant(op: tile.SplatOp, rw: Rewriter) -> Value | None:
    """splat (const c)  →  const c : tile"""
    inner = op.x.op
    return make_const(rw, inner.value, op.result.type) if isinstance(inner, arith.ConstOp) else None


@rule(SHAPE, tile.BroadcastOp, tile.ExpandDimsOp, tile.ReshapeOp, tile.TransOp)
def reshape_uniform(op: Any, rw: Rewriter) -> Value | None:
    """broadcast/expand_dims/reshape/trans of (splat x or const)  →  splat x or const in the new shape"""
    inner = op.x.op
    if isinstance(inner, arith.ConstOp):
        return make_const(rw, inner.value, op.result.type)
    if isinstance(inner, tile.SplatOp):
        result = op.result.type
        return (
            rw.emit(tile.SplatOp(inner.x, results=[result]))
            if isinstance(result, TileType)
            else inner.x
        )
    return None


@rule(SHAPE, tile.BroadcastOp, tile.ReshapeOp)
def same_shape(op: Any, rw: Rewriter) -> Value | None:
    """broadcast or reshape to the shape it has  →  x"""
    return op.x if op.x.type == op.result.type else None


@rule(SHAPE, tile.TransOp)
def identity_trans(op: tile.TransOp, rw: Rewriter) -> Value | None:
    """trans x {order=[0, 1, …]} → x;  trans (trans x) → trans x with the orders composed"""
    if list(op.order) == list(range(len(op.order))) and op.x.type == op.result.type:
        return op.x
    inner = op.x.op
    if isinstance(inner, tile.TransOp):
        order = tuple(inner.order[i] for i in op.order)
        return rw.emit(tile.TransOp(inner.x, order=order, results=[op.result.type]))
    return None


@rule(SHAPE, tile.ReshapeOp)
def reshape_twice(op: tile.ReshapeOp, rw: Rewriter) -> Value | None:
    """reshape (reshape x)  →  reshape x"""
    inner = op.x.op
    if (
        isinstance(inner, tile.ReshapeOp)
        and inner.reorder == op.reorder
        and shape_of(op.result.type)
    ):
        return rw.emit(tile.ReshapeOp(inner.x, reorder=op.reorder, results=[op.result.type]))
    return None
