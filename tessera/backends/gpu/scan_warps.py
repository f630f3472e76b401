"""Lowers the last step of scans, over warps, which exchange their totals through shared memory.

Either each thread reads the totals of the warps in front of its own and combines them; or, as in reductions
(`shares_parts`), each thread has one total or a few, threads that are neighbours scan those of one place along the
axis, and after a second barrier every thread reads what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.analysis.scratch import area, axis_warp_bits, result_elements, shares_parts
from tessera.backends.gpu.parts import Slots, part_addresses, parts_of, reader_columns, spread
from tessera.backends.gpu.reduce import Row, read_parts, read_results
from tessera.backends.gpu.scan_steps import Scan, has, over_lanes
from tessera.backends.gpu.shared import load_elements, store_elements
from tessera.ir import elem_of
from tessera.ir.applications import apply
from tessera.layout.linear import LinearLayout


@dataclass(slots=True)
class _Exchange:
    """`rest`: the layout of the totals, without the axis. `warps`: the bits of the warp along the axis, which number
    `parts` parts of it. `slots`: where the totals lie in shared memory."""

    scan: Scan
    rest: LinearLayout
    warps: list[int]
    slots: Slots

    @property
    def parts(self) -> int:
        return 1 << len(self.warps)

    def areas(self, start: int) -> list[tuple[Any, int]]:
        """The element type of each operand, and where the area for its totals starts."""
        found: list[tuple[Any, int]] = []
        for v in self.scan.op.inputs:
            elem = elem_of(v.type)
            found.append((elem, start))
            start += area(elem, self.rest.num_elements * self.parts)
        return found

    def size(self) -> int:
        """Bytes of the areas."""
        count = self.rest.num_elements * self.parts
        return sum(area(elem_of(v.type), count) for v in self.scan.op.inputs)


def before_warp(scan: Scan, layout: LinearLayout, totals: list[Row]) -> tuple[str, list[Row]]:
    """Return whether there are warps in front of this one along the axis, and what their totals combine to."""
    fl, op = scan.fl, scan.op
    rest, kept = layout.drop_dim(op.axis), {min(run) for run in scan.runs}
    rest = rest.map_columns(
        "register", [c for b, c in enumerate(rest.columns("register")) if 1 << b in kept]
    )
    warps = axis_warp_bits(layout, op.axis)
    mask = sum(1 << b for b in warps)
    shared = shares_parts(op) and apply("share-parts", op)
    slots = spread(rest, 1 << len(warps)) if shared else parts_of(rest, 1 << len(warps), False)
    exchange = _Exchange(scan, rest, warps, slots)
    last = 0 if op.reverse else scan.lanes
    owner = fl.owner_mask(rest, distinct_warps=mask, lanes_set=last)
    areas = exchange.areas(op.attrs["scratch"])
    for (elem, start), row in zip(areas, totals, strict=True):
        write = part_addresses(fl, rest, elem, start, slots, warps=warps)
        for i in range(0, len(row), slots.together):
            store_elements(fl, elem, write[i], row[i : i + slots.together], owner)
    fl.target.barrier(fl.w)
    with fl.w.hoist():
        some = has(scan, fl.warp, mask, not op.reverse)
    return some, _scanned(exchange) if shared else _combined(exchange)


def _combined(x: _Exchange) -> list[Row]:
    """Combine the totals of the warps in front, in each thread."""
    scan, fl, parts = x.scan, x.scan.fl, x.parts
    order = range(parts - 1, 0, -1) if scan.op.reverse else range(parts - 1)
    reads = [
        (elem, part_addresses(fl, x.rest, elem, start, x.slots))
        for elem, start in x.areas(scan.op.attrs["scratch"])
    ]
    found = read_parts(fl, reads, range(len(scan.runs)), x.slots, parts, order)
    before: list[Row] | None = None
    result: list[Row] | None = None
    for part, here in zip(order, found, strict=True):
        before = here if before is None else scan.combined(before, here)
        result = before if result is None else scan.chosen(_passed(x, part), before, result)
    assert result is not None
    return result


def _passed(x: _Exchange, part: int) -> str:
    """An i1: whether the part of that number lies in front of this warp's."""
    w, number = x.scan.fl.w, "0"
    with w.hoist():
        for i, bit in enumerate(x.warps):
            moved = w.pure(f"lshr i32 {x.scan.fl.warp}, {bit - i}") if bit != i else x.scan.fl.warp
            number = w.pure(f"or i32 {number}, {w.pure(f'and i32 {moved}, {1 << i}')}")
        return w.pure(f"icmp {'slt' if x.scan.op.reverse else 'sgt'} i32 {number}, {part}")


def _scanned(x: _Exchange) -> list[Row]:
    """Let neighbouring lanes scan the totals of one place; after another barrier each thread reads the ones that are
    in front of its warp's. They are written where the next warp reads, so that reading takes no arithmetic."""
    scan, fl, op = x.scan, x.scan.fl, x.scan.op
    areas, low = x.areas(op.attrs["scratch"]), x.parts - 1
    columns = reader_columns(fl, x.rest.num_elements * x.parts)
    with fl.w.hoist():
        turned = fl.w.pure(f"lshr i32 {fl.thread}, 5")
        index = fl.w.pure(f"xor i32 {fl.lane}, {fl.w.pure(f'and i32 {turned}, {low}')}")
        moved = fl.w.pure(f"add i32 {index}, {-1 if op.reverse else 1}")
        next_part = fl.w.pure(f"and i32 {moved}, {low}")
        owner = _has_part(x, columns[2])
    rows: list[Row] = []
    for elem, start in areas:
        size = elem.storage_bytes
        read = fl.shared_addresses(start, *([c * size for c in d] for d in columns))
        rows.append([load_elements(fl, elem, address, 1)[0] for address in read])
    rows = over_lanes(scan, rows, index, low)
    results = x.areas(op.attrs["scratch"] + x.size())
    for (elem, start), row in zip(results, rows, strict=True):
        size, count = elem.storage_bytes, result_elements(op)
        places = ([x.slots.element_at(c) * size for c in d] for d in columns)
        with fl.w.hoist():
            apart = fl.w.pure(f"mul i32 {next_part}, {count * size}")
        for address, value in zip(fl.shared_addresses(start, *places), row, strict=True):
            with fl.w.hoist():
                address = fl.w.add("i32", address, apart)
            store_elements(fl, elem, address, [value], owner)
    fl.target.barrier(fl.w)
    return [_before(x, elem, start) for elem, start in results]


def _has_part(x: _Exchange, warp_columns: Sequence[int]) -> str:
    """An i1: whether the thread's warp is one of those that scan totals, if not all are needed."""
    w = x.scan.fl.w
    idle = sum(1 << b for b, c in enumerate(warp_columns) if c == 0)
    if not idle:
        return "true"
    return w.pure(f"icmp eq i32 {w.pure(f'and i32 {x.scan.fl.warp}, {idle}')}, 0")


def _before(x: _Exchange, elem: Any, start: int) -> Row:
    """Read what the totals in front of this warp's come to."""
    count = x.rest.num_elements
    parts = tuple(count << i for i in range(len(x.warps)))
    return read_results(x.scan.fl, elem, x.rest, range(len(x.scan.runs)), start, x.warps, parts)
