"""Places temporary buffers in arenas: buffers that are alive at the same time do not overlap.

    place([Buffer(0, 2, 1024), Buffer(1, 3, 512), Buffer(3, 4, 1024)])      →  offsets (0, 1024, 0), 1536 bytes

A buffer is alive from the step that writes it first to the step that reads it last, both included. One arena is taken
once, and holds its bytes for the whole call; `cut` makes several, which come and go, where that holds less.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Bytes, of offsets: vector accesses and tensor maps want no more than the first; the next is a line of a CPU's cache
# and its longest vector, and the last what all kernels rely on.
UNITS = (256, 64, 16)
FEW = 64  # units that a tensor has to have at least, so that what it is rounded up by is a small part of it


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of `size` bytes from step `first` to step `last`."""

    first: int
    last: int
    size: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Offsets of the buffers in bytes, and the bytes of the arena."""

    offsets: tuple[int, ...]
    size: int


def rounded(size: int) -> int:
    """The bytes that a buffer takes in the arena. Larger ones are placed first, so that all begin at multiples of what
    their own are rounded up to."""
    unit = next((n for n in UNITS if size >= FEW * n), UNITS[-1])
    return -(-size // unit) * unit


def place(buffers: Sequence[Buffer]) -> Placement:
    """Offsets for all buffers: larger ones first, each in the smallest gap that holds it among those it meets. Behind
    the end of what lies last the arena has nothing."""
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].first))
    offsets = [0] * len(buffers)
    placed: list[tuple[int, int, int, int]] = []  # (start, end, first, last) by where they start
    total = 0
    for i in order:
        first, last = buffers[i].first, buffers[i].last
        size = rounded(buffers[i].size)
        if not size:
            continue
        met = [(low, high) for low, high, f, l in placed if f <= last and first <= l]
        start = offsets[i] = _best_gap(met, size, total)
        total = max(total, start + size)
        insort(placed, (start, start + size, first, last))
    ends = (at + b.size for at, b in zip(offsets, buffers, strict=True))
    return Placement(tuple(offsets), max(ends, default=0))


def _best_gap(met: Sequence[tuple[int, int]], size: int, total: int) -> int:
    """The start of the smallest gap of at least `size` bytes between intervals; behind them where there is none."""
    end, best, least = 0, -1, 0
    for low, high in met:
        gap = low - end
        if gap >= size and (best < 0 or gap < least):
            best, least = end, gap
        end = max(end, high)
    return end if best < 0 or (0 < total - end < least and total - end >= size) else best


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are alive at one step: no placement can be smaller."""
    change: dict[int, int] = {}
    for b in buffers:
        change[b.first] = change.get(b.first, 0) + b.size
        change[b.last + 1] = change.get(b.last + 1, 0) - b.size
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most


# --- several arenas ---------------------------------------------------------------------------------------------------
# Buffers of one arena that `cut` tries: placing them takes time that grows with the square.
MOST = 64


@dataclass(frozen=True, slots=True)
class Part:
    """Buffers that share an arena of `size` bytes, which the groups of steps from `first` to `last` hold."""

    members: tuple[int, ...]
    first: int
    last: int
    size: int

    def at(self, group: int) -> int:
        return self.size if self.first <= group <= self.last else 0


class Bound(NamedTuple):
    """Parts as one: the bytes that they hold before it, summed over groups; how many groups those are; the most that
    the one may take, and the least that it does."""

    before: int
    groups: int
    allowed: int
    least: int

    @property
    def most_saved(self) -> int:
        return self.before - self.least * self.groups


def _members(parts: Sequence[Part]) -> tuple[int, ...]:
    return tuple(k for p in parts for k in p.members)


