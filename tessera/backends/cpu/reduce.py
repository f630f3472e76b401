"""Lowers reductions by user-written combine regions, which are evaluated on vectors.

Along the vector's dimension a reduction keeps up to four independent accumulator vectors, joins them as a tree and then
folds the lanes by shuffles. Along another dimension the vectors cover the remaining ones and combine vertically. No
identity element is needed: accumulators start with the first elements.

A region that loops, calls a function, divides integers or has an effect takes one element after another, since running
it on lanes without an element could do harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.backends.cpu import control, remarks
from tessera.backends.cpu.affine import constant, elementwise
from tessera.backends.cpu.arith import TABLE
from tessera.backends.cpu.bounds import split_bound
from tessera.backends.cpu.fusion import finish_memo_buffers, flush, masks_of, prepare, repeated
from tessera.backends.cpu.llvm_text import lane_type, scalar_type
from tessera.backends.cpu.loops import Nest, each, nest
from tessera.backends.cpu.lowering import Buffer, Lowering, executes, make
from tessera.backends.cpu.mask_ends import settling
from tessera.backends.cpu.row_prefetch import Row, prefetch, prefetched_rows
from tessera.backends.cpu.transpose import fold_vectors, gathers
from tessera.backends.cpu.values import Coord, Point, Val, point
from tessera.backends.cpu.whole_tiles import each_column, whole_or_not
from tessera.dtypes import dtype
from tessera.ir import Block, Effect, Op, Value, elem_of, shape_of
from tessera.ops import CombineOp, ConstOp, DivOp, IfOp, ReduceOp, RemOp

ACCUMULATORS = 4  # registers that a reduction adds to in turn, hiding the latency (tools/fit)
Group = list[Val]  # one value an input


def start(lo: Lowering, op: CombineOp) -> int:
    """Prepare the operands of a reduction or scan; return the largest number of lanes that it may combine at once."""
    if op.all_effects() & Effect.WRITE:
        flush(lo, op)
    prepare(lo, op.inputs, op)
    return combined_at_once(lo, op)


def combined_at_once(lo: Lowering, op: CombineOp) -> int:
    """Return the largest number of lanes that a reduction or scan may combine at once."""
    obstacle = _obstacle(op)
    if obstacle is not None:
        remarks.one_at_a_time(lo, op, obstacle)
    return lo.facts.lanes if obstacle is None else 1


def _obstacle(op: CombineOp) -> Op | None:
    """Return an op of the region that must not run on lanes whose results are not needed, if there is one."""

    def harmless(inner: Op) -> bool:
        if isinstance(inner, (DivOp, RemOp)):
            t = elem_of(inner.results[0].type)
            return isinstance(t, dtype) and t.is_floating()
        return inner.terminator or isinstance(inner, (ConstOp, IfOp)) or type(inner) in TABLE

    return next((inner for inner in op.combine.walk() if not harmless(inner)), None)


def combine(lo: Lowering, op: CombineOp, a: Group, b: Group) -> Group:
    """Evaluate the region on lanes; `a` are its first operands."""
    with lo.bound(dict(zip(op.combine.args, [*a, *b], strict=True))):
        if _obstacle(op) is None:
            return _run_lanes(lo, op.combine)
        return [lo.scalar(v) for v in control.lower_block(lo, op.combine).operands]


def _run_lanes(lo: Lowering, block: Block) -> Group:
    """Evaluate a block of scalar ops lane by lane; branches become selects."""
    for op in block:
        if op.terminator:
            return [lo.scalar(v) for v in op.operands]
        if isinstance(op, IfOp):
            condition = lo.scalar(op.condition)
            sides = [_run_lanes(lo, r) for r in op.regions]
            for r, a, b in zip(op.results, *sides, strict=True):
                lo.env[r] = _choose(lo, condition, a, b)
        elif isinstance(op, ConstOp):
            lo.env[op.result] = constant(op.result.type, op.value)
        else:
            lo.env[op.results[0]] = elementwise(lo, op, [lo.scalar(v) for v in op.operands])
    raise AssertionError("block without terminator")


def _choose(lo: Lowering, c: Val, a: Val, b: Val) -> Val:
    n = max(c.lanes, a.lanes, b.lanes)
    e = scalar_type(a.type)
    return make(a.type, n, lo.lanes(n).select(e, lo.text(c, n), lo.text(a, n), lo.text(b, n)))


def group_at(lo: Lowering, op: Any, at: Point) -> Group:
    return [lo.value(v, at) for v in op.inputs]


# --- accumulators in memory that sroa makes registers ----------------------------------------------------------
class Registers:
    """Stack slots of `lanes` lanes, one for each of some values."""

    def __init__(self, lo: Lowering, values: Sequence[Value], lanes: int):
        self.lo, self.lanes = lo, lanes
        self.types = [elem_of(v.type) for v in values]
        self.ptrs = [lo.em.alloca(lane_type(t, lanes), align=64) for t in self.types]

    def set(self, values: Group) -> None:
        for ptr, t, x in zip(self.ptrs, self.types, values, strict=True):
            self.lo.em.stmt(
                f"store {lane_type(t, self.lanes)} {self.lo.text(x, self.lanes)}, ptr {ptr}"
            )

    def get(self) -> Group:
        return [
            make(t, self.lanes, self.lo.em.here(f"load {lane_type(t, self.lanes)}, ptr {ptr}"))
            for ptr, t in zip(self.ptrs, self.types, strict=True)
        ]


def shuffled(lo: Lowering, values: Group, lanes: int, order: list[int]) -> Group:
    """Return the lanes of each value in another order (-1: any lane)."""
    found: Group = []
    for x in values:
        text = lo.em.shuffle(scalar_type(x.type), lo.text(x, lanes), "poison", lanes, order)
        found.append(make(x.type, len(order), text))
    return found


def fold_lanes(lo: Lowering, op: Any, values: Group, lanes: int) -> Group:
    """Combine all lanes; the result is one lane."""
    half = lanes // 2
    while half >= 1:
        upper = shuffled(lo, values, lanes, [half + i if i < half else -1 for i in range(lanes)])
        values = combine(lo, op, values, upper)
        half //= 2
    return [
        make(x.type, 1, lo.em.lane(scalar_type(x.type), lo.text(x, lanes), lanes, 0))
        if lanes > 1
        else x
        for x in values
    ]


def fold_rows(lo: Lowering, op: Any, rows: list[Group], lanes: int) -> Group:
    """Fold each of `lanes` vectors as `fold_lanes` does, into one: lane r is the result of row r."""

    def shuffle(a: Group, b: Group, order: list[int]) -> Group:
        found: Group = []
        for x, y in zip(a, b, strict=True):
            e, texts = scalar_type(x.type), (lo.text(x, lanes), lo.text(y, lanes))
            found.append(make(x.type, lanes, lo.em.shuffle(e, *texts, lanes, order)))
        return found

    return fold_vectors(rows, lanes, shuffle, lambda a, b: combine(lo, op, a, b))


# --- reduce --------------------------------------------------------------------------------------------------
@executes(ReduceOp)
def _reduce(lo: Lowering, op: ReduceOp) -> None:
    width = start(lo, op)
    shape = shape_of(op.inputs[0].type)
    rest = (*shape[: op.axis], *shape[op.axis + 1 :])
    out = [lo.allocate(elem_of(v.type), rest) if rest else None for v in op.inputs]
    horizontal = op.axis == len(shape) - 1 and (shape[op.axis] >= width or len(shape) == 1)
    if horizontal:
        _horizontal(lo, op, shape, out, width)
    else:
        _vertical(lo, op, shape, rest, out, width)
    finish_memo_buffers(lo)
    for r, buffer in zip(op.results, out, strict=True):
        if buffer is not None:
            buffer.version = lo.new_version()
            lo.keep(r, buffer)


def _horizontal(
    lo: Lowering, op: ReduceOp, shape: tuple[int, ...], out: list[Buffer | None], width: int
) -> None:
    """Reduce with vectors along the axis: one row at a time, or as many rows at once as a vector has lanes."""
    length = shape[-1]
    lanes = min(length & -length, width)
    row = _Row(lo, op, length, lanes)

    def single(at: Point) -> None:
        result = fold_lanes(lo, op, row.folded(at.coords), lanes)
        for x, buffer, r in zip(result, out, op.results, strict=True):
            if buffer is None:
                lo.scalars[r] = make(x.type, 1, lo.text(x, 1))
            else:
                lo.to_buffer(buffer, Point(at.coords, 1), x)

    def several(at: Point) -> None:
        *outer, block = at.coords
        first = block.times(lanes)
        kept = [lo.em.alloca(lane_type(elem_of(v.type), lanes), lanes) for v in op.inputs]
        with lo.em.loop(0, lanes, 1) as i:
            index = lo.index(i, 1, lanes)
            found = row.folded((*outer, first.plus(index)))
            for x, ptr in zip(found, kept, strict=True):
                ty = lane_type(x.type, lanes)
                where = lo.em.op(f"getelementptr {ty}, ptr {ptr}, i64 {lo.coord_text(index)}")
                lo.em.stmt(f"store {ty} {lo.text(x, lanes)}, ptr {where}")
        rows: list[Group] = []
        for i in range(lanes):
            group: Group = []
            for v, ptr in zip(op.inputs, kept, strict=True):
                ty = lane_type(elem_of(v.type), lanes)
                where = lo.em.op(f"getelementptr {ty}, ptr {ptr}, i64 {i}")
                group.append(make(elem_of(v.type), lanes, lo.em.here(f"load {ty}, ptr {where}")))
            rows.append(group)
        wide = Coord(first.base, first.terms, tuple(range(lanes)), shape[-2])
        for x, buffer in zip(fold_rows(lo, op, rows, lanes), out, strict=True):
            assert buffer is not None
            lo.to_buffer(buffer, Point((*outer, wide), lanes), x)

    def rows() -> None:
        if lanes == lo.facts.lanes and shape[-2] % lanes == 0:
            blocks = (*shape[:-2], shape[-2] // lanes)
            each(lo, Nest(blocks, tuple(range(len(blocks))), (), 1), several, unroll=False)
        else:
            rest = shape[:-1]
            each(lo, Nest(rest, tuple(range(len(rest))), (), 1), single)

    if len(shape) == 1:
        single(Point((), 1))
    else:
        whole_or_not(lo, op, rows)
    lo.memo = {}


class _Row:
    """Combines the vectors of one row, in registers that all rows use."""

    def __init__(self, lo: Lowering, op: ReduceOp, length: int, lanes: int):
        self.lo, self.op, self.length, self.lanes = lo, op, length, lanes
        vectors = length // lanes
        used = next(k for k in (ACCUMULATORS, 2, 1) if vectors % k == 0)
        self.cells = [Registers(lo, op.inputs, lanes) for _ in range(used)]
        self.more = vectors > used

    def folded(self, outer: tuple[Coord, ...]) -> Group:
        """Return one vector for each input: lanes are not combined with each other yet."""
        lo, op, lanes, length = self.lo, self.op, self.lanes, self.length
        lo.memo = {}

        def vector(base: Coord, k: int) -> Group:
            c = base.plus(Coord(k * lanes, (), None, k * lanes + 1))
            c = Coord(c.base, c.terms, tuple(range(lanes)) if lanes > 1 else None, length)
            lo.here = point((*outer, c), lanes)
            return group_at(lo, op, lo.here)

        for k, cell in enumerate(self.cells):
            cell.set(vector(Coord(0, (), None, length), k))
        if self.more:
            _accumulate(lo, op, self.cells, vector, (*outer, Coord()), lanes * len(self.cells))
        lo.memo = {}
        values = [cell.get() for cell in self.cells]
        while len(values) > 1:
            values = [combine(lo, op, a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]


def _accumulate(
    lo: Lowering,
    op: ReduceOp,
    cells: list[Registers],
    part: Callable[[Coord, int], Group],
    coords: Sequence[Coord],
    step: int,
) -> None:
    """Combine the rest of the axis, `step` elements a trip; `part(i, k)` is what cell k takes of the trip at i. If
    masks are true up to some index, whole trips below it need not test them. `coords`: where the other dimensions
    are."""
    shape, axis = shape_of(op.inputs[0].type), op.axis
    length, lanes = shape[axis], max(1, step // len(cells))

    def body(i: int | str, rows: Sequence[Row] = ()) -> None:
        lo.memo = {}
        base = lo.index(i, step, length)
        prefetch(lo, rows, base, step)
        for k, cell in enumerate(cells):
            cell.set(combine(lo, op, cell.get(), part(base, k)))

    if length // step <= 8 and length // lanes <= 8:
        for i in range(step, length, step):
            body(i)
        return
    plan = Nest(shape, tuple(d for d in range(len(shape)) if d != axis), (axis,), lanes)
    masks = [
        p
        for p in masks_of(lo, op.inputs, plan)
        if p.mask not in lo.assumed and all(coords[d].pattern is None for d in p.others(axis))
    ]
    rows = prefetched_rows(lo, op)
    prefetch(lo, rows, Coord(), step)
    if not masks:
        with lo.em.loop(step, length, step) as i:
            body(i, rows)
        return
    full, proven = split_bound(lo, (axis, length), list(coords), masks, step)
    full = lo.em.call("i64", "llvm.smax.i64", f"i64 {full}", f"i64 {step}")
    saved = lo.assumed
    lo.assumed = saved | proven
    with lo.em.counted(str(step), full, str(step), always=True, guarded=True) as i:
        body(i, rows)
    lo.assumed = saved
    _combine_masked(lo, op, cells, body, coords, (full, step, lanes))


def _combine_masked(
    lo: Lowering,
    op: ReduceOp,
    cells: list[Registers],
    body: Callable[[str], None],
    coords: Sequence[Coord],
    loop: tuple[str, int, int],
) -> None:
    """Combine what masks do not prove to be there, from `loop`'s first index on, until nothing changes any more."""
    full, step, lanes = loop
    end = settling(lo, op, coords, step)
    length = shape_of(op.inputs[0].type)[op.axis]
    with lo.em.counted(full, str(length), str(step), always=True, guarded=True) as i:
        before = [x for cell in cells for x in cell.get()] if end is not None else []
        body(i)
        if end is not None:
            end.check(i, before, [x for cell in cells for x in cell.get()])
    if end is not None:
        end.fill([b for v, b in lo.memo_buffers.items() if v in lo.memo_filled], lanes)


