"""Lowers scans by user-written combine regions: along the vector's dimension in log2 steps per vector, with a carry
from vector to vector; along another dimension the vectors cover the remaining ones and combine vertically. What stores
need of the results they get vector by vector (scan_stores.py), other ops in buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd

from tessera.backends.cpu import remarks
from tessera.backends.cpu.bounds import first_end, prefix_masks, split_bound
from tessera.backends.cpu.fusion import finish_memo_buffers, masks_of
from tessera.backends.cpu.llvm_text import lane_type, scalar_type
from tessera.backends.cpu.loops import UNROLL, Nest, each, nest
from tessera.backends.cpu.lowering import Lowering, executes, make
from tessera.backends.cpu.mask_ends import settling
from tessera.backends.cpu.reduce import (
    Group,
    Registers,
    combine,
    combined_at_once,
    group_at,
    shuffled,
    start,
    vectors,
)
from tessera.backends.cpu.row_prefetch import prefetch, prefetched_rows
from tessera.backends.cpu.scan_stores import Stores, give_up, joined, wait
from tessera.backends.cpu.values import Coord, Point, Val, point
from tessera.backends.elements.arith import is_float
from tessera.ir import elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import MulOp, ScanOp

SHUFFLED = 128  # bits that instructions shuffle by themselves


@executes(ScanOp)
def _scan(lo: Lowering, op: ScanOp) -> None:
    stores = joined(lo, op)
    if stores is None:
        _fill(lo, op)
    else:
        wait(lo, stores, partial(_scan_and_store, lo, stores))


def _fill(lo: Lowering, op: ScanOp) -> None:
    """Scan into buffers."""
    width = start(lo, op)
    scan = _Scan(lo, op, width, None)
    scan.emit()
    finish_memo_buffers(lo)
    for r, buffer in zip(op.results, scan.out, strict=True):
        buffer.version = lo.new_version()
        lo.keep(r, buffer)


def _scan_and_store(lo: Lowering, stores: Stores) -> None:
    """Scan at the place of the last of the stores that need the results."""
    op, last = stores.scan, stores.ops[-1]
    if not stores.suit(lo):
        give_up(lo, stores)
        _fill(lo, op)
        for store in stores.ops:
            lo.sinks[type(store)](lo, store)
        return
    around = lo.em.at(op.loc)
    stores.prepare(lo)
    _Scan(lo, op, combined_at_once(lo, op), stores).emit()
    finish_memo_buffers(lo)
    lo.em.loc = around
    if last.mask is not None:
        remarks.tested_each_time(lo, last, last.mask, len(shape_of(last.mask.type)) - 1)
    lo.memory_changed()


def _prefix(lo: Lowering, op: ScanOp, values: Group, lanes: int) -> Group:
    """Combine the prefixes of the lanes of one vector, in log2 steps: in blocks of two, four, … lanes, the second half
    with the last lane of the first one (Sklansky), which a shuffle within 128 bits moves until blocks are longer."""
    step = 1
    while step < lanes:
        blocks = [i - i % (2 * step) for i in range(lanes)]
        order = [first + step - (not op.reverse) for first in blocks]
        parts = shuffled(lo, values, lanes, order)
        moved = combine(lo, op, [_whole(lo, op, x, lanes, step) for x in parts], values)
        kept = [(i - first < step) != op.reverse for i, first in enumerate(blocks)]
        keep = "<" + ", ".join(f"i1 {'true' if k else 'false'}" for k in kept) + ">"
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


def _whole(lo: Lowering, op: ScanOp, x: Val, lanes: int, step: int) -> Val:
    """Keep LLVM from leaving anything in lanes that are not kept. Denormal numbers take products long; and lanes that
    come from another 128 bits LLVM inserts into any register, such as the carry, for which all would wait then."""
    bits = x.type.bits
    products = is_float(x.type) and any(isinstance(o, MulOp) for o in op.combine)
    if bits < 32 or not (products or (bits == 32 and 2 * step * bits > SHUFFLED)):
        return x
    number = f"<{lanes} x {'float' if bits == 32 else 'double'}>"  # what there are fences for
    text = lo.em.op(f"bitcast {lane_type(x.type, lanes)} {lo.text(x, lanes)} to {number}")
    text = lo.em.call(number, f"llvm.arithmetic.fence.v{lanes}f{bits}", f"{number} {text}")
    return make(x.type, lanes, lo.em.op(f"bitcast {number} {text} to {lane_type(x.type, lanes)}"))


def _spread(lo: Lowering, values: Group, lanes: int, lane: int, wide: int) -> Group:
    """Return vectors of `wide` lanes that all have one lane of `values`."""
    if lanes == 1:
        return [make(x.type, wide, lo.text(x, wide)) for x in values]
    if wide > 1:
        return shuffled(lo, values, lanes, [lane] * wide)
    found: Group = []
    for x in values:
        text = lo.em.lane(scalar_type(x.type), lo.text(x, lanes), lanes, lane)
        found.append(make(x.type, 1, text))
    return found


class _Scan:
    """The loops of one scan, `width` lanes at once, into the buffers `out` or, with `stores`, to where these write."""

    def __init__(self, lo: Lowering, op: ScanOp, width: int, stores: Stores | None):
        self.lo, self.op, self.width, self.stores = lo, op, width, stores
        self.shape = shape_of(op.inputs[0].type)
        self.values = op.inputs if stores is None else stores.values
        types = [elem_of(v.type) for v in op.inputs if stores is None]
        self.out = [lo.allocate(t, self.shape) for t in types]

    def emit(self) -> None:
        if self.op.axis == len(self.shape) - 1:
            self._rows()
        else:
            self._columns()

    def _put(self, at: Point, values: Group) -> None:
        if self.stores is not None:
            self.stores.put(self.lo, at, values)
        for buffer, x in zip(self.out, values if self.out else [], strict=True):
            self.lo.to_buffer(buffer, at, x)

    def _rows(self) -> None:
        lo, op, length = self.lo, self.op, self.shape[-1]
        lanes = min(1 << length.bit_length() - 1, self.width)
        carry = Registers(lo, op.inputs, lanes)

        def row(at: Point) -> None:
            def vector(base: Coord, first: bool, n: int = lanes) -> None:
                lo.memo = {}
                c = Coord(base.base, base.terms, tuple(range(n)) if n > 1 else None, length)
                where = point((*at.coords, c), n)
                lo.here = where
                values = _prefix(lo, op, group_at(lo, op, where), n)
                last = _spread(lo, values, n, 0 if op.reverse else n - 1, lanes)
                if not first:
                    before = carry.get()
                    values = combine(lo, op, _spread(lo, before, lanes, 0, n), values)
                    # Apart from the lanes: the next vector waits for one combination, not for what moves lanes, too.
                    last = combine(lo, op, before, last) if lanes > 1 else values
                self._put(where, values)
                carry.set(last)

            rows = prefetched_rows(lo, op) if lanes > 1 else []
            vector(Coord(length - lanes if op.reverse else 0, (), None, length), True)

            def step(i: str) -> None:
                c = _counted(lo, op, i, lanes, length)
                prefetch(lo, rows, c, lanes)
                vector(c, False)

            if length >= 2 * lanes:
                self._along(at, step, carry, lanes)
            rest, n = length % lanes, lanes
            while rest:  # elements are left: parts of a vector
                n //= 2
                if rest >= n:
                    vector(
                        Coord(rest - n if op.reverse else length - rest, (), None, length), False, n
                    )
                    rest -= n

        if len(self.shape) == 1:
            row(Point((), 1))
        else:
            rest = self.shape[:-1]
            each(lo, Nest(rest, tuple(range(len(rest))), (), 1), row)
        lo.memo = {}

    def _along(self, at: Point, step: Callable[[str], None], carry: Registers, lanes: int) -> None:
        """Emit the loop over a row's vectors behind the first. Where masks hold up to some index, those below it do not
        test them. Stores of what all of them leave out are not reached; of buffers all vectors behind it are the same,
        once the carry stays as it is."""
        lo, em, op = self.lo, self.lo.em, self.op
        length, coords = self.shape[-1], [*at.coords, Coord()]
        plan = Nest(self.shape, tuple(range(len(self.shape) - 1)), (len(self.shape) - 1,), lanes)
        short = op.reverse or length // lanes <= UNROLL or length % lanes
        masks = [] if short else masks_of(lo, self.values, plan, self.stores and self.stores.mask)
        if not masks:
            with em.loop(lanes, length - length % lanes, lanes) as i:
                step(str(i))
            return
        full, proven = split_bound(lo, (len(self.shape) - 1, length), coords, masks, lanes)
        full = em.call("i64", "llvm.smax.i64", f"i64 {full}", f"i64 {lanes}")
        saved, lo.assumed = lo.assumed, lo.assumed | proven
        with em.counted(str(lanes), full, str(lanes), always=True, guarded=True) as i:
            step(i)
        lo.assumed = saved
        if self.stores is not None:
            with em.counted(full, self._last(coords), str(lanes), always=True, guarded=True) as i:
                step(i)
            return
        end = settling(lo, op, coords, lanes)
        with em.counted(full, str(length), str(lanes), always=True, guarded=True) as i:
            before = carry.get()
            step(i)
            if end is not None:
                end.check(i, before, carry.get())
        if end is not None:
            memoised = [b for v, b in lo.memo_buffers.items() if v in lo.memo_filled]
            end.fill([*self.out, *memoised], lanes)

    def _last(self, coords: list[Coord]) -> str:
        """Return an i64: behind which element of a row nothing is stored."""
        length, mask = self.shape[-1], self.stores and self.stores.mask
        ends = prefix_masks(self.lo, mask, len(self.shape) - 1) if mask is not None else []
        if self.lo.memo_buffers or not ends or not apply("mask-ends", ends[0].compare):
            return str(length)
        return first_end(self.lo, len(self.shape) - 1, length, coords, ends, stays=True)

    def _columns(self) -> None:
        lo, op, shape, axis = self.lo, self.op, self.shape, self.op.axis
        *outer, length = rest = (*shape[:axis], *shape[axis + 1 :])
        lanes = self.width * vectors(lo, op, shape, self.width)
        plan, parts = nest(lo, rest, lanes=lanes), _parts(length, lanes)
        if not (len(plan.group) == 1 < len(parts) <= UNROLL and apply("scan-columns", op)):
            each(lo, plan, lambda at: self._down([at]))
            return

        def body(at: Point) -> None:
            self._down([point((*at.coords, c), n) for c, n in parts])

        if outer:
            each(lo, Nest(tuple(outer), tuple(range(len(outer))), (), 1), body)
        else:
            body(Point((), 1))

    def _down(self, ats: Sequence[Point]) -> None:
        """Emit the walk down several columns, which are next to each other in memory and do not wait for each other."""
        lo, op, length, axis = self.lo, self.op, self.shape[self.op.axis], self.op.axis
        cells = [Registers(lo, op.inputs, at.lanes) for at in ats]

        def along(c: Coord, first: bool) -> None:
            lo.memo = {}
            for at, cell in zip(ats, cells, strict=True):
                where = Point((*at.coords[:axis], c, *at.coords[axis:]), at.lanes)
                lo.here = where
                values = group_at(lo, op, where)
                if not first:
                    values = combine(lo, op, cell.get(), values)
                cell.set(values)
                self._put(where, values)

        along(Coord(length - 1 if op.reverse else 0, (), None, length), True)
        if length > 1:
            with lo.em.loop(1, length, 1) as j:
                along(_counted(lo, op, j, 1, length), False)
        lo.memo = {}


def _parts(length: int, lanes: int) -> list[tuple[Coord, int]]:
    """Return the vectors of a row, whole ones and then halves of them, and how many lanes each has."""
    found, first = list[tuple[Coord, int]](), 0
    while first < length:
        while lanes > length - first:
            lanes //= 2
        pattern = tuple(range(lanes)) if lanes > 1 else None
        found.append((Coord(first, (), pattern, length), lanes))
        first += lanes
    return found


def _counted(lo: Lowering, op: ScanOp, i: int | str, step: int, length: int) -> Coord:
    """Return the position of loop index `i` along the axis, from the end for a reverse scan."""
    if op.reverse:
        last = length - step
        i = last - i if isinstance(i, int) else lo.em.op(f"sub nsw i64 {last}, {i}")
    return lo.index(i, gcd(step, length) if op.reverse else step, length)
