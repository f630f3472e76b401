"""Evaluates lazy ops at a point of their index space; shape ops map the point to one of their operand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.backends.cpu import arith as vector
from tessera.backends.cpu.affine import constant, elementwise, is_index
from tessera.backends.cpu.exchange_partners import takes_partners
from tessera.backends.cpu.llvm_text import memory_type, scalar_type
from tessera.backends.cpu.lowering import Lowering, evaluates
from tessera.backends.cpu.values import Coord, Point, Val, is_unit, point
from tessera.backends.elements.casts import cast
from tessera.dtypes import int64, pointer_type
from tessera.ir import Op, Value, elem_of, shape_of
from tessera.ops import arith, tile


# --- constants and shapes ------------------------------------------------------------------------------
@evaluates(arith.ConstOp)
def _const(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    return constant(elem_of(op.result.type), op.value)


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
    buffer, shape = lo.buffers.get(op.x), shape_of(op.result.type)
    if buffer is not None and not buffer.pitch:  # row-major memory has every shape
        return lo.from_buffer(replace(buffer, shape=shape), at)
    coords = reshaped(lo, at, shape, shape_of(op.x.type))
    return lane_by_lane(lo, op, at) if coords is None else lo.value(op.x, point(coords, at.lanes))


def lane_by_lane(lo: Lowering, op: Op, at: Point) -> Val:
    """Return the op's value, with each lane evaluated at a point of its own."""
    t, n = elem_of(op.results[0].type), at.lanes
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
    """Return the coordinates that the same element has in a tile of shape `source`; None if lanes carry from one
    dimension to the next in an unknown way."""
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


def _beside(at: Point, axis: int) -> Point:
    """Return the point whose index along an axis of two elements is the other one."""
    c = at.coords[axis]
    terms = tuple((name, -factor) for name, factor in c.terms)
    pattern = None if c.pattern is None else tuple(-p for p in c.pattern)
    other = Coord(1 - c.base, terms, pattern, 2)
    return point((*at.coords[:axis], other, *at.coords[axis + 1 :]), at.lanes)


@evaluates(tile.GatherOp)
def _gather(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    if takes_partners(op):
        return lo.value(op.x, _beside(at, op.axis))
    buffer = lo.buffers[op.x]
    element = memory_type(buffer.elem)
    chosen = lo.value(op.index, at)
    if chosen.lanes == 1 and at.lanes > 1:
        return lo.from_buffer(buffer, _at_one_index(lo, op, at, chosen))
    n = max(at.lanes, chosen.lanes)
    rest = Coord()
    for d, (c, stride) in enumerate(zip(at.coords, buffer.strides, strict=True)):
        if d != op.axis:
            rest = rest.plus(c.times(stride))
    base = Val(pointer_type(buffer.elem), n if rest.pattern else 1, "", True, buffer.ptr,
               (*lo.term_texts(rest), *([str(rest.base)] if rest.base else [])), rest.pattern)  # fmt: skip
    x = lo.lanes(n)
    wide = cast(x, lo.text(chosen, n), elem_of(op.index.type), int64)
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


def _at_one_index(lo: Lowering, op: tile.GatherOp, at: Point, chosen: Val) -> Point:
    """Return the point that a gather reads if all lanes have one index: the lanes lie as those of `at`."""
    wide = cast(lo.lanes(1), lo.text(chosen, 1), elem_of(op.index.type), int64)
    axis: int = op.axis
    limit = shape_of(op.x.type)[axis]
    safe = lo.em.call("i64", "llvm.umin.i64", f"i64 {wide}", f"i64 {limit - 1}")
    coords = list(at.coords)
    coords[axis] = Coord(0, ((safe, 1),), None, limit)
    return point(tuple(coords), at.lanes)


def _evaluate(lo: Lowering, op: Op, at: Point, index: int) -> Val:
    return elementwise(lo, op, [lo.value(v, at) for v in op.operands])


evaluates(*(c for c in vector.TABLE if c is not arith.HintOp))(_evaluate)


@evaluates(arith.HintOp)
def _hint_at(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    """Use a promise of contiguity, with which lane 0 is enough. A promise about remainders is not used: it is also
    given for `rows % M` where rows wrap around, and memory behind the last row may not exist."""
    x = lo.value(op.x, at)
    if x.affine or x.lanes == 1 or not is_index(x.type) or _is_remainder(op.x):
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
    return Val(x.type, at.lanes, "", True, text, (), c.pattern)


def _is_remainder(x: Value) -> bool:
    while isinstance(x.op, arith.HintOp | arith.CastOp):
        x = x.op.x
    return isinstance(x.op, arith.RemOp)


evaluates(arith.AddPtrOp)(_evaluate)
