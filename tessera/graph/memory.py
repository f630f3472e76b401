"""Places temporary buffers in one arena: buffers that are alive at the same time do not overlap.

    place([Buffer(0, 2, 1024), Buffer(1, 3, 512), Buffer(3, 4, 1024)])      →  offsets (0, 1024, 0), 1536 bytes

A buffer is alive from the step that writes it first to the step that reads it last, both included. The peak is known
before anything runs: it is the arena's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 256  # bytes, of every offset: vector accesses and tensor maps want no more


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
    """The bytes that a buffer takes in the arena."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def place(buffers: Sequence[Buffer]) -> Placement:
    """Offsets for all buffers: larger ones first, each in the smallest gap that holds it among those it meets."""
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].size, buffers[i].first))
    offsets = [0] * len(buffers)
    placed: list[int] = []
    total = 0
    for i in order:
        b = buffers[i]
        size = rounded(b.size)
        if not size:
            continue
        met = sorted(
            (offsets[j], offsets[j] + rounded(buffers[j].size))
            for j in placed
            if buffers[j].first <= b.last and b.first <= buffers[j].last
        )
        offsets[i] = _best_gap(met, size, total)
        total = max(total, offsets[i] + size)
        placed.append(i)
    return Placement(tuple(offsets), total)


def _best_gap(met: Sequence[tuple[int, int]], size: int, total: int) -> int:
    """The start of the smallest gap of at least `size` bytes between intervals; behind them where there is none."""
    end, best, least = 0, -1, 0
    for low, high in met:
        gap = low - end
        if gap >= size and (best < 0 or gap < least):
            best, least = end, gap
        end = max(end, high)
    if best < 0 or (0 < total - end < least and total - end >= size):
        return end
    return best


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """The most bytes that are alive at one step: no placement can be smaller."""
    change: dict[int, int] = {}
    for b in buffers:
        change[b.first] = change.get(b.first, 0) + rounded(b.size)
        change[b.last + 1] = change.get(b.last + 1, 0) - rounded(b.size)
    alive = most = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most