class Cut:
    """Buffers in arenas. `live`: the bytes that are held while each group of steps runs; `room`: those that it may take
    besides; `gone`: those that the caller may have let go of before it."""

    def __init__(
        self,
        buffers: Sequence[Buffer],
        ends: Sequence[int],
        held: Sequence[int],
        room: Sequence[int],
        gone: Sequence[int],
    ):
        self.buffers, self.ends, self.live = buffers, ends, list(held)
        self.room, self.gone = room, gone
        self.parts: list[Part] = []
        for k in range(len(buffers)):
            self._add(self._part((k,)))

    def _part(self, members: tuple[int, ...]) -> Part:
        chosen = [self.buffers[k] for k in members]
        first = bisect_left(self.ends, min(b.first for b in chosen))
        last = bisect_left(self.ends, max(b.last for b in chosen))
        return Part(members, first, last, place(chosen).size)

    def _add(self, part: Part) -> None:
        self.parts.append(part)
        for g in range(part.first, part.last + 1):
            self.live[g] += part.size

    def _remove(self, part: Part) -> None:
        self.parts.remove(part)
        for g in range(part.first, part.last + 1):
            self.live[g] -= part.size

    def _joined(
        self, parts: Sequence[Part], most: tuple[int, int] | None
    ) -> tuple[int, Part] | None:
        """(bytes saved, summed over groups; parts as one), if no group holds more than `most` less its room, or than
        it does now. `most`: the most that may be held, and that without what is gone."""
        bound = self._bound(parts, most)
        if bound is None:
            return None
        whole = self._part(_members(parts))
        if whole.size > bound.allowed:
            return None
        return bound.before - whole.size * bound.groups, whole

    def _bound(self, parts: Sequence[Part], most: tuple[int, int] | None) -> Bound | None:
        """What is known of parts as one before they are placed, which takes long; None where that suffices to say that
        they stay apart, as it does for most."""
        members = _members(parts)
        if len(members) > MOST:
            return None
        groups = range(min(p.first for p in parts), max(p.last for p in parts) + 1)
        before = [sum(p.at(g) for p in parts) for g in groups]
        allowed = min(
            self._limit(g, most) + n - self.live[g] for g, n in zip(groups, before, strict=True)
        )
        least = lower_bound([self.buffers[k] for k in members])
        return Bound(sum(before), len(groups), allowed, least) if least <= allowed else None

    def _limit(self, group: int, most: tuple[int, int] | None) -> int:
        """The most bytes that a group may hold, but for its room."""
        if most is None:
            return self.live[group]
        allowed = min(most[0], most[1] + self.gone[group]) - self.room[group]
        return max(self.live[group], allowed)

    def join_where_nothing_grows(self) -> None:
        """Let two arenas be one, as long as no group holds more then, those first that save most."""
        todo = sorted(self.parts, key=lambda p: p.first)
        while todo:
            part = todo.pop(0)
            if part not in self.parts:
                continue
            near = [
                p
                for p in self.parts
                if p is not part and p.first <= part.last + 1 and part.first <= p.last + 1
            ]
            whole = self._best_join(part, near)
            if whole is not None:
                todo.insert(0, whole)

    def _best_join(self, part: Part, near: Sequence[Part]) -> Part | None:
        """Join an arena to that of those near it with which it saves most, the first of several; None if to none."""
        bounds = [
            (bound.most_saved, -k)
            for k, p in enumerate(near)
            if (bound := self._bound((part, p), None)) is not None
        ]
        best, joined = None, None
        for most, k in sorted(bounds, reverse=True):
            if best is not None and (most, k) <= best:
                break
            made = self._joined((part, near[-k]), None)
            if made is not None and (best is None or (made[0], k) > best):
                best, joined = (made[0], k), made[1]
        if best is not None and joined is not None:
            self._replace((part, near[-best[1]]), joined)
        return joined

    def join_below_the_peak(self) -> None:
        """Let as many arenas be one as the peak allows: each one is a call of the library."""
        ordered = sorted(self.parts, key=lambda p: (p.first, p.last))
        for start in range(0, len(ordered), MOST):
            most = max(self.live), max(map(int.__sub__, self.live, self.gone))
            self._halve(ordered[start : start + MOST], most)

    def _halve(self, parts: Sequence[Part], most: tuple[int, int]) -> None:
        if len(parts) < 2:
            return
        found = self._joined(parts, most)
        if found is not None:
            self._replace(parts, found[1])
            return
        middle = len(parts) // 2
        self._halve(parts[:middle], most)
        self._halve(parts[middle:], most)

    def _replace(self, parts: Sequence[Part], whole: Part) -> None:
        for p in parts:
            self._remove(p)
        self._add(whole)


def cut(
    buffers: Sequence[Buffer],
    ends: Sequence[int],
    held: Sequence[int],
    room: Sequence[int] | None = None,
    gone: Sequence[int] | None = None,
) -> list[tuple[int, ...]]:
    """Which buffers share an arena. `ends`: the last step of each group of steps: an arena is taken before a group and
    goes behind one. `held`: the bytes that are held in each group besides; `room`: those that may come to them, which
    arenas that are larger than what they hold must not take; `gone`: those among them that the caller may have let go
    of before the group: arenas are larger neither where most is held with them nor where it is without them."""
    none = [0] * len(ends)
    found = Cut(buffers, ends, held, room or none, gone or none)
    found.join_where_nothing_grows()
    found.join_below_the_peak()
    return [p.members for p in sorted(found.parts, key=lambda p: p.first)]
