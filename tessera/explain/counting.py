"""Counts what a kernel does: how often each op runs, and what each access of memory touches.

Some programs of the grid are walked through with NumPy. Only addresses, masks, bounds and conditions are computed
(`needed`), so that this is fast and nothing is written; the counts of a few programs stand for the whole grid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera import ops
from tessera.errors import TesseraError
from tessera.explain.memory import QuietMemory
from tessera.explain.needed import BLOCKS, GATHERS, POINTERS
from tessera.interp import EVALUATORS, Machine
from tessera.interp.effects import block_of, rows_of
from tessera.interp.machine import kernel_of
from tessera.interp.numerics import carrier
from tessera.ir import Block, Module, Op, Value, elem_of, shape_of

MOST_TRIPS = 192  # iterations of one loop that are walked through; the rest counts like their mean
MOST_PROGRAMS = 24
SECONDS = 1.5  # after which no further program is walked through
CONTROL = (ops.ForOp, ops.WhileOp, ops.IfOp, ops.CallOp, ops.WarpSpecializeOp)


@dataclass(slots=True)
class Count:
    """What one op does in the whole grid. `runs`: executions; of an access: `bytes` of active elements, `requests`
    (of warps on a GPU, of tiles on a CPU), `sectors` that these touch and the fewest that hold so many bytes
    (`ideal`)."""

    runs: float = 0.0
    bytes: float = 0.0
    requests: float = 0.0
    sectors: float = 0.0
    ideal: float = 0.0

    def add(self, other: Count, times: float) -> None:
        self.runs += times * other.runs
        self.bytes += times * other.bytes
        self.requests += times * other.requests
        self.sectors += times * other.sectors
        self.ideal += times * other.ideal

    def minus(self, other: Count) -> Count:
        return Count(
            self.runs - other.runs, self.bytes - other.bytes, self.requests - other.requests,
            self.sectors - other.sectors, self.ideal - other.ideal,
        )  # fmt: skip


Counts = dict[Op, Count]
# (op, addresses, mask or None) → a Count of one execution
Measure = Callable[[Op, np.ndarray, np.ndarray | None], Count]


@dataclass
class Work:
    """The counts of a launch, and whether parts of them were estimated."""

    counts: Counts = field(default_factory=dict[Op, Count])
    programs: int = 0
    walked: int = 0
    notes: dict[str, None] = field(default_factory=dict[str, None])
    trips: dict[Op, float] = field(default_factory=dict[Op, float])  # of loops, the mean


class Counter(Machine):
    """A machine that counts, and computes no more than what accesses and control flow depend on."""

    __slots__ = ("counts", "measure", "needed", "notes")

    def __init__(
        self, module: Module, memory: QuietMemory, grid: tuple[int, int, int], needed: set[Value], measure: Measure
    ) -> None:  # fmt: skip
        super().__init__(module, memory, grid)
        self.needed, self.measure = needed, measure
        self.counts: Counts = {}
        self.notes: dict[str, None] = {}

    def run_block(self, block: Block, args: Sequence[object]) -> list[object]:
        values = self.values
        values.update(zip(block.args, args, strict=True))
        for op in block:
            if op.terminator:
                return [values.get(v) for v in op.operands]
            count = self.counts.get(op)
            if count is None:
                count = self.counts[op] = Count()
            count.runs += 1
            if isinstance(op, CONTROL):
                self._control(op)
                continue
            where = self._accessed(op)
            if where is not None:
                count.add(self.measure(op, *where), 1.0)
            if (op.results and any(r in self.needed for r in op.results)) or self._stores_shared(
                op
            ):
                self._evaluate(op)
        return []

    def _stores_shared(self, op: Op) -> bool:
        return isinstance(op, ops.LocalStoreOp) and op.value in self.needed

    def _evaluate(self, op: Op) -> None:
        given = [self.values.get(v) for v in op.operands]
        try:
            out = EVALUATORS[type(op)](self, op, *given)
        except (TesseraError, TypeError, ValueError, AttributeError, IndexError, KeyError):
            self.notes["some addresses or conditions are not known before the launch"] = None
            out = [_zeros(r) for r in op.results]
            out = out[0] if len(out) == 1 else tuple(out)
        if len(op.results) == 1:
            self.values[op.results[0]] = out
        elif op.results:
            self.values.update(zip(op.results, out, strict=True))

    def _accessed(self, op: Op) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the addresses that an op accesses, and their mask."""
        if isinstance(op, POINTERS):
            mask = self.optional(op, "mask") if op.mask is not None else None
            if isinstance(op, ops.AsyncCopyOp) and op.runs is not None and not self.values[op.runs]:
                mask = np.zeros(np.shape(self.values[op.ptr]), bool)
            return np.asarray(self.values[op.ptr]), mask
        if isinstance(op, BLOCKS):
            return block_of(self.values[op.desc], [self.values[v] for v in op.offsets])
        if isinstance(op, GATHERS):
            return rows_of(*(self.values[v] for v in op.operands[:3]))
        return None

    # --- control flow ---------------------------------------------------------------------------------------
    def _control(self, op: Op) -> None:
        if isinstance(op, ops.WarpSpecializeOp):
            for role in (op.producer, op.transpose, op.consumers):
                if len(list(role)):
                    self.run_block(role, [])
            return
        if isinstance(op, ops.IfOp):
            out = self.run_block(op.then if self.values[op.condition] else op.orelse, [])
        elif isinstance(op, ops.ForOp):
            out = self._loop(op)
        elif isinstance(op, ops.WhileOp):
            out = self._while(op)
        else:
            assert isinstance(op, ops.CallOp)
            callee = op.resolve()
            assert callee is not None
            out = self.run_block(callee.body, [self.values.get(v) for v in op.args])
        self.values.update(zip(op.results, out, strict=True))

    def _loop(self, op: ops.ForOp) -> list[object]:
        lb, ub, step = (self.values[v] for v in (op.lb, op.ub, op.step))
        kind = np.asarray(lb).dtype
        trips = range(int(lb), int(ub), int(step) or 1)
        carried: list[object] = [self.values.get(v) for v in op.inits]
        before = self._inside(op) if len(trips) > MOST_TRIPS else {}
        for i in trips[:MOST_TRIPS]:
            carried = self.run_block(op.body, [np.asarray(i, kind), *carried])
        if len(trips) > MOST_TRIPS:
            self.notes[
                f"loops of more than {MOST_TRIPS} iterations count like their first ones"
            ] = None
            self._extrapolate(op, before, len(trips) / MOST_TRIPS - 1.0)
        return carried

    def _while(self, op: ops.WhileOp) -> list[object]:
        carried: list[object] = [self.values.get(v) for v in op.inits]
        for _ in range(MOST_TRIPS):
            condition, *carried = self.run_block(op.before, carried)
            if not condition:
                return carried
            carried = self.run_block(op.after, carried)
        self.notes[f"a `while` loop is counted with {MOST_TRIPS} iterations"] = None
        return carried

    def _inside(self, op: Op) -> Counts:
        """Return copies of the counts of the ops in a loop."""
        found: Counts = {}
        for x in op.walk():
            if x is not op and x in self.counts:
                found[x] = Count()
                found[x].add(self.counts[x], 1.0)
        return found

    def _extrapolate(self, op: Op, before: Counts, times: float) -> None:
        for x in op.walk():
            if x is not op and x in self.counts:
                self.counts[x].add(self.counts[x].minus(before.get(x, Count())), times)


