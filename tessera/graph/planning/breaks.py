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

    def at(self, group: range) -> int:
        """What of it is held while a group of steps runs: see `Allocation.at`."""
        begins = self.first < group.stop if self.bytes > 0 else self.first <= group.start
        return self.bytes if begins and group.start <= self.last else 0


class Held:
    """What is held while groups of a plan's steps run."""

    def __init__(self, leases: Sequence[Lease], steps: int):
        self.others = [x for x in leases if not x.placed]
        self.placed = [0] * steps  # bytes in arenas at each step
        for x in leases:
            if x.placed:
                for n in range(x.first, x.last + 1):
                    self.placed[n] += x.bytes

    def at(self, group: range) -> int:
        return sum(x.at(group) for x in self.others) + max(self.placed[group.start : group.stop])


def choose(
    leases: Sequence[Lease], groups: Sequence[range], whole: Sequence[Lease]
) -> frozenset[int]:
    """The steps at which another group has to begin, so that the most that is held is as little as if each step were
    a group, or more by less than the part `LEAST` of it: the group that holds most is cut where its two parts hold
    least, again and again. `whole`: what is held without further groups, where results take the memory of what died
    in theirs; if that is as little, there are none."""
    if not groups:
        return frozenset()
    count = groups[-1].stop
    apart, together = Held(leases, count).at, Held(whole, count).at
    most = max(apart(range(n, n + 1)) for n in range(count)) * (1 + LEAST)
    if max(map(together, groups)) <= most:
        return frozenset()
    todo = {g: apart(g) for g in groups}
    found = set[int]()
    while max(todo.values()) > most:
        worst = max(todo, key=todo.__getitem__)
        parts = [(range(worst.start, n), range(n, worst.stop)) for n in worst[1:]]
        best = min(parts, key=lambda p: max(map(apart, p)))
        del todo[worst]
        todo |= {g: apart(g) for g in best}
        found.add(best[1].start)
    return frozenset(found)
