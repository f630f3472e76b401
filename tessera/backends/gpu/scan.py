"""Lowers scans along an axis: within each thread, then over the totals of lanes, then over those of warps.

Coordinates along the axis rise with registers, then lanes, then warps (`is_scannable`). A thread scans its own run, and
only the last element of it, the total, takes part in the steps over lanes. Step k lets lanes whose bit k is set
combine with the total of the 2**k lanes in front of them. After it, all of a thread's elements but the last combine
with the total of the lane in front, once. Warps exchange their totals through shared memory, by one barrier: each
thread combines those of the warps in front of its own. For n elements in a thread, 32 lanes and w warps these are
2 n + 5 + w applications of the region at most, where a step of all elements for each bit of the axis would take n each.
In a reverse scan all of it is turned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.analysis.scratch import area, axis_warp_bits
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies
from tessera.backends.gpu.parts import part_addresses, parts_of
from tessera.backends.gpu.reduce import Row, combine, shuffle_index
from tessera.backends.gpu.shared import load_elements, store_elements
from tessera.errors import InternalError
from tessera.ir import elem_of
from tessera.layout.linear import LinearLayout
from tessera.ops import ScanOp


@dataclass(slots=True)
class _Scan:
    """`runs`: the registers of a thread that lie along the axis, in the order of the scan, for each place outside of
    the axis. `lanes`: the bits of the lane along the axis."""

    fl: FunctionLowering
    op: ScanOp
    rows: list[Row]
    runs: list[list[int]]
    lanes: int

    def column(self, place: int) -> list[Row]:
        """The registers at one place of every run, by operand."""
        return [[row[run[place]] for run in self.runs] for row in self.rows]

    def set_column(self, place: int, values: list[Row]) -> None:
        for row, new in zip(self.rows, values):
            for run, x in zip(self.runs, new):
                row[run[place]] = x

    def combined(self, first: list[Row], second: list[Row]) -> list[Row]:
        return combine(self.fl, self.op.combine, first, second)

    def chosen(self, condition: str, new: list[Row], old: list[Row]) -> list[Row]:
        """Select between rows by an i1 of the thread."""
        out: list[Row] = []
        for v, a, b in zip(self.op.inputs, new, old):
            t = self.fl.register_types(v.type)
            pairs = zip(a, b)
            out.append(
                [self.fl.w.pure(f"select i1 {condition}, {t} {x}, {t} {y}") for x, y in pairs]
            )
        return out

    def from_lane(self, values: list[Row], lane: str) -> list[Row]:
        return [
            [shuffle_index(self.fl, elem_of(v.type), x, lane) for x in row]
            for v, row in zip(self.op.inputs, values)
        ]


@lowers(ScanOp)
def _scan(fl: FunctionLowering, op: ScanOp) -> None:
    layout: LinearLayout = op.inputs[0].type.layout
    along = _rising(op, layout)
    runs = _runs(layout, op, along)
    scan = _Scan(
        fl, op, [list(fl.get(v)) for v in op.inputs], runs, layout.axis_bits("lane", op.axis)
    )
    length = len(runs[0])
    for place in range(1, length):
        scan.set_column(place, scan.combined(scan.column(place - 1), scan.column(place)))
    totals = _over_lanes(scan, scan.column(length - 1)) if scan.lanes else scan.column(length - 1)
    warps = _over_warps(scan, layout, totals) if axis_warp_bits(layout, op.axis) else None
    _hand_down(scan, totals, warps)
    for result, row in zip(op.results, scan.rows):
        fl.set(result, copies(layout, row))


def _rising(op: ScanOp, layout: LinearLayout) -> list[int]:
    """Return the bits of the register along the axis, the lowest coordinate first."""
    columns = {d: layout.columns(d) for d in ("register", "lane", "warp")}
    bits = {
        d: [b for b in range(len(c)) if layout.axis_bits(d, op.axis) >> b & 1]
        for d, c in columns.items()
    }
    bits["register"].sort(key=lambda b: columns["register"][b])
    order = [columns[d][b] for d in bits for b in bits[d]]
    if not layout.is_axis_separable(op.axis) or sorted(set(order)) != order:
        raise InternalError(f"cannot scan axis {op.axis} of {layout}", loc=op.loc)
    return bits["register"]


def _runs(layout: LinearLayout, op: ScanOp, along: list[int]) -> list[list[int]]:
    same = layout.register_representatives()
    mask = sum(1 << b for b in along)
    firsts = [i for i, first in enumerate(same) if i == first and not i & mask]
    steps = [sum(1 << b for k, b in enumerate(along) if n >> k & 1) for n in range(1 << len(along))]
    return [[i | s for s in (reversed(steps) if op.reverse else steps)] for i in firsts]


def _over_lanes(scan: _Scan, totals: list[Row]) -> list[Row]:
    """Scan the totals over the lanes along the axis."""
    w, done = scan.fl.w, 0
    for bit in range(5):
        flag = 1 << bit
        if not scan.lanes & flag:
            continue
        setting, clearing = (flag, done) if scan.op.reverse else (done, flag)
        with w.hoist():
            source = w.pure(f"and i32 {scan.fl.lane}, {~clearing}") if clearing else scan.fl.lane
            source = w.pure(f"or i32 {source}, {setting}") if setting else source
            takes = _has(scan, scan.fl.lane, flag, not scan.op.reverse)
        new = scan.combined(scan.from_lane(totals, source), totals)
        totals = scan.chosen(takes, new, totals)
        done |= flag
    return totals


def _has(scan: _Scan, index: str, bits: int, some: bool) -> str:
    """An i1: whether `index` has some of the bits; if not `some`: whether it lacks some of them."""
    w = scan.fl.w
    found = w.pure(f"and i32 {index}, {bits}")
    return w.pure(f"icmp ne i32 {found}, {0 if some else bits}")


def _over_warps(scan: _Scan, layout: LinearLayout, totals: list[Row]) -> tuple[str, list[Row]]:
    """Return whether there are warps in front of this one, and what their totals combine to."""
    fl, op = scan.fl, scan.op
    warps = axis_warp_bits(layout, op.axis)
    parts, mask = 1 << len(warps), sum(1 << b for b in warps)
    rest = layout.drop_dim(op.axis)
    kept = {min(run) for run in scan.runs}
    rest = rest.map_columns(
        "register", [c for b, c in enumerate(rest.columns("register")) if 1 << b in kept]
    )
    if scan.lanes:
        with fl.w.hoist():
            change = (
                f"and i32 {fl.lane}, {~scan.lanes}"
                if op.reverse
                else f"or i32 {fl.lane}, {scan.lanes}"
            )
            last = fl.w.pure(change)
        totals = scan.from_lane(totals, last)
    owner = fl.owner_mask(rest, distinct_warps=mask)
    slots = parts_of(rest, parts, True)
    start: int = op.attrs["scratch"]
    reads: list[tuple[Any, Row]] = []
    for v, row in zip(op.inputs, totals):
        elem = elem_of(v.type)
        for address, x in zip(
            part_addresses(fl, rest, elem, start, slots, warps=warps), row, strict=True
        ):
            store_elements(fl, elem, address, [x], owner)
        reads.append((elem, part_addresses(fl, rest, elem, start, slots)))
        start += area(elem, rest.num_elements * parts)
    fl.target.barrier(fl.w)
    found = [[load_elements(fl, elem, a, parts) for a in addresses] for elem, addresses in reads]
    order = range(parts - 1, 0, -1) if op.reverse else range(parts - 1)
    before: list[Row] | None = None
    result: list[Row] | None = None
    for part in order:
        here = [[loaded[part] for loaded in row] for row in found]
        before = here if before is None else scan.combined(before, here)
        result = (
            before if result is None else scan.chosen(_passed(scan, warps, part), before, result)
        )
    assert result is not None
    with fl.w.hoist():
        some = _has(scan, fl.warp, mask, not op.reverse)
    return some, result


def _passed(scan: _Scan, warps: list[int], part: int) -> str:
    """An i1: whether the part of that number lies in front of this warp's."""
    w, number = scan.fl.w, "0"
    with w.hoist():
        for i, bit in enumerate(warps):
            moved = w.pure(f"lshr i32 {scan.fl.warp}, {bit - i}") if bit != i else scan.fl.warp
            number = w.pure(f"or i32 {number}, {w.pure(f'and i32 {moved}, {1 << i}')}")
        return w.pure(f"icmp {'slt' if scan.op.reverse else 'sgt'} i32 {number}, {part}")


