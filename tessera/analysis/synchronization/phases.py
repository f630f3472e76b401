"""Keeps the phases of mbarriers: their arrivals, their bytes, and the knowledge that a wait for a phase acquires.

The order in which the roles are run here does not matter: a wait acquires what the earliest phase releases that lets
it pass, counted from those that the waiter knows to have ended. The checks ensure that phases and arrivals match in
every other order, too: a warp that arrives knows that the phase before has ended, no warp arrives too often, and a
phase does not end before all have observed the one before."""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.analysis.synchronization.clocks import Clock, Places, join
from tessera.errors import SynchronizationError
from tessera.ir import Op

Event = tuple[int, int]


@dataclass(slots=True)
class Barrier:
    """One mbarrier: `count` arrivals and all the bytes that were announced end a phase."""

    init: Op
    name: str
    place: int
    count: int
    left: int
    released: Clock  # what the arrivals of all phases so far release
    control: Clock  # what comes before these arrivals, whether others see it or not
    announced: int = 0
    brought: int = 0
    ended: int = 0
    history: list[Clock] = field(default_factory=lambda: [])
    waiting: list[tuple[int, Event, Op]] = field(default_factory=lambda: [])
    arrivals: list[tuple[int, Op]] = field(default_factory=lambda: [])  # (phase, op) not waited for
    awaited: set[Op] = field(default_factory=lambda: set())  # ops whose arrivals were waited for
    teaching: set[Op] = field(default_factory=lambda: set())  # waits after which a warp knew more
    remote: bool = False  # other CTAs of the cluster arrive or copy
    copied: bool = False  # the TMA unit counts bytes here

    def arrive(self, op: Op, times: int, knows: Clock, hands: Clock, announced: int = 0) -> None:
        """Record `times` arrivals of a warp that `knows` something and releases (`hands`) a part of it."""
        self._in_phase(op, knows, "arrives at")
        if times > self.left:
            raise SynchronizationError(
                f"{op.opcode} arrives at {self.name} too often: a phase has {self.count} arrivals", loc=op.loc
            )  # fmt: skip
        self.arrivals.append((self.ended, op))
        self.left -= times
        self.announced += announced
        join(self.released, hands)
        join(self.control, knows)
        self._end_phase(op)

    def bring(self, op: Op, size: int, knows: Clock) -> Event:
        """Record the bytes of a copy, and return the event of their arrival."""
        self._in_phase(op, knows, "copies for")
        self.brought, self.copied = self.brought + size, True
        event = self.place, self.ended + 1
        join(self.released, knows)
        join(self.control, knows)
        self._end_phase(op)
        return event

    def _in_phase(self, op: Op, knows: Clock, does: str) -> None:
        if knows[self.place] < self.ended:
            raise SynchronizationError(
                f"{op.opcode} {does} {self.name} without knowing that its phase {self.ended - 1} has ended",
                loc=op.loc,
            )

    def _end_phase(self, op: Op) -> None:
        if self.left:
            return
        if self.brought > self.announced:
            raise SynchronizationError(
                f"copies bring {self.brought} bytes to {self.name}, where {self.announced} are expected", loc=op.loc
            )  # fmt: skip
        if self.brought < self.announced:
            return
        for target, (place, number), wait in self.waiting:
            if target <= self.ended and self.control[place] < number:
                raise _overtaken(self, wait, op)
        self.waiting = [x for x in self.waiting if x[0] > self.ended]
        self.left, self.announced, self.brought = self.count, 0, 0
        self.ended += 1
        self.released[self.place] = self.ended
        self.history.append(list(self.released))

    def target(self, knows: Clock, parity: int) -> int:
        """Return how many phases have certainly ended when a wait for `parity` passes."""
        known = knows[self.place]
        return known if known & 1 != parity else known + 1

    def wait(self, op: Op, look: int, clock: Clock, target: int) -> None:
        """Let a warp, whose tests of barriers are counted at `look`, go on after `target` phases."""
        if self.ended > target:
            raise _overtaken(self, op, op)
        if target > clock[self.place]:
            join(clock, self.history[target - 1])
            self.teaching.add(op)
        clock[look] += 1
        self.awaited.update(by for phase, by in self.arrivals if phase < target)
        self.arrivals = [x for x in self.arrivals if x[0] >= target]
        self.waiting.append((target, (look, clock[look]), op))


def _overtaken(barrier: Barrier, wait: Op, op: Op) -> SynchronizationError:
    error = SynchronizationError(
        f"{barrier.name} may begin its next phase before a {wait.opcode} has seen this one", loc=wait.loc
    )  # fmt: skip
    return error.note(f"the phase is ended by {op.opcode}{_at(op)}") if op is not wait else error


def _at(op: Op) -> str:
    return f" at {op.loc.short()}" if op.loc is not None else ""


class Barriers:
    """All mbarriers of a program, by the row that holds them and their number."""

    def __init__(self, places: Places):
        self.places = places
        self.rows: dict[Op, list[Barrier]] = {}
        self.count = 0

    def init(self, op: Op, row: Op, size: int, arrivals: int) -> None:
        """Create barriers in phase 0."""
        name = row.results[0].name or "the barrier"
        found: list[Barrier] = []
        for i in range(size):
            place = self.places.phases(self.count)
            self.count += 1
            start = self.places.start
            found.append(Barrier(op, f"`{name}`[{i}]", place, arrivals, arrivals, start(), start()))
        self.rows[row] = found

    def all(self) -> list[Barrier]:
        return [b for row in self.rows.values() for b in row]
