"""Takes the steps that scans consist of: applications of the region to rows of registers, scans over lanes."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.backends.gpu.lowering import FunctionLowering
from tessera.backends.gpu.reduce import Row, combine, shuffle_index
from tessera.ir import elem_of
from tessera.ops import ScanOp


@dataclass(slots=True)
class Scan:
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


def over_lanes(scan: Scan, totals: list[Row], index: str, bits: int) -> list[Row]:
    """Scan the totals over lanes that differ in the `bits` of `index`, which is the lane or the lane xor an index that
    its warp has in common."""
    w, done, lane = scan.fl.w, 0, scan.fl.lane
    for bit in range(5):
        flag = 1 << bit
        if not bits & flag:
            continue
        setting, clearing = (flag, done) if scan.op.reverse else (done, flag)
        with w.hoist():
            source = w.pure(f"and i32 {index}, {~clearing}") if clearing else index
            source = w.pure(f"or i32 {source}, {setting}") if setting else source
            if index != lane:
                source = w.pure(f"xor i32 {w.pure(f'xor i32 {source}, {index}')}, {lane}")
            takes = has(scan, index, flag, not scan.op.reverse)
        new = scan.combined(scan.from_lane(totals, source), totals)
        totals = scan.chosen(takes, new, totals)
        done |= flag
    return totals


def has(scan: Scan, index: str, bits: int, some: bool) -> str:
    """An i1: whether `index` has some of the bits; if not `some`: whether it lacks some of them."""
    w = scan.fl.w
    found = w.pure(f"and i32 {index}, {bits}")
    return w.pure(f"icmp ne i32 {found}, {0 if some else bits}")