def _hand_down(scan: _Scan, totals: list[Row], warps: tuple[str, list[Row]] | None) -> None:
    """Combine each element with the totals in front of its thread."""
    fl, last = scan.fl, len(scan.runs[0]) - 1
    whole = (
        totals if warps is None else scan.chosen(warps[0], scan.combined(warps[1], totals), totals)
    )
    if scan.lanes or warps is not None:
        scan.set_column(last, whole)
    if last == 0 or not (scan.lanes or warps is not None):
        return
    some, prefix = "", totals
    if scan.lanes:
        with fl.w.hoist():
            some = _has(scan, fl.lane, scan.lanes, not scan.op.reverse)
            before = _neighbour(scan)
        prefix = scan.from_lane(whole, before)
        if warps is not None:
            prefix = scan.chosen(some, prefix, warps[1])
            some = fl.w.pure(f"or i1 {some}, {warps[0]}")
    elif warps is not None:
        some, prefix = warps
    for place in range(last):
        old = scan.column(place)
        scan.set_column(place, scan.chosen(some, scan.combined(prefix, old), old))


def _neighbour(scan: _Scan) -> str:
    """The lane in front along the axis; any lane for the first one."""
    w, lane, bits = scan.fl.w, scan.fl.lane, scan.lanes
    if scan.op.reverse:
        moved = w.pure(f"add i32 {w.pure(f'or i32 {lane}, {~bits}')}, 1")
    else:
        moved = w.pure(f"sub i32 {w.pure(f'and i32 {lane}, {bits}')}, 1")
    own = w.pure(f"and i32 {lane}, {~bits & 31}")
    return w.pure(f"or i32 {w.pure(f'and i32 {moved}, {bits}')}, {own}")
