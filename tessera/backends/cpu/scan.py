"""Lowers scans by user-written combine regions: along the vector's dimension in log2 steps per vector, with a carry
from vector to vector; along another dimension the vectors cover the remaining ones and combine vertically.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.backends.cpu.fusion import finish_memo_buffers, masks_of
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.loops import UNROLL, Nest, each, nest, split_bound
from tessera.backends.cpu.lowering import Buffer, Lowering, executes, make
from tessera.backends.cpu.mask_ends import settling
from tessera.backends.cpu.reduce import Group, Registers, combine, group_at, shuffled, start
from tessera.backends.cpu.row_prefetch import prefetch, prefetched_rows
from tessera.backends.cpu.values import Coord, Point, Val, point
from tessera.ir import elem_of, shape_of
from tessera.ops import ScanOp


@executes(ScanOp)
def _scan(lo: Lowering, op: ScanOp) -> None:
    width = start(lo, op)
    shape = shape_of(op.inputs[0].type)
    out = [lo.allocate(elem_of(v.type), shape) for v in op.inputs]
    if op.axis == len(shape) - 1:
        _scan_rows(lo, op, shape, out, width)
    else:
        _scan_columns(lo, op, shape, out, width)
    finish_memo_buffers(lo)
    for r, buffer in zip(op.results, out, strict=True):
        buffer.version = lo.new_version()
        lo.keep(r, buffer)


def _put(lo: Lowering, out: list[Buffer], at: Point, values: Group) -> None:
    for buffer, x in zip(out, values, strict=True):
        lo.to_buffer(buffer, at, x)


def _prefix(lo: Lowering, op: ScanOp, values: Group, lanes: int) -> Group:
    """Combine the prefixes of the lanes of one vector, in log2 steps."""
    step = 1
    while step < lanes:
        if op.reverse:
            order = [i + step if i + step < lanes else -1 for i in range(lanes)]
        else:
            order = [i - step if i >= step else -1 for i in range(lanes)]
        moved = combine(lo, op, shuffled(lo, values, lanes, order), values)
        keep = "<" + ", ".join(f"i1 {'true' if k < 0 else 'false'}" for k in order) + ">"
        values = [
            make(
                x.type,
                lanes,
                lo.lanes(lanes).select(
                    scalar_type(x.type), keep, lo.text(x, lanes), lo.text(m, lanes)
                ),
            )
            for x, m in zip(values, moved, strict=True)
        ]
        step *= 2
    return values


def _scan_rows(
    lo: Lowering, op: ScanOp, shape: tuple[int, ...], out: list[Buffer], width: int
) -> None:
    length = shape[-1]
    lanes = min(length & -length, width)
    carry = Registers(lo, op, 1)
    edge = 0 if op.reverse else lanes - 1

    def row(at: Point) -> None:
        def vector(base: Coord, first: bool) -> None:
            lo.memo = {}
            c = Coord(base.base, base.terms, tuple(range(lanes)) if lanes > 1 else None, length)
            where = point((*at.coords, c), lanes)
            lo.here = where
            values = _prefix(lo, op, group_at(lo, op, where), lanes)
            last = [make(x.type, 1, _lane(lo, x, lanes, edge)) for x in values]
            if not first:
                before = carry.get()
                values = combine(lo, op, before, values)
                # Apart from the lanes: the next vector waits for one combination, not for what moves lanes, too.
                last = combine(lo, op, before, last) if lanes > 1 else values
            _put(lo, out, where, values)
            carry.set(last)

        rows = prefetched_rows(lo, op) if lanes > 1 else []
        vector(Coord(length - lanes if op.reverse else 0, (), None, length), True)

        def step(i: str) -> None:
            c = _counted(lo, op, i, lanes, length)
            prefetch(lo, rows, c, lanes)
            vector(c, False)

        if length > lanes:
            _along(lo, op, at, step, carry, out, lanes)

    if len(shape) == 1:
        row(Point((), 1))
    else:
        rest = shape[:-1]
        each(lo, Nest(rest, tuple(range(len(rest))), (), 1), row)
    lo.memo = {}


def _along(
    lo: Lowering,
    op: ScanOp,
    at: Point,
    step: Callable[[str], None],
    carry: Registers,
    out: list[Buffer],
    lanes: int,
) -> None:
    """Emit the loop over a row's vectors behind the first. Where masks hold up to some index, those below it do not
    test them, and once the carry stays as it is behind it, so do all vectors."""
    em, shape = lo.em, shape_of(op.inputs[0].type)
    length, coords = shape[-1], [*at.coords, Coord()]
    plan = Nest(shape, tuple(range(len(shape) - 1)), (len(shape) - 1,), lanes)
    masks = [] if op.reverse or length // lanes <= UNROLL else masks_of(lo, op.inputs, plan)
    if not masks:
        with em.loop(lanes, length, lanes) as i:
            step(str(i))
        return
    full, proven = split_bound(lo, plan, coords, masks, lanes)
    full = em.call("i64", "llvm.smax.i64", f"i64 {full}", f"i64 {lanes}")
    saved, lo.assumed = lo.assumed, lo.assumed | proven
    with em.counted(str(lanes), full, str(lanes), always=True, guarded=True) as i:
        step(i)
    lo.assumed = saved
    end = settling(lo, op, coords, lanes)
    with em.counted(full, str(length), str(lanes), always=True, guarded=True) as i:
        before = carry.get()
        step(i)
        if end is not None:
            end.check(i, before, carry.get())
    if end is not None:
        end.fill([*out, *(b for v, b in lo.memo_buffers.items() if v in lo.memo_filled)], lanes)


def _scan_columns(
    lo: Lowering, op: ScanOp, shape: tuple[int, ...], out: list[Buffer], width: int
) -> None:
    length, axis = shape[op.axis], op.axis
    rest = (*shape[:axis], *shape[axis + 1 :])
    plan = nest(lo, rest, lanes=width)
    cell = Registers(lo, op, plan.lanes)

    def body(at: Point) -> None:
        def along(c: Coord, first: bool) -> None:
            where = Point((*at.coords[:axis], c, *at.coords[axis:]), plan.lanes)
            lo.here = where
            values = group_at(lo, op, where)
            if not first:
                values = combine(lo, op, cell.get(), values)
            cell.set(values)
            _put(lo, out, where, values)

        along(Coord(length - 1 if op.reverse else 0, (), None, length), True)
        if length > 1:
            with lo.em.loop(1, length, 1) as j:
                lo.memo = {}
                along(_counted(lo, op, j, 1, length), False)
            lo.memo = {}

    each(lo, plan, body)


def _counted(lo: Lowering, op: ScanOp, i: int | str, step: int, length: int) -> Coord:
    """Return the position of loop index `i` along the axis, from the end for a reverse scan."""
    if op.reverse:
        last = length - step
        i = last - i if isinstance(i, int) else lo.em.op(f"sub nsw i64 {last}, {i}")
    return lo.index(i, step, length)


def _lane(lo: Lowering, x: Val, lanes: int, index: int) -> str:
    return lo.em.lane(scalar_type(x.type), lo.text(x, lanes), lanes, index)
