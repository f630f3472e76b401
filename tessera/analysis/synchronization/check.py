"""Runs a module in a number of small worlds (arguments and data) until every op that matters has run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tessera.analysis.synchronization.flow import Enough
from tessera.analysis.synchronization.machine import Machine
from tessera.analysis.synchronization.plan import plan_of, touches
from tessera.analysis.synchronization.scalars import World
from tessera.analysis.synchronization.static import check_places
from tessera.ir import Module, Op
from tessera.ops import (
    AsyncCopyMbarrierArriveOp,
    Loop,
    MbarrierArriveExpectTxOp,
    MbarrierArriveOp,
    MbarrierWaitOp,
)

SIZES = (0, 256, 64, 1, 300, 512, 100, 128, 1024, 192, 32, 384)
"""Values of integer arguments. They serve as extents, so that loops over tiles have from none to some ten
iterations."""
LARGE = 20_000
"""One for tiles of thousands of elements, whose loops run where they have several iterations alone."""
SEEDS = 80
"""Worlds whose arguments differ from each other, for ops that the other worlds did not reach."""
FEWEST, USUAL = 6, 16
"""Worlds to run even if all ops have been seen, and the number of worlds after which loops may stay short."""
PATIENCE = 40
"""Worlds in succession that may reach nothing new while an op is missing."""
STEPS = 2_000  # instructions of one world, after which it counts as endless
TOTAL = 25_000  # instructions of all worlds, after which no further one begins
AT_BARRIERS = (
    MbarrierArriveOp, MbarrierArriveExpectTxOp, AsyncCopyMbarrierArriveOp, MbarrierWaitOp
)  # fmt: skip


@dataclass(slots=True)
class Coverage:
    """What the runs covered: ops that touch shared memory and did not run (`missed`); arrivals that nobody waited for
    and waits that added no knowledge (`idle`); the most iterations of each loop; the number of runs, of their steps,
    and of runs that were cut short."""

    missed: list[Op] = field(default_factory=lambda: [])
    idle: set[Op] = field(default_factory=lambda: set())
    trips: dict[Op, int] = field(default_factory=lambda: {})
    runs: int = 0
    steps: int = 0
    cut: int = 0


def check_synchronization(module: Module) -> Coverage:
    """Raise SynchronizationError at the first access that is not ordered. All passes must have run."""
    check_places(module)
    plan = plan_of(module)
    found = Coverage()
    every = {op for ops in plan.steps.values() for op in ops}
    wanted = {op for op in every if touches(op)}
    if not wanted:
        return found
    loops = {op for op in every if isinstance(op, Loop)}
    least = 2 * plan.slots + 2
    seen: dict[Op, int] = {}
    useful: set[Op] = set()

    def all_seen() -> bool:
        return all(op in seen for op in wanted)

    last = 0  # the last world that reached something new
    for number, world in enumerate(_worlds()):
        before = len(seen)
        _run(Machine(module, plan, world, STEPS), seen, useful, found)
        last = number if len(seen) > before else last
        if all_seen():
            long = number >= USUAL or all(seen.get(op, 0) >= least for op in loops)
            if not loops or (long and number >= FEWEST - 1):
                break
        elif found.steps > TOTAL or number - last > PATIENCE:
            break
    if found.cut and not all_seen():  # the missing ops may come after loops that are too long
        for world in _worlds(0):
            _run(Machine(module, plan, world, STEPS, least), seen, useful, found)
    found.idle = set(filter(_at_barrier, seen)) - useful
    found.missed = [op for op in wanted if op not in seen]
    found.trips = {op: seen.get(op, 0) for op in loops}
    return found


def _at_barrier(op: Op) -> bool:
    return isinstance(op, AT_BARRIERS)


def _run(machine: Machine, seen: dict[Op, int], useful: set[Op], found: Coverage) -> None:
    found.runs += 1
    limit = machine.left
    try:
        machine.run()
    except Enough:
        found.cut += 1
    found.steps += limit - machine.left
    for op, times in machine.seen.items():
        seen[op] = max(seen.get(op, 0), times)
    for barrier in machine.barriers.all():
        useful |= barrier.awaited | barrier.teaching


def _worlds(seeds: int = SEEDS) -> Iterator[World]:
    for size in SIZES:
        yield World(0, size)
    for programs in (3, 1):  # the first of several may have what there is
        yield World(0, LARGE, programs=programs)
    for seed in range(1, seeds + 1):
        yield World(seed, SIZES[seed % len(SIZES)], programs=1 + seed % 4, ctas=1 + seed % 3)
