"""Keeps vector clocks: the events that a warp is known to come after, as one row of numbers.

A clock has, for each representative warp, how far that warp has come (`epoch`) and how many of its groups of
asynchronous copies have landed (`copies`), both a second time for what has passed a fence between the proxies
(`fenced`), then how many of its bulk groups have been read (`bulk`) and how often it has tested barriers (`looks`).
The number of finished MMAs of each warpgroup (`mmas`) and of ended phases of each barrier in shared memory (`phases`)
follow. An event is a place in the clock and a number: a warp whose clock has at least that number there is ordered
after the event. Two clocks join by their maxima."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Clock = list[int]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the numbers stand in a clock of so many warps, warpgroups and barriers."""

    warps: int
    groups: int
    barriers: int

    @property
    def size(self) -> int:
        return 6 * self.warps + self.groups + self.barriers

    def start(self) -> Clock:
        """Return the clock of a warp that is ordered after nothing."""
        return [0] * self.size

    def copies(self, warp: int) -> int:
        return self.warps + warp

    def fenced(self, place: int) -> int:
        """The place for events of `place` (an epoch, or copies) that have passed a fence."""
        return place + 2 * self.warps

    def crosses(self, place: int) -> bool:
        """Whether events of `place` are of the generic proxy, which the other proxy sees only after a fence."""
        return place < 2 * self.warps

    def bulk(self, warp: int) -> int:
        return 4 * self.warps + warp

    def looks(self, warp: int) -> int:
        return 5 * self.warps + warp

    def mmas(self, group: int) -> int:
        return 6 * self.warps + group

    def phases(self, barrier: int) -> int:
        return 6 * self.warps + self.groups + barrier

    def fence(self, clock: Clock) -> None:
        """Record that all events of the generic proxy in this clock have passed a fence."""
        n = 2 * self.warps
        clock[n : 2 * n] = clock[:n]


def join(clock: Clock, other: Clock) -> None:
    clock[:] = map(max, clock, other)


def joined(clocks: Iterable[Clock]) -> Clock:
    return [max(column) for column in zip(*clocks, strict=True)]
