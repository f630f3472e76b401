"""Chooses where native code that launches kernels stops and begins again, since memory is taken and let go there alone.

launch f (x) → a       100 MB               launch f (x) → a
launch g (a) → b       1 MB          →      launch g (a) → b
launch h (b) → y       100 MB, a result     --                      a goes, then y is taken
                                            launch h (b) → y

All launches that follow each other are one call of native code, a *group*: what one of them writes is taken before the
first, and what nobody needs any more goes behind the last. A further call takes about a microsecond of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate

# The part of a graph's peak that has to be saved for a call more.
LEAST = 1 / 128


@dataclass(frozen=True, slots=True)
class Lease:
    """Bytes that are held from a step to another one, both included; negative ones for what goes behind a step.
    `placed`: in an arena, where what lives at other steps of the same group may take the same place."""

    first: int
    last: int
    bytes: int
    placed: bool = False


class Held:
    """What is held while groups of a plan's steps run: see `Allocation.at`. What does not lie in an arena is known by
    sums up to steps, what does by the most in rows of 1, 2, 4… steps: plans have thousands of steps."""

    def __init__(self, leases: Sequence[Lease], steps: int):
        begins, ends, gone, placed = ([0] * (steps + 2) for _ in range(4))
        for x in leases:
            first, behind = min(max(x.first, 0), steps), min(x.last, steps) + 1
            if x.bytes > 0 and not x.placed:
                begins[first + 1] += x.bytes
                ends[behind] += x.bytes
            else:
                changes = placed if x.placed else gone
                changes[first] += x.bytes
                changes[behind] -= x.bytes
        self.begun, self.ended, self.gone = (list(accumulate(x)) for x in (begins, ends, gone))
        self.placed = [list(accumulate(placed))]
        while (width := 1 << len(self.placed)) <= steps:
            last = self.placed[-1]
            self.placed.append(list(map(max, last, last[width // 2 :])))

    def at(self, group: range) -> int:
        first, behind = group.start, group.stop
        row = len(group).bit_length() - 1
        placed = max(self.placed[row][first], self.placed[row][behind - (1 << row)])
        return self.begun[behind] - self.ended[first] + self.gone[first] + placed


def least_of(leases: Sequence[Lease], steps: int) -> float:
    """The most that is held if each step is a group, and the part `LEAST` of it."""
    apart = Held(leases, steps).at
    return max(0, *(apart(range(n, n + 1)) for n in range(steps))) * (1 + LEAST)


def choose(
    leases: Sequence[Lease], groups: Sequence[range], whole: Sequence[Lease] | None = None
) -> frozenset[int]:
    """The steps at which another group has to begin, so that the most that is held is as little as if each step were
    a group, or more by less than the part `LEAST` of it: the group that holds most is cut where its two parts hold
    least, again and again. `whole`: what is held without further groups, where results take the memory of what died
    in theirs; if that is as little, there are none."""
    if not groups:
        return frozenset()
    count = groups[-1].stop
    apart, most = Held(leases, count).at, least_of(leases, count)
    if whole is not None and max(map(Held(whole, count).at, groups)) <= most:
        return frozenset()
    todo = [(-apart(g), g.start, g.stop) for g in groups]
    heapify(todo)
    found = set[int]()
    while -todo[0][0] > most:
        _, first, stop = heappop(todo)
        parts = [(range(first, n), range(n, stop)) for n in range(first + 1, stop)]
        best = min(parts, key=lambda p: max(map(apart, p)))
        for g in best:
            heappush(todo, (-apart(g), g.start, g.stop))
        found.add(best[1].start)
    return frozenset(found)
