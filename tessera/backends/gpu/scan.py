"""Lowers scans along an axis: one step for each bit of the coordinate, from the lowest up.

Before the step of bit k, every element holds the combination of its aligned run of 2**k elements up to itself. In the
step, elements whose bit k is set combine with the total of the preceding run, held by its last element: the
element with bit k clear and all lower bits set. That element is in another register, in another lane (shuffle) or in
another warp (shared memory), depending on the layout bits along the axis. A reverse scan swaps set and clear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.analysis.scratch import area
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.memory import copies
from tessera.backends.gpu.reduce import Row, combine, shuffle_index
from tessera.backends.gpu.shared import load_elements, store_elements
from tessera.errors import InternalError
from tessera.ir import elem_of
from tessera.layout.linear import LinearLayout
from tessera.ops import ScanOp


@dataclass(slots=True)
class _State:
    """The registers of each operand, and the masks of the bits whose steps are done."""

    rows: list[Row]
    register: int = 0
    lane: int = 0
    warp: int = 0
    exchanged: bool = False


@lowers(ScanOp)
def _scan(fl: FunctionLowering, op: ScanOp) -> None:
    layout: LinearLayout = op.inputs[0].type.layout
    if not layout.is_axis_separable(op.axis):
        raise InternalError(f"cannot scan axis {op.axis} of {layout}", loc=op.loc)
    state = _State([list(fl.get(v)) for v in op.inputs])
    same = layout.register_representatives()
    live = [i for i, first in enumerate(same) if i == first]
    for _, kind, bit in _steps(layout, op.axis):
        if kind == "register":
            _register_step(fl, op, state, bit, live)
            state.register |= 1 << bit
        else:
            _thread_step(fl, op, state, kind, bit, live)
            setattr(state, kind, getattr(state, kind) | 1 << bit)
    for result, row in zip(op.results, state.rows):
        fl.set(result, copies(layout, row))


def _steps(layout: LinearLayout, axis: int) -> list[tuple[int, str, int]]:
    """Return (coordinate, kind, bit) of the bits along the axis, lowest coordinate first, without copies."""
    found: dict[int, tuple[int, str, int]] = {}
    for kind in ("register", "lane", "warp"):
        along = layout.axis_bits(kind, axis)
        for bit, column in enumerate(layout.columns(kind)):
            if along >> bit & 1:
                found.setdefault(column, (column, kind, bit))
    return [found[c] for c in sorted(found)]


def _total(state: _State, op: ScanOp, register: int) -> int:
    """Return the register of the run's last element (in reverse: its first)."""
    return register & ~state.register if op.reverse else register | state.register


def _register_step(
    fl: FunctionLowering, op: ScanOp, state: _State, bit: int, live: list[int]
) -> None:
    flag = 1 << bit
    takers = [i for i in live if bool(i & flag) != op.reverse]
    sources = [_total(state, op, i ^ flag) for i in takers]
    totals = _fetch(fl, op, state, sources, 0, 0)
    new = combine(fl, op.combine, totals, [[row[i] for i in takers] for row in state.rows])
    for row, values in zip(state.rows, new):
        for i, x in zip(takers, values):
            row[i] = x


def _thread_step(
    fl: FunctionLowering, op: ScanOp, state: _State, kind: str, bit: int, live: list[int]
) -> None:
    w, flag = fl.w, 1 << bit
    sources = [_total(state, op, i) for i in live]
    lane, warp = (flag, 0) if kind == "lane" else (0, flag)
    totals = _fetch(fl, op, state, sources, lane, warp)
    new = combine(fl, op.combine, totals, [[row[i] for i in live] for row in state.rows])
    index = fl.lane if kind == "lane" else fl.warp
    with w.hoist():
        takes = w.pure(
            f"icmp {'eq' if op.reverse else 'ne'} i32 {w.pure(f'and i32 {index}, {flag}')}, 0"
        )
    for v, row, values in zip(op.inputs, state.rows, new):
        t = fl.register_types(v.type)
        for i, x in zip(live, values):
            row[i] = w.pure(f"select i1 {takes}, {t} {x}, {t} {row[i]}")


def _fetch(
    fl: FunctionLowering, op: ScanOp, state: _State, sources: list[int], lane: int, warp: int
) -> list[Row]:
    """Return `sources` of the thread that holds the totals: bits `lane` and `warp` flipped, done bits set."""
    if state.warp or warp:
        return _through_shared(fl, op, state, sources, lane, warp)
    if not (state.lane or lane):
        return [[row[s] for s in sources] for row in state.rows]
    place = _place(fl, fl.lane, state.lane, lane, op.reverse)
    result: list[Row] = []
    for v, row in zip(op.inputs, state.rows):
        moved = {
            s: shuffle_index(fl, elem_of(v.type), row[s], place) for s in dict.fromkeys(sources)
        }
        result.append([moved[s] for s in sources])
    return result


def _place(fl: FunctionLowering, index: str, done: int, flag: int, reverse: bool) -> str:
    """Return the lane or warp of the totals, for threads that take them."""
    w = fl.w
    setting, clearing = (flag, done) if reverse else (done, flag)
    with w.hoist():
        if clearing:
            index = w.pure(f"and i32 {index}, {~clearing}")
        return w.pure(f"or i32 {index}, {setting}") if setting else index


def _through_shared(
    fl: FunctionLowering, op: ScanOp, state: _State, sources: list[int], lane: int, warp: int
) -> list[Row]:
    """Let each thread write its totals and read another thread's: slot s of thread t is at (s * threads + t)."""
    w = fl.w
    if state.exchanged:
        fl.target.barrier(w)
    state.exchanged = True
    slots = {s: n for n, s in enumerate(dict.fromkeys(sources))}
    threads = 32 * fl.num_warps
    source = w.add(
        "i32",
        _place(fl, fl.lane, state.lane, lane, op.reverse),
        w.mul("i32", _place(fl, fl.warp, state.warp, warp, op.reverse), "32"),
    )
    start: int = op.attrs["scratch"]
    reads: list[tuple[Any, str]] = []
    for v, row in zip(op.inputs, state.rows):
        elem = elem_of(v.type)
        size = elem.storage_bytes
        base = w.add("i32", fl.shared_base(), str(start))
        mine = w.add("i32", base, w.mul("i32", fl.thread, str(size)))
        for s, n in slots.items():
            store_elements(fl, elem, w.add("i32", mine, str(n * threads * size)), [row[s]])
        reads.append((elem, w.add("i32", base, w.mul("i32", source, str(size)))))
        start += area(elem, threads * len(slots))
    fl.target.barrier(w)
    result: list[Row] = []
    for elem, at in reads:
        step = threads * elem.storage_bytes
        got = {
            s: load_elements(fl, elem, w.add("i32", at, str(n * step)), 1)[0]
            for s, n in slots.items()
        }
        result.append([got[s] for s in sources])
    return result
