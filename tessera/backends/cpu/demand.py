"""Lazy ops at a point: shape ops map the point to their operand's, arithmetic keeps affine forms where it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.backends.cpu import arith as vector
from tessera.backends.cpu.lowering import (
    FALSE,
    TRUE,
    Buffer,
    Lowering,
    evaluates,
    make,
    unsupported,
    wrap,
)
from tessera.backends.cpu.text import literal, memory_type, scalar_type
from tessera.backends.cpu.values import (
    ANY_ALIGN,
    Coord,
    Pattern,
    Point,
    Val,
    is_unit,
    point,
    power_in,
)
from tessera.dtypes import dtype, int1, int64, pointer_type
from tessera.ir import Op, elem_of, shape_of
from tessera.ops import arith, tile


# --- constants and shapes ------------------------------------------------------------------------------
@evaluates(arith.ConstOp)
def _const(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    return constant(elem_of(op.result.type), op.value)


def constant(t: Any, value: Any) -> Val:
    """A scalar constant."""
    if t is int1:
        return TRUE if value else FALSE
    if isinstance(t, dtype) and t.is_floating():
        return Val(t, 1, literal(value, t), const=value)
    text = literal(value, t)
    known = value if isinstance(t, dtype) else None
    return Val(t, 1, text, True, text, align=power_in(int(value)), nonneg=value >= 0, const=known)


@evaluates(tile.SplatOp)
def _splat(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    return lo.scalar(op.x)


@evaluates(tile.ArangeOp)
def _arange(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    return lo.coord_value(at.coords[0], at.lanes, op.start)


@evaluates(tile.BroadcastOp)
def _broadcast(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    shape = shape_of(op.x.type)
    coords = tuple(Coord() if s == 1 else c for s, c in zip(shape, at.coords, strict=True))
    return lo.value(op.x, point(coords, at.lanes))


@evaluates(tile.ExpandDimsOp)
def _expand_dims(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    return lo.value(op.x, point((*at.coords[: op.axis], *at.coords[op.axis + 1 :]), at.lanes))


@evaluates(tile.TransOp)
def _trans(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    inverse = sorted(range(len(op.order)), key=lambda d: op.order[d])
    return lo.value(op.x, point(tuple(at.coords[d] for d in inverse), at.lanes))


@evaluates(tile.ReshapeOp)
def _reshape(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    coords = reshaped(lo, at, shape_of(op.result.type), shape_of(op.x.type))
    if coords is not None:
        return lo.value(op.x, point(coords, at.lanes))
    buffer = lo.buffers.get(op.x)
    if buffer is not None:  # row-major memory has every shape
        return lo.from_buffer(
            Buffer(buffer.ptr, buffer.elem, shape_of(op.result.type), buffer.version), at
        )
    return _lane_by_lane(lo, op, at)


def _lane_by_lane(lo: Lowering, op: Any, at: Point) -> Val:
    """Each lane at a point of its own."""
    t, n = elem_of(op.results[0].type), at.lanes
    if n == 1:
        raise unsupported(op, f"reshaping {shape_of(op.x.type)} to {shape_of(op.result.type)} here")
    e, text = scalar_type(t), "poison"
    for k in range(n):
        coords = tuple(
            c if c.pattern is None else Coord(c.base + c.pattern[k], c.terms, None, c.extent)
            for c in at.coords
        )
        one = lo.text(lo.value(op.results[0], Point(coords, 1)), 1)
        text = lo.em.op(f"insertelement <{n} x {e}> {text}, {e} {one}, i64 {k}")
    return Val(t, n, text)


def reshaped(
    lo: Lowering, at: Point, shape: tuple[int, ...], source: tuple[int, ...]
) -> tuple[Coord, ...] | None:
    """The coordinates in a tile of shape `source` of the same element; None when lanes carry in unknown ways."""
    linear, stride = Coord(), 1
    for size, c in zip(reversed(shape), reversed(at.coords), strict=True):
        linear = linear.plus(c.times(stride))
        stride *= size
    found: list[Coord] = []
    for size in reversed(source[1:]):
        parts = lo.divided(linear, size)
        if parts is None:
            return None
        linear, low = parts
        found.append(low)
    return (*([linear] if source else []), *reversed(found))


@evaluates(tile.JoinOp)
def _join(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    last = at.coords[-1]
    inner = point(at.coords[:-1], at.lanes)
    t = elem_of(op.result.type)
    e = scalar_type(t)
    if not last.terms and last.pattern is None:
        return lo.value((op.lhs, op.rhs)[last.base], inner)
    a, b = lo.value(op.lhs, inner), lo.value(op.rhs, inner)
    n = at.lanes
    if last.pattern is not None and not last.terms:
        bits = [last.base + p for p in last.pattern]
        order = [k + n * bit for k, bit in enumerate(bits)]
        return Val(t, n, lo.em.shuffle(e, lo.text(a, n), lo.text(b, n), n, order))
    right = lo.lanes(n).cmp(
        "icmp ne", "i32", lo.text(lo.coord_value(last, n), n), lo.lanes(n).int("i32", 0)
    )
    return Val(t, n, lo.lanes(n).select(e, right, lo.text(b, n), lo.text(a, n)))


@evaluates(tile.SplitOp)
def _split(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    return lo.value(op.x, Point((*at.coords, Coord(index, (), None, 2)), at.lanes))


@evaluates(tile.GatherOp)
def _gather(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    buffer = lo.buffers[op.x]
    element = memory_type(buffer.elem)
    chosen = lo.value(op.index, at)
    n = max(at.lanes, chosen.lanes)
    rest = Coord()
    for d, (c, stride) in enumerate(zip(at.coords, buffer.strides, strict=True)):
        if d != op.axis:
            rest = rest.plus(c.times(stride))
    base = Val(pointer_type(buffer.elem), n if rest.pattern else 1, "", True, buffer.ptr,
               (*lo.term_texts(rest), *([str(rest.base)] if rest.base else [])), rest.pattern)  # fmt: skip
    x = lo.lanes(n)
    wide = vector.cast(x, lo.text(chosen, n), elem_of(op.index.type), int64)
    # Indices out of range are undefined, but must not leave the buffer.
    axis: int = op.axis
    limit = shape_of(op.x.type)[axis]
    safe = x.call("umin", "i64", wide, x.int("i64", limit - 1))
    offset = x.op("mul", "i64", safe, x.int("i64", buffer.strides[axis]))
    first = lo.text(base, n) if base.pattern else lo.lane0(base)
    kind = f"<{n} x ptr>" if base.pattern else "ptr"
    lanes = f"<{n} x i64>" if n > 1 else "i64"
    address = lo.em.op(f"getelementptr {element}, {kind} {first}, {lanes} {offset}")
    return lo.access.gather(lo, buffer.elem, address, n, None, None, buffer.version)


# --- arithmetic ---------------------------------------------------------------------------------------
def elementwise(lo: Lowering, op: Op, args: list[Val]) -> Val:
    """The result of an element-wise op on operands at one point."""
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


def _evaluate(lo: Lowering, op: Op, at: Point, index: int) -> Val:
    return elementwise(lo, op, [lo.value(v, at) for v in op.operands])


evaluates(*(c for c in vector.TABLE if c is not arith.HintOp))(_evaluate)


def _is_index(t: Any) -> bool:
    return isinstance(t, dtype) and t.is_int() and t is not int1


def _sum_patterns(a: Val, b: Val) -> tuple[Pattern | None, str] | None:
    """Pattern and step of the sum of two affine values."""
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
    if not (a.affine and b.affine and _is_index(a.type)):
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
    return _affine(
        a.type,
        base,
        (*a.terms, *b.terms),
        shape,
        min(a.align, b.align),
        a.nonneg and b.nonneg,
        a,
        b,
    )


def _affine(
    t: Any,
    base: str,
    terms: tuple[str, ...],
    shape: tuple[Pattern | None, str],
    align: int,
    nonneg: bool,
    *sources: Val,
) -> Val:
    lanes = max(s.lanes for s in sources) if shape[0] is not None else 1
    return Val(
        t,
        lanes,
        "",
        True,
        base,
        terms,
        shape[0],
        shape[1] if shape[0] is not None else "",
        align,
        nonneg,
    )


def _sub(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if not (a.affine and b.affine and _is_index(a.type)) or b.terms:
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
    return _affine(a.type, base, a.terms, shape, min(a.align, b.align), False, a, b)


def _mul(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if not (a.affine and b.affine and _is_index(a.type)):
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
    align = min(a.align * b.align, ANY_ALIGN)
    return _affine(a.type, base, terms, (pattern, step), align, a.nonneg and b.nonneg, a, b)


def _shl(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if not isinstance(b.const, int) or not 0 <= b.const < a.type.bits:
        return None
    return _mul(lo, op, a, constant(a.type, wrap(1 << b.const, a.type)))


def _cast(lo: Lowering, op: Any, a: Val) -> Val | None:
    target = elem_of(op.result.type)
    if not (a.affine and _is_index(a.type) and _is_index(target)):
        return None
    if a.const is not None:
        value = wrap(int(a.const), target)
        return constant(target, value if target.signed else value & ((1 << target.bits) - 1))
    grows = target.bits > a.type.bits
    if not grows and target.bits < 32:
        return None
    base = vector.cast(lo.lanes(1), a.base, a.type, target)
    return _affine(target, base, a.terms, (a.pattern, a.step), a.align, a.nonneg and grows, a)


def _hint(lo: Lowering, op: Any, a: Val) -> Val | None:
    known = op.divisibility
    if len(known) <= 1 and a.affine and a.lanes == 1 and known and known[0] > 1:
        return Val(
            a.type,
            1,
            a.text,
            True,
            a.base,
            a.terms,
            align=max(a.align, power_in(known[0])),
            nonneg=a.nonneg,
        )
    return a


@evaluates(arith.HintOp)
def _hint_at(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    """A promise of contiguity makes lane 0 enough."""
    x = lo.value(op.x, at)
    if x.affine or x.lanes == 1 or not _is_index(x.type):
        return x
    varying = [d for d, c in enumerate(at.coords) if c.pattern is not None]
    if len(varying) != 1 or varying[0] >= len(op.contiguity):
        return x
    c, run = at.coords[varying[0]], op.contiguity[varying[0]]
    assert c.pattern is not None
    span = 1 << max(c.pattern).bit_length()
    if not is_unit(c.pattern) or run % span or lo.coord_align(c) % span:
        return x
    first = tuple(Coord(k.base, k.terms, None, k.extent) for k in at.coords)
    base = lo.value(op.x, point(first, 1))
    text = lo.text(base, 1)
    return Val(x.type, at.lanes, "", True, text, (), c.pattern, nonneg=base.nonneg)


def _addptr(lo: Lowering, op: Any, p: Val, off: Val) -> Val | None:
    if not p.affine:
        return None
    t = elem_of(op.result.type)
    element = memory_type(t.element_ty)
    if not off.affine:
        if p.pattern is not None or off.lanes == 1:
            return None
        wide = (
            vector.cast(lo.lanes(off.lanes), off.text, off.type, int64)
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
        wide = vector.cast(lo.lanes(1), off.base, off.type, int64)
        base = lo.em.op(f"getelementptr {element}, ptr {base}, i64 {wide}")
    return _affine(t, base, (*p.terms, *off.terms), shape, 1, False, p, off)


def _zext(lo: Lowering, off: Val) -> str:
    return vector.cast(lo.lanes(off.lanes), off.text, off.type, int64)


def _addptr_plain(lo: Lowering, op: Any, p: Val, off: Val) -> Val:
    found = _addptr(lo, op, p, off)
    if found is not None:
        return found
    t = elem_of(op.result.type)
    n = max(p.lanes, off.lanes)
    wide = vector.cast(lo.lanes(n), lo.text(off, n), off.type, int64)
    kind, lanes = (f"<{n} x ptr>", f"<{n} x i64>") if n > 1 else ("ptr", "i64")
    text = lo.em.op(
        f"getelementptr {memory_type(t.element_ty)}, {kind} {lo.text(p, n)}, {lanes} {wide}"
    )
    return make(t, n, text)


def _carries(a: Val, b: Val) -> bool:
    """Whether all lanes of `a` lie in one multiple of the uniform `b`: then only lane 0 needs the division. As in
    `analysis.axis`, indices that are divided are taken not to be negative."""
    if not (
        a.affine and a.pattern is not None and not a.step and b.lanes == 1 and min(a.pattern) >= 0
    ):
        return False
    span = 1 << max(a.pattern).bit_length()
    return a.align % span == 0 and b.align % span == 0


def _divide(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if not _is_index(a.type):
        return None
    if b.const == 1:
        return a if isinstance(op, arith.DivOp) else constant(a.type, 0)
    rest = isinstance(op, arith.RemOp)
    if a.lanes > 1:
        if not _carries(a, b):
            return None
        first = Val(a.type, 1, "", True, a.base, a.terms)
        text = vector.lower(lo.lanes(1), op, [lo.text(first, 1), lo.text(b, 1)])
        if not rest:
            return Val(a.type, 1, text, True, text, nonneg=b.nonneg)
        return Val(a.type, a.lanes, "", True, text, (), a.pattern, "", min(a.align, b.align), True)
    text = vector.lower(lo.lanes(1), op, [lo.text(a, 1), lo.text(b, 1)])
    if rest:
        align = min(a.align, b.align)
    else:
        align = max(1, a.align // b.const) if isinstance(b.const, int) and power(b.const) else 1
    return Val(a.type, 1, text, True, text, align=align, nonneg=a.nonneg and (rest or b.nonneg))


def power(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def _and(lo: Lowering, op: Op, a: Val, b: Val) -> Val | None:
    if a.type is int1:
        if a.const is not None:
            return b if a.const else FALSE
        if b.const is not None:
            return a if b.const else FALSE
        return a if a is b else None
    if _is_index(a.type) and a.lanes > 1 and isinstance(b.const, int) and _carries_mask(a, b.const):
        first = Val(a.type, 1, "", True, a.base, a.terms)
        text = vector.lower(lo.lanes(1), op, [lo.text(first, 1), lo.text(b, 1)])
        return Val(a.type, a.lanes, "", True, text, (), a.pattern, "", a.align, b.const >= 0)
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


def _bitcast(lo: Lowering, op: Any, a: Val) -> Val | None:
    target = elem_of(op.result.type)
    if not (a.affine and isinstance(a.type, pointer_type) and isinstance(target, pointer_type)):
        return None
    if memory_size(a.type.element_ty) != memory_size(target.element_ty):
        return make(target, a.lanes, lo.text(a, a.lanes))
    return Val(target, a.lanes, "", True, a.base, a.terms, a.pattern, a.step)


def memory_size(t: Any) -> int:
    return t.storage_bytes


_SPECIAL: dict[type[Op], Callable[..., Val | None]] = {
    arith.AddOp: _add, arith.SubOp: _sub, arith.MulOp: _mul, arith.ShlOp: _shl, arith.CastOp: _cast,
    arith.HintOp: _hint, arith.AddPtrOp: _addptr_plain, arith.DivOp: _divide, arith.RemOp: _divide, arith.AndOp: _and,
    arith.OrOp: _or, arith.SelectOp: _select, arith.BitcastOp: _bitcast,
}  # fmt: skip
evaluates(arith.AddPtrOp)(_evaluate)
