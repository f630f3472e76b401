"""Holds global and shared memory of the simulator.

Global memory is the host's: arguments keep their addresses, and accesses outside them are refused. Shared memory
starts as NaN patterns. For each 16 bytes it is recorded which warps have accesses under way that the async proxy
(the TMA unit, MMAs of warpgroups) may not have seen: it bypasses the caches and queues of threads, and only
`fence.proxy.async` orders the two, by the thread or by one that has synchronised with it since (PTX, causality order).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tessera.errors import OutOfBounds, SimulatedHazard

SHARED = 0x1000  # address of the first byte
WINDOW = 1 << 18  # distance between the shared memories of a cluster's CTAs
POISON = 0xFF  # bytes never written: NaN in every float type
GRAIN = 16  # bytes that are tracked together
WORDS: dict[int, type[np.unsignedinteger[Any]]] = {
    1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64,
}  # fmt: skip

Index = slice | tuple[np.ndarray, ...]


class Extent:
    """A piece of the host's memory."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end
        self.views: dict[int, np.ndarray] = {}
        self.bytes = self.view(1)

    def view(self, size: int) -> np.ndarray:
        """Return the memory as words of `size` bytes; an aligned access does not reach the rest."""
        found = self.views.get(size)
        if found is None:
            count = (self.end - self.first) // size
            raw = (ctypes.c_uint8 * (count * size)).from_address(self.first)
            found = self.views[size] = np.ctypeslib.as_array(raw).view(WORDS[size])
        return found


