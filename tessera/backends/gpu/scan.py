"""Lowers scans along an axis: within each thread, then over the totals of lanes, then over those of warps.

Coordinates along the axis rise with registers, then lanes, then warps (`is_scannable`). A thread scans its own run, and
only the last element of it, the total, takes part in the steps over lanes. Step k lets lanes whose bit k is set
combine with the total of the 2**k lanes in front of them. After it, all of a thread's elements but the last combine
with the total of the lane in front, once. Warps exchange their totals through shared memory (scan_warps.py): if by
one barrier, each thread combines those of the warps in front of its own. For n elements in a thread, 32 lanes and w
warps these are 2 n + 5 + w applications of the region at most, where a step of all elements for each bit of the axis
would take n each.
In a reverse scan all of it is turned.
"""

from __future__ import annotations

from tessera.analysis.scratch import axis_warp_bits
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies
from tessera.backends.gpu.reduce import Row
from tessera.backends.gpu.scan_steps import Scan, has, over_lanes
from tessera.backends.gpu.scan_warps import before_warp
from tessera.errors import InternalError
from tessera.layout.linear import LinearLayout
from tessera.ops import ScanOp


@lowers(ScanOp)
def _scan(fl: FunctionLowering, op: ScanOp) -> None:
    layout: LinearLayout = op.inputs[0].type.layout
    along = _rising(op, layout)
    runs = _runs(layout, op, along)
    scan = Scan(
        fl, op, [list(fl.get(v)) for v in op.inputs], runs, layout.axis_bits("lane", op.axis)
    )
    length = len(runs[0])
    for place in range(1, length):
        scan.set_column(place, scan.combined(scan.column(place - 1), scan.column(place)))
    totals = over_lanes(scan, scan.column(length - 1), fl.lane, scan.lanes)
    warps = before_warp(scan, layout, totals) if axis_warp_bits(layout, op.axis) else None
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


def _hand_down(scan: Scan, totals: list[Row], warps: tuple[str, list[Row]] | None) -> None:
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
            some = has(scan, fl.lane, scan.lanes, not scan.op.reverse)
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


def _neighbour(scan: Scan) -> str:
    """The lane in front along the axis; any lane for the first one."""
    w, lane, bits = scan.fl.w, scan.fl.lane, scan.lanes
    if scan.op.reverse:
        moved = w.pure(f"add i32 {w.pure(f'or i32 {lane}, {~bits}')}, 1")
    else:
        moved = w.pure(f"sub i32 {w.pure(f'and i32 {lane}, {bits}')}, 1")
    own = w.pure(f"and i32 {lane}, {~bits & 31}")
    return w.pure(f"or i32 {w.pure(f'and i32 {moved}, {bits}')}, {own}")