def _zeros(v: Value) -> Any:
    elem = elem_of(v.type)
    try:
        return np.zeros(shape_of(v.type), carrier(elem))
    except (TypeError, KeyError, AttributeError):
        return None


def chosen_programs(total: int) -> list[tuple[int, float]]:
    """Return the numbers of the programs to walk through, and how many programs each of them stands for: all of a small
    grid, else programs at equal distances, and the last one, whose tiles may be cut."""
    if total <= MOST_PROGRAMS:
        return [(i, 1.0) for i in range(total)]
    others = MOST_PROGRAMS - 1
    each = (total - 1) / others
    # An odd distance, so that not all of them are of one column of the grid; the middle of the grid first.
    places = sorted(
        {int((k + 0.5) * each) | 1 for k in range(others)}, key=lambda i: abs(i - total // 2)
    )
    return [(total - 1, 1.0), *((i, (total - 1) / len(places)) for i in places)]


def count_work(
    module: Module, values: Sequence[object], memory: QuietMemory, grid: tuple[int, int, int], needed: set[Value],
    measure: Measure,
) -> Work:  # fmt: skip
    """Count what a launch of a module's kernel does."""
    kernel, total = kernel_of(module), grid[0] * grid[1] * grid[2]
    work, start = Work(programs=total), time.perf_counter()
    per_program: list[tuple[float, Counts]] = []
    for number, weight in chosen_programs(total):
        counter = Counter(module, memory, grid, needed, measure)
        x, y, z = number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
        counter.program = (x, y, z)
        with np.errstate(all="ignore"):
            for counter.rank in range(module.attrs.get("cluster", 1)):
                counter.run_block(kernel.body, values)
        per_program.append((weight, counter.counts))
        work.notes |= counter.notes
        if time.perf_counter() - start > SECONDS and len(per_program) > 1:
            break
    work.walked = len(per_program)
    scale = total / sum(weight for weight, _ in per_program) if per_program else 0.0
    for weight, counts in per_program:
        for op, count in counts.items():
            work.counts.setdefault(op, Count()).add(count, weight * scale)
    if memory.guessed:
        work.notes[
            "values in memory decide what is done, and were taken as 0 where there is no data"
        ] = None
    for op in work.counts:
        if isinstance(op, ops.ForOp) and op.body.first is not None and work.counts[op].runs:
            inner = work.counts.get(op.body.first)
            work.trips[op] = inner.runs / work.counts[op].runs if inner is not None else 0.0
    return work