class Global:
    """Global memory of launches: extents of arrays. `open`: there are raw addresses, which may point to anything.
    `changes`: how often it was written."""

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self.open = False
        self.changes = 0

    def add(self, first: int, end: int) -> None:
        if end > first:
            self.extents.append(Extent(first, end))

    def find(self, low: int, high: int) -> Extent | None:
        for e in self.extents:
            if e.first <= low and high <= e.end:
                return e
        return None

    def pieces(self, address: np.ndarray, size: int) -> Iterator[tuple[Index, Extent]]:
        """Yield (indices of `address`, their extent) until all addresses are covered."""
        e = self.find(int(address.min()), int(address.max()) + size) if address.size else None
        if e is not None:
            yield slice(None), e
            return
        left = np.ones(address.shape, bool)
        for e in self.extents:
            here = (
                left
                & (address >= np.uint64(e.first))
                & (address + np.uint64(size) <= np.uint64(e.end))
            )
            if here.any():
                left &= ~here
                yield np.nonzero(here), e
        for i in zip(*np.nonzero(left)):
            at = int(address[i])
            if not self.open or not at:
                raise OutOfBounds(f"{size} bytes at {at:#x} are in no array of the launch")
            yield tuple([np.array([k]) for k in i]), Extent(at, at + size)

    def read(self, address: np.ndarray, count: int, size: int) -> np.ndarray:
        """Return [lanes, count] words."""
        out = np.zeros((len(address), count), np.uint64)
        for which, e in self.pieces(address, count * size):
            at = np.asarray(address[which] - np.uint64(e.first), np.int64)
            if e.first % size:
                out[which] = _gather(e.bytes, at, count, size)
            else:
                out[which] = e.view(size)[(at // size)[:, None] + np.arange(count)]
        return out

    def write(self, address: np.ndarray, raw: np.ndarray, size: int) -> None:
        count = int(raw.shape[1])
        self.changes += 1
        for which, e in self.pieces(address, count * size):
            at = np.asarray(address[which] - np.uint64(e.first), np.int64)
            if e.first % size:
                places: np.ndarray = np.add.outer(at, np.arange(count * size))
                data = np.ascontiguousarray(raw[which].astype(WORDS[size])).view(np.uint8)
                e.bytes[places] = data.reshape(places.shape)
            else:
                e.view(size)[(at // size)[:, None] + np.arange(count)] = raw[which]


def _gather(data: np.ndarray, at: np.ndarray, count: int, size: int) -> np.ndarray:
    found = np.ascontiguousarray(data[at[:, None] + np.arange(count * size)])
    return found.view(WORDS[size]).reshape(len(at), count)


class Shared:
    """The shared memory of the CTAs of a cluster, `size` bytes each."""

    def __init__(self, size: int, ctas: int) -> None:
        self.size, self.ctas = size, ctas
        self.bytes = np.full(ctas * WINDOW, POISON, np.uint8)
        self.views = {n: self.bytes.view(t) for n, t in WORDS.items()}
        self.known = np.zeros(ctas * WINDOW, bool)  # bytes written since the program began
        grains = ctas * WINDOW // GRAIN
        self.reads = np.zeros(grains, np.uint64)  # by warps, a bit each, that have not fenced since
        self.writes = np.zeros(grains, np.uint64)
        self.times = np.zeros(grains, np.int64)  # of the last access, as Knowledge counts
        self.now: Callable[[], int] = int
        self.flying = np.zeros(ctas * WINDOW, np.int16)  # copies that will write a byte
        self.flights = 0
        self.last: dict[int, np.ndarray] = {}  # of a load: the grain that each thread last read
        self.unknown: dict[str, int] = {}  # uninitialised reads, by source line
        self.where: Any = str  # gives the source line

    def forget(self) -> None:
        """Reset for another program."""
        for rank in range(self.ctas):
            self.bytes[rank * WINDOW : rank * WINDOW + self.size] = POISON
        self.known[:] = False
        self.reads[:] = 0
        self.writes[:] = 0
        self.times[:] = 0
        self.flying[:] = 0
        self.last.clear()
        self.flights = 0

    def place(self, address: np.ndarray, size: int) -> np.ndarray:
        """Return the offsets of `size` bytes at each address. Raises OutOfBounds outside shared memory or if
        misaligned."""
        at = address.astype(np.int64) - SHARED
        inside = at & (WINDOW - 1)
        if at.size and (
            at.min() < 0 or at.max() >= len(self.bytes) or inside.max() + size > self.size
        ):
            bad = int(
                at[np.argmax((at < 0) | (at >= len(self.bytes)) | (inside + size > self.size))]
            )
            raise OutOfBounds(f"{size} bytes at {bad:#x} of {self.size} bytes of shared memory")
        if (at & (size - 1)).any():
            bad = int(at[np.argmax(at & (size - 1) != 0)])
            raise SimulatedHazard(f"{size} bytes at {bad:#x} of shared memory: misaligned address")
        return at

    def read(self, address: np.ndarray, count: int, size: int, warps: np.ndarray) -> np.ndarray:
        """Return [lanes, count] words for lanes of `warps` (one bit each)."""
        total = count * size
        at = self.place(address, total)
        if not self.known[at].all() or not self.known[at + total - 1].all():
            self.note_unknown()
        self._not_flying(at, total, "read")
        np.bitwise_or.at(self.reads, at // GRAIN, warps)
        self.times[at // GRAIN] = self.now()
        if count == 1:
            return self.views[size][at // size].astype(np.uint64)[:, None]
        return self.views[size][(at // size)[:, None] + np.arange(count)].astype(np.uint64)

    def write(self, address: np.ndarray, raw: np.ndarray, size: int, warps: np.ndarray) -> None:
        count = int(raw.shape[1])
        total = count * size
        at = self.place(address, total)
        self._not_flying(at, total, "written")
        self.views[size][(at // size)[:, None] + np.arange(count)] = raw
        self.known[at[:, None] + np.arange(total)] = True
        np.bitwise_or.at(self.writes, at // GRAIN, warps)
        self.times[at // GRAIN] = self.now()

    def fly(self, address: np.ndarray, size: int, by: int) -> None:
        """A copy of `size` bytes to each address starts (by = 1) or lands (-1)."""
        at = address.astype(np.int64) - SHARED
        rows = self.flying.reshape(-1, size)
        if len(np.unique(at)) == len(at):
            rows[at // size] += by
        else:
            np.add.at(rows, at // size, by)
        self.flights += by * len(at)

    def _not_flying(self, at: np.ndarray, size: int, what: str) -> None:
        if self.flights:
            busy = (self.flying[at] | self.flying[at + size - 1]) != 0
            if busy.any():
                raise SimulatedHazard(
                    f"shared memory at {int(at[np.argmax(busy)]):#x} is {what} while a copy to it is under way"
                )

    def note_unknown(self) -> None:
        line = self.where()
        self.unknown[line] = self.unknown.get(line, 0) + 1

    def fence(self, rank: int, warps: int, known: np.ndarray) -> None:
        """Record that accesses of these warps are complete for the async proxy, too, and those that they know of:
        `known` has the time up to which they know each warp of the CTA."""
        first, end = rank * (WINDOW // GRAIN), (rank * WINDOW + self.size + GRAIN - 1) // GRAIN
        keep = np.uint64(~warps & (2**64 - 1))
        for by in (self.reads, self.writes):
            by[first:end] &= keep
            left = first + np.flatnonzero(by[first:end])
            for warp, time in enumerate(known):
                seen = left[self.times[left] <= time]
                by[seen] &= ~(np.uint64(1) << np.uint64(warp))

    def remember(self, load: int, address: np.ndarray, mask: np.ndarray) -> None:
        """Keep the grains that a load reads until its results are needed."""
        grains = (address.astype(np.int64) - SHARED) // GRAIN
        old = self.last.get(load)
        self.last[load] = np.where(mask, grains, -1 if old is None else old)

    def arrived(self, loads: list[int], on: np.ndarray, bits: np.ndarray) -> None:
        """Record that values that some threads have read by these loads are in registers."""
        for load in loads:
            last = self.last.get(load)
            if last is not None:
                lanes = on & (last >= 0)
                np.bitwise_and.at(self.reads, last[lanes], ~bits[lanes])
                last[lanes] = -1

    def in_block(self, address: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Return the corresponding addresses in the shared memory of another CTA of the cluster."""
        return (
            (address - np.uint64(SHARED)) % np.uint64(WINDOW)
            + rank * np.uint64(WINDOW)
            + np.uint64(SHARED)
        )

    # --- async proxy ----------------------------------------------------------------------------------------------
    def async_proxy_reads(self, at: np.ndarray, what: str) -> None:
        """Record that the async proxy reads the bytes at offsets `at`."""
        self._not_flying(at.ravel(), 1, f"read by {what}")
        grains = at // GRAIN
        if self.writes[grains].any():
            first = int(at.ravel()[np.argmax(self.writes[grains].ravel() != 0)])
            raise SimulatedHazard(
                f"{what} reads shared memory at {first:#x}, which threads have written without fence.proxy.async"
            )

    def async_proxy_writes(self, at: np.ndarray, what: str) -> None:
        self._not_flying(at.ravel(), 1, f"written by {what}")
        grains = at // GRAIN
        under_way = self.reads[grains] | self.writes[grains]
        if under_way.any():
            first = int(np.argmax(under_way.ravel() != 0))
            how = "read" if self.reads[grains].ravel()[first] else "written"
            raise SimulatedHazard(
                f"{what} overwrites shared memory at {int(at.ravel()[first]):#x}, which threads have {how} without "
                "fence.proxy.async: their accesses may still be under way"
            )