def vectors(lo: Lowering, op: CombineOp, shape: tuple[int, ...], width: int) -> int:
    """Return how many vectors side by side to combine vertically: several read whole cache lines of a row one after
    another, and their sums do not wait for one another."""
    last = len(shape) - 1
    if op.axis == last or width == 1 or shape[last] < 2 * width or len(op.inputs) > 2:
        return 1
    if any(gathers(lo, v, last, width) for v in op.inputs):
        return 1
    plan = repeated(lo, nest(lo, shape), op.inputs)
    return max(1, plan.times // len(op.inputs))


def _vertical(
    lo: Lowering,
    op: ReduceOp,
    shape: tuple[int, ...],
    rest: tuple[int, ...],
    out: list[Buffer | None],
    width: int,
) -> None:
    """Reduce with vectors over the other dimensions, which are combined along the axis one after another."""
    length, axis = shape[op.axis], op.axis
    plan = nest(lo, rest, lanes=width * vectors(lo, op, shape, width))
    cell = Registers(lo, op.inputs, plan.lanes)

    def body(at: Point) -> None:
        def along(c: Coord) -> Group:
            lo.here = point((*at.coords[:axis], c, *at.coords[axis:]), plan.lanes)
            return group_at(lo, op, lo.here)

        cell.set(along(Coord(0, (), None, length)))
        if length <= 4:
            for j in range(1, length):
                cell.set(combine(lo, op, cell.get(), along(Coord(j, (), None, length))))
        elif length > 1:
            coords = (*at.coords[:axis], Coord(), *at.coords[axis:])
            _accumulate(lo, op, [cell], lambda c, _: along(c), coords, 1)
            lo.memo = {}
        for x, buffer in zip(cell.get(), out, strict=True):
            assert buffer is not None
            lo.to_buffer(buffer, Point(at.coords, plan.lanes), x)

    each_column(lo, op, plan, body)
