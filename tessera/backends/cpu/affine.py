"""Evaluates element-wise ops in affine form: sums, multiples and casts of indices and addresses stay scalar.

`elementwise` tries the op's rule here first; if the rule returns None, vector instructions compute the op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.backends.cpu import arith as vector
from tessera.backends.cpu.llvm_text import literal, memory_type, scalar_type
from tessera.backends.cpu.lowering import FALSE, TRUE, Lowering, make, wrap
from tessera.backends.cpu.values import ANY_ALIGN, Pattern, Val, power_in
from tessera.backends.elements.casts import cast
from tessera.dtypes import dtype, float32, int1, int64, pointer_type
from tessera.ir import Op, Type, elem_of
from tessera.ops import arith


def constant(t: Type, value: Any) -> Val:
    """Return a scalar constant."""
    if t is int1:
        return TRUE if value else FALSE
    if isinstance(t, dtype) and t.is_floating():
        return Val(t, 1, literal(value, t), const=value)
    text = literal(value, t)
    known = value if isinstance(t, dtype) else None
    return Val(t, 1, text, True, text, align=power_in(int(value)), const=known)


def elementwise(lo: Lowering, op: Op, args: list[Val]) -> Val:
    """Return the result of an element-wise op on operands at one point."""
    special = _SPECIAL.get(type(op))
    if special is not None:
        found = special(lo, op, *args)
        if found is not None:
            return found
    n = 1
    for a in args:
        n = max(n, a.lanes)
    text = vector.lower(lo.lanes(n), op, [lo.text(a, n) for a in args])
    return make(elem_of(op.results[0].type), n, text)


def is_index(t: Type) -> bool:
    return isinstance(t, dtype) and t.is_int() and t is not int1


def _sum_patterns(a: Val, b: Val) -> tuple[Pattern | None, str] | None:
    """Return pattern and step of the sum of two affine values."""
    if a.pattern is None:
        return b.pattern, b.step
    if b.pattern is None:
        return a.pattern, a.step
    if a.step or b.step:
        return None
    total = tuple(x + y for x, y in zip(a.pattern, b.pattern, strict=True))
    return (total if any(total) else None), ""


def _known(a: Val, b: Val, op: Op, fn: Callable[[int, int], int]) -> Val | None:
    """Fold two constants."""
    if a.const is None or b.const is None:
        return None
    t = elem_of(op.results[0].type)
    value = wrap(fn(int(a.const), int(b.const)), t)
    return constant(t, value if t.signed else value & ((1 << t.bits) - 1))


def _add(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if not (a.affine and b.affine and is_index(a.type)):
        return None
    folded = _known(a, b, op, lambda x, y: x + y)
    if folded is not None:
        return folded
    shape = _sum_patterns(a, b)
    if shape is None:
        return None
    e = scalar_type(a.type)
    base = (
        b.base
        if a.base == "0"
        else a.base
        if b.base == "0"
        else lo.em.op(f"add {e} {a.base}, {b.base}")
    )
    return _affine(a.type, base, (*a.terms, *b.terms), shape, min(a.align, b.align), a, b)


def _affine(
    t: Type,
    base: str,
    terms: tuple[str, ...],
    shape: tuple[Pattern | None, str],
    align: int,
    *sources: Val,
) -> Val:
    lanes = max(s.lanes for s in sources) if shape[0] is not None else 1
    return Val(
        t, lanes, "", True, base, terms, shape[0], shape[1] if shape[0] is not None else "", align
    )


def _sub(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if not (a.affine and b.affine and is_index(a.type)) or b.terms:
        return None
    folded = _known(a, b, op, lambda x, y: x - y)
    if folded is not None:
        return folded
    e = scalar_type(a.type)
    if b.pattern is not None:
        if b.step or a.step:
            return None
        minus = Val(b.type, b.lanes, "", True, "0", (), tuple(-p for p in b.pattern))
        shape = _sum_patterns(a, minus)
        assert shape is not None
    else:
        shape = (a.pattern, a.step)
    base = a.base if b.base == "0" else lo.em.op(f"sub {e} {a.base}, {b.base}")
    return _affine(a.type, base, a.terms, shape, min(a.align, b.align), a, b)


def _mul(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if not (a.affine and b.affine and is_index(a.type)):
        return None
    folded = _known(a, b, op, lambda x, y: x * y)
    if folded is not None:
        return folded
    if b.lanes > 1 or b.terms:
        a, b = b, a
    if b.lanes > 1 or b.terms:
        return None
    e = scalar_type(a.type)
    base = (
        "0"
        if a.base == "0"
        else a.base
        if b.base == "1"
        else lo.em.op(f"mul {e} {a.base}, {b.base}")
    )
    terms, pattern, step = a.terms, a.pattern, a.step
    if b.const is not None:
        c = int(b.const)
        if c == 0:
            return constant(a.type, 0)
        terms = tuple(t if c == 1 else lo.em.op(f"mul nsw i64 {t}, {c}") for t in terms)
        pattern = None if pattern is None else tuple(p * c for p in pattern)
    elif terms or pattern is not None:
        wide = (
            b.base
            if e == "i64"
            else lo.em.op(f"{'sext' if b.type.signed else 'zext'} {e} {b.base} to i64")
        )
        terms = tuple(lo.em.op(f"mul nsw i64 {t}, {wide}") for t in terms)
        if pattern is not None:
            step = lo.em.op(f"mul nsw i64 {step}, {wide}") if step else wide
    return _affine(a.type, base, terms, (pattern, step), min(a.align * b.align, ANY_ALIGN), a, b)


def _shl(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if not isinstance(b.const, int) or not 0 <= b.const < a.type.bits:
        return None
    return _mul(lo, op, a, constant(a.type, wrap(1 << b.const, a.type)))


def _shr(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    """Shift the first lane: what the others have more, multiples of what is shifted out, is shifted by itself."""
    shift = b.const
    if not (a.affine and a.pattern is not None and is_index(a.type) and a.type.signed):
        return None
    if not isinstance(shift, int) or a.step or any(p % (1 << shift) for p in a.pattern):
        return None
    first = lo.lane0(a)
    text = vector.lower(lo.lanes(1), op, [first, lo.text(b, 1)])
    pattern = tuple(p >> shift for p in a.pattern)
    return Val(a.type, a.lanes, "", True, text, (), pattern if any(pattern) else None)


def _address(lo: Lowering, p: Val) -> Val | None:
    """Return a pointer as an int64."""
    if not p.affine or p.step:
        return None
    size = memory_size(p.type.element_ty)
    first = cast(lo.lanes(1), lo.lane0(p), p.type, int64)
    pattern = None if p.pattern is None else tuple(size * x for x in p.pattern)
    return Val(int64, p.lanes if pattern else 1, "", True, first, (), pattern)


def _cast(lo: Lowering, op: Op, a: Val) -> Val | None:
    target = elem_of(op.result.type)
    if isinstance(a.type, pointer_type) and target is int64:
        return _address(lo, a)
    if not (a.affine and is_index(a.type) and is_index(target)):
        return None
    if a.const is not None:
        value = wrap(int(a.const), target)
        return constant(target, value if target.signed else value & ((1 << target.bits) - 1))
    grows = target.bits > a.type.bits
    if not grows and target.bits < 32:
        return None
    base = cast(lo.lanes(1), a.base, a.type, target)
    return _affine(target, base, a.terms, (a.pattern, a.step), a.align, a)


def _hint(lo: Lowering, op: Any, a: Val) -> Val | None:
    known = op.divisibility
    if len(known) <= 1 and a.affine and a.lanes == 1 and known and known[0] > 1:
        return Val(a.type, 1, a.text, True, a.base, a.terms, align=max(a.align, power_in(known[0])))
    return a


def _addptr(lo: Lowering, op: Op, p: Val, off: Val) -> Val | None:
    if not p.affine:
        return None
    t = elem_of(op.result.type)
    element = memory_type(t.element_ty)
    if not off.affine:
        if p.pattern is not None or off.lanes == 1:
            return None
        wide = (
            cast(lo.lanes(off.lanes), off.text, off.type, int64)
            if off.type.signed
            else _zext(lo, off)
        )
        first = lo.lane0(p)
        n = off.lanes
        return Val(t, n, lo.em.op(f"getelementptr {element}, ptr {first}, <{n} x i64> {wide}"))
    shape = _sum_patterns(p, off)
    if shape is None:
        return None
    base = p.base
    if off.base != "0":
        wide = cast(lo.lanes(1), off.base, off.type, int64)
        base = lo.em.op(f"getelementptr {element}, ptr {base}, i64 {wide}")
    return _affine(t, base, (*p.terms, *off.terms), shape, 1, p, off)


def _zext(lo: Lowering, off: Val) -> str:
    return cast(lo.lanes(off.lanes), off.text, off.type, int64)


def _addptr_plain(lo: Lowering, op: Op, p: Val, off: Val) -> Val:
    found = _addptr(lo, op, p, off)
    if found is not None:
        return found
    t = elem_of(op.result.type)
    n = max(p.lanes, off.lanes)
    wide = cast(lo.lanes(n), lo.text(off, n), off.type, int64)
    kind, lanes = (f"<{n} x ptr>", f"<{n} x i64>") if n > 1 else ("ptr", "i64")
    text = lo.em.op(
        f"getelementptr {memory_type(t.element_ty)}, {kind} {lo.text(p, n)}, {lanes} {wide}"
    )
    return make(t, n, text)


def _carries(a: Val, b: Val) -> bool:
    """Whether all lanes of `a`, which are not negative, lie between the same two multiples of the uniform `b`: then
    only lane 0 needs the division."""
    if not (
        a.affine and a.pattern is not None and not a.step and b.lanes == 1 and min(a.pattern) >= 0
    ):
        return False
    span = 1 << max(a.pattern).bit_length()
    return a.align % span == 0 and b.align % span == 0


def _divide(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if a.type is float32 and a.lanes >= 8 and b.lanes == 1 and isinstance(op, arith.DivOp):
        x = lo.lanes(a.lanes)
        return Val(float32, a.lanes, vector.divide_by_one(x, lo.text(a, a.lanes), lo.text(b, 1)))
    if op.results[0] in lo.dividends:
        return a
    if not is_index(a.type) or b.lanes > a.lanes:
        return None
    if b.const == 1:
        return a if isinstance(op, arith.DivOp) else constant(a.type, 0)
    rest = isinstance(op, arith.RemOp)
    if a.lanes > 1:
        if not _carries(a, b) or not lo.signs.nonnegative(op.operands[0]):
            return None
        first = Val(a.type, 1, "", True, a.base, a.terms)
        text = vector.lower(lo.lanes(1), op, [lo.text(first, 1), lo.text(b, 1)])
        if not rest:
            return Val(a.type, 1, text, True, text)
        return Val(a.type, a.lanes, "", True, text, (), a.pattern, "", min(a.align, b.align))
    text = vector.lower(lo.lanes(1), op, [lo.text(a, 1), lo.text(b, 1)])
    if rest:
        align = min(a.align, b.align)
    else:
        align = max(1, a.align // b.const) if isinstance(b.const, int) and power(b.const) else 1
    return Val(a.type, 1, text, True, text, align=align)


def power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def _and(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if a.type is int1:
        if a.const is not None:
            return b if a.const else FALSE
        if b.const is not None:
            return a if b.const else FALSE
        return a if a is b else None
    if is_index(a.type) and a.lanes > 1 and isinstance(b.const, int) and _carries_mask(a, b.const):
        first = Val(a.type, 1, "", True, a.base, a.terms)
        text = vector.lower(lo.lanes(1), op, [lo.text(first, 1), lo.text(b, 1)])
        return Val(a.type, a.lanes, "", True, text, (), a.pattern, "", a.align)
    return None


def _carries_mask(a: Val, mask: int) -> bool:
    if not (a.affine and a.pattern is not None and not a.step and min(a.pattern) >= 0):
        return False
    span = 1 << max(a.pattern).bit_length()
    return a.align % span == 0 and mask & (span - 1) == span - 1


def _or(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if a.type is int1:
        if a.const is not None:
            return TRUE if a.const else b
        if b.const is not None:
            return TRUE if b.const else a
    return None


def _select(lo: Lowering, op: Op, c: Val, a: Val, b: Val) -> Val | None:
    if c.const is not None:
        return a if c.const else b
    return None


def _bitcast(lo: Lowering, op: Op, a: Val) -> Val | None:
    target = elem_of(op.result.type)
    if not (a.affine and isinstance(a.type, pointer_type) and isinstance(target, pointer_type)):
        return None
    if memory_size(a.type.element_ty) != memory_size(target.element_ty):
        return make(target, a.lanes, lo.text(a, a.lanes))
    return Val(target, a.lanes, "", True, a.base, a.terms, a.pattern, a.step)


def memory_size(t: Any) -> int:
    return t.storage_bytes


_SPECIAL: dict[type[Op], Callable[..., Val | None]] = {
    arith.AddOp: _add, arith.SubOp: _sub, arith.MulOp: _mul, arith.ShlOp: _shl, arith.ShrOp: _shr,
    arith.CastOp: _cast,
    arith.HintOp: _hint, arith.AddPtrOp: _addptr_plain, arith.DivOp: _divide, arith.RemOp: _divide, arith.AndOp: _and,
    arith.OrOp: _or, arith.SelectOp: _select, arith.BitcastOp: _bitcast,
}  # fmt: skip
