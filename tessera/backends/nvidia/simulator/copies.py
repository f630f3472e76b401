"""Simulates asynchronous operations: copies by threads (cp.async), the TMA unit, MMAs of warpgroups (wgmma).

Each is *under way* from its start until it lands. The latency decides when: `eager` lands at once, `late` when
no thread can go on otherwise, `random` at a time in between. With `late` and `random`, memory that is being written
holds NaN patterns, and memory that is being read is compared at the start and at the end: it must not change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.backends.nvidia.primitives import mmas
from tessera.backends.nvidia.primitives.row import Lanes, Machine
from tessera.backends.nvidia.simulator.boxes import TensorMap, move_in, move_out
from tessera.backends.nvidia.simulator.memory import POISON, SHARED, WINDOW
from tessera.backends.nvidia.simulator.races import READ, STORED, UPDATED
from tessera.errors import SimulatedHazard

NEVER = 1 << 60  # a time that is never reached
SPAN = 24  # an early landing takes at most this many pieces of code


class Flight:
    """An operation under way. `due`: the time at which it lands by itself."""

    due = NEVER
    line = -1

    def land(self) -> None:
        raise NotImplementedError


class UnderWay:
    """All operations under way in a cluster, oldest first."""

    def __init__(self, latency: str, rng: np.random.Generator) -> None:
        self.latency, self.rng = latency, rng
        self.flights: list[Flight] = []
        self.time = 0

    def start(self, flight: Flight, line: int) -> None:
        flight.line = line
        if self.latency == "eager":
            flight.land()
            return
        if self.latency == "random" and self.rng.random() < 0.5:
            flight.due = self.time + int(self.rng.integers(0, SPAN))
        self.flights.append(flight)

    def tick(self) -> None:
        self.time += 1
        for flight in [f for f in self.flights if f.due <= self.time]:
            self.land(flight)

    def land(self, flight: Flight) -> None:
        if flight in self.flights:
            self.flights.remove(flight)
            flight.land()

    def land_one(self) -> bool:
        """Land one operation, since no thread can go on. Return False if nothing under way could help."""
        able = [f for f in self.flights if not isinstance(f, (StoredBox, Mma))]
        if not able:
            return False
        which = int(self.rng.integers(len(able))) if self.latency == "random" else 0
        self.land(able[which])
        return True


# --- cp.async -------------------------------------------------------------------------------------------------------
class Copied(Flight):
    """One cp.async of many lanes, which may land lane by lane."""

    def __init__(
        self, m: Machine, to: Lanes, source: Lanes, size: Lanes, bytes: int, on: Lanes, group: Lanes
    ) -> None:
        self.m, self.to, self.source, self.size = m, to, source, size
        self.bytes, self.left, self.group = bytes, on.copy(), group.copy()

    def land(self) -> None:
        self.lanes(self.left)

    def lanes(self, mask: np.ndarray) -> None:
        mask = mask & self.left
        if not mask.any():
            return
        self.left &= ~mask
        m, n = self.m, self.bytes
        if m.way.latency != "eager":
            m.shared.fly(self.to[mask], n, -1)
        whole = mask & (self.size == n)
        data = np.zeros((m.threads, n), np.uint64)
        if whole.any():
            data[whole] = m.memory.read(self.source[whole], n, 1)
        for t in np.nonzero(mask & ~whole & (self.size > 0))[0]:
            count = int(self.size[t])
            data[t, :count] = m.memory.read(self.source[t : t + 1], count, 1)[0]
        m.shared.write(self.to[mask], data[mask], 1, m.bits[mask])


class Arrival(Flight):
    """An arrival at mbarriers after all earlier copies of its threads."""

    def __init__(self, m: Machine, bar: Lanes, on: Lanes) -> None:
        self.m, self.bar, self.on = m, bar, on.copy()

    def land(self) -> None:
        self.m.copies.finish(self.on, None)
        self.m.mbarriers.arrive(self.bar, self.on)


class Copies:
    """cp.async: copies by threads, counted in groups of each thread."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.group = np.zeros(m.threads, np.int64)

    def start(self, to: Lanes, source: Lanes, size: Lanes, bytes: int, mask: Lanes) -> None:
        m = self.m
        if not mask.any():
            return
        m.aligned("global", source, bytes, mask & (size > 0))
        m.shared.place(to[mask], bytes)
        whole = mask & (size == bytes)
        m.races.access(READ, source[whole], bytes, np.flatnonzero(whole))
        flight = Copied(m, to, source, size, bytes, mask, self.group)
        if m.way.latency != "eager":
            poison = np.full((int(mask.sum()), bytes), POISON, np.uint64)
            m.shared.write(to[mask], poison, 1, m.bits[mask])
            m.shared.fly(to[mask], bytes, 1)
        m.way.start(flight, m.line)

    def commit(self, mask: Lanes) -> None:
        self.group[mask] += 1

    def wait(self, mask: Lanes, pending: int) -> None:
        self.finish(mask, self.group - pending)

    def finish(self, mask: Lanes, before: Lanes | None) -> None:
        """Let the copies of the threads in `mask` whose group is before `before` land; None: all."""
        for flight in [f for f in self.m.way.flights if isinstance(f, Copied)]:
            flight.lanes(mask if before is None else mask & (flight.group < before))
            if not flight.left.any():
                self.m.way.flights.remove(flight)

    def arrive(self, bar: Lanes, mask: Lanes) -> None:
        self.m.way.start(Arrival(self.m, bar, mask), self.m.line)


# --- the TMA unit ------------------------------------------------------------------------------------------------
class LoadedBox(Flight):
    def __init__(
        self, m: Machine, map: TensorMap, at: tuple[int, ...], chunks: list[np.ndarray], bars: list[int]
    ):  # fmt: skip
        self.m, self.map, self.at, self.chunks, self.bars = m, map, at, chunks, bars

    def land(self) -> None:
        data = self.map.fetch(self.m.memory, self.at)
        for chunks, bar in zip(self.chunks, self.bars):
            if self.m.way.latency != "eager":
                self.m.shared.fly(chunks + SHARED, 16, -1)
            move_in(self.m.shared, chunks, data)
            self.m.mbarriers.bytes(bar, self.map.bytes)


class StoredBox(Flight):
    """A store by the TMA unit, which first reads shared memory and then writes global memory."""

    def __init__(
        self,
        m: Machine, map: TensorMap, at: tuple[int, ...], chunks: np.ndarray, reduction: str, thread: int, group: int
    ):  # fmt: skip
        self.m, self.map, self.at, self.chunks, self.reduction = m, map, at, chunks, reduction
        self.thread, self.group = thread, group
        self.seen = move_out(m.shared, chunks)
        self.data: np.ndarray | None = None

    def read(self) -> np.ndarray:
        data = self.data
        if data is None:
            data = self.data = move_out(self.m.shared, self.chunks)
            if (data != self.seen).any():
                begun = f"the store began at {self.m.place_of(self.line)}"
                what = "shared memory changed while a tensor store was to read it"
                raise SimulatedHazard(what).note(begun)
        return data

    def land(self) -> None:
        self.map.put(self.m.memory, self.at, self.read(), self.reduction)


class TmaUnit:
    """The TMA unit, which moves boxes of tensors."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.group = np.zeros(m.threads, np.int64)

    def load(
        self, map: Lanes, at: Sequence[Lanes], shared: Lanes, bar: Lanes, members: Lanes | None, mask: Lanes
    ) -> None:  # fmt: skip
        m = self.m
        for t in np.nonzero(mask)[0]:
            box, place = m.tensor_maps[int(map[t])], _coordinates(at, int(t))
            own = int(t) // m.stride
            ranks = [own]
            if members is not None:
                m.tally("copy", "multicast", box.bytes)
                ranks = [rank for rank in range(m.cluster) if int(members[t]) >> rank & 1]
            by = [(rank - own) * WINDOW for rank in ranks]
            chunks = [box.chunks(int(shared[t]) + there) for there in by]
            for piece in chunks:
                m.shared.async_proxy_writes(piece, "a tensor load")
                if m.way.latency != "eager":
                    move_in(m.shared, piece, POISON)
                    m.shared.fly(piece + SHARED, 16, 1)
            m.races.box(READ, box, place, int(t))
            bars = [int(bar[t]) + there for there in by]
            m.mbarriers.start(bars, int(t) // 32)
            m.way.start(LoadedBox(m, box, place, chunks, bars), m.line)

    def store(
        self, map: Lanes, at: Sequence[Lanes], shared: Lanes, reduction: str, mask: Lanes
    ) -> None:
        m = self.m
        for t in np.nonzero(mask)[0]:
            box = m.tensor_maps[int(map[t])]
            chunks = box.chunks(int(shared[t]))
            m.shared.async_proxy_reads(chunks, "a tensor store")
            place = _coordinates(at, int(t))
            m.races.box(UPDATED if reduction else STORED, box, place, int(t))
            group = int(self.group[t])
            m.way.start(StoredBox(m, box, place, chunks, reduction, int(t), group), m.line)

    def commit(self, mask: Lanes) -> None:
        self.group[mask] += 1

    def wait(self, mask: Lanes, pending: int, read: bool) -> None:
        way = self.m.way
        for flight in [f for f in way.flights if isinstance(f, StoredBox)]:
            if mask[flight.thread] and flight.group < self.group[flight.thread] - pending:
                flight.read() if read else way.land(flight)


def _coordinates(at: Sequence[Lanes], t: int) -> tuple[int, ...]:
    """Return signed coordinates, the outermost dimension first."""
    return tuple(((int(x[t]) + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) for x in reversed(at))


# --- MMAs of warpgroups -------------------------------------------------------------------------------------------
# While an MMA runs, its registers hold a NaN that identifies it: 12 bits of sign and exponent, 11 of the MMA's number,
# 9 of the register's.
MARK, FIRST, LAST = 0xFFC, 8, 255
# Columns, K, types of A and B, whether each is transposed; for each step A (its registers, or its descriptor), B, and
# whether it adds.
How = tuple[int, int, str, str, bool, bool]
Steps = Sequence[tuple[Lanes | tuple[Lanes, ...], Lanes, bool]]
OTHERS = "the others of its warpgroup to begin an MMA"


class Mma(Flight):
    """What a piece of wgmma adds to the accumulators of `warps`, which are of one warpgroup: each computes 16 rows."""

    def __init__(
        self, m: Machine, warps: np.ndarray, old: Sequence[Lanes], count: int, d: str, how: How, steps: Steps
    ) -> None:  # fmt: skip
        self.m, self.warps, self.d, self.how, self.count = m, warps, d, how, count
        self.lanes = (warps[:, None] * 32 + np.arange(32)).ravel()
        self.old = [x[self.lanes] for x in old]
        first = self.lanes[0]
        self.steps = [
            ([x[self.lanes] for x in a] if isinstance(a, tuple) else int(a[first]), int(b[first]), keeps)
            for a, b, keeps in steps
        ]  # fmt: skip
        self.group, self.number = int(warps[0]) // 4, int(m.mmas.begun[warps[0]])
        self.results: np.ndarray | None = None  # [registers, lanes]
        self.seen = None if m.way.latency == "eager" else self.bytes()

    def bytes(self) -> list[np.ndarray]:
        """Return the elements in shared memory of all steps, of A (if it is there) and of B."""
        n, depth, a, b, turned_a, turned_b = self.how
        base = int(self.lanes[0]) // self.m.stride * WINDOW - SHARED
        found: list[np.ndarray] = []
        for left, right, _ in self.steps:
            if isinstance(left, int):
                rows = mmas.descriptor_places(left, 64, depth, a, turned_a).reshape(4, 16, depth)
                found.append(self._read(rows[self.warps % 4] + base, a))
            found.append(self._read(mmas.descriptor_places(right, n, depth, b, turned_b) + base, b))
        return found

    def _read(self, at: np.ndarray, kind: str) -> np.ndarray:
        shared, size = self.m.shared, mmas.BITS[kind] // 8
        shared.async_proxy_reads(at, "an MMA of a warpgroup")
        if not shared.known[at].all():
            shared.note_unknown()
        return shared.views[size][at // size]

    def land(self) -> None:
        a, b = self.how[2:4]
        got = self.bytes()
        if self.seen is not None and any((x != y).any() for x, y in zip(got, self.seen)):
            raise SimulatedHazard(
                "shared memory changed while an MMA of a warpgroup was reading it"
            ).note(f"the MMA began at {self.m.place_of(self.line)}")
        operands = iter(got)
        acc = self.m.mmas.settled(self.old, self.lanes) if self.old else []
        if not acc:
            kind = np.float32 if self.d == "f32" else np.uint64
            acc = [np.zeros(len(self.lanes), kind) for _ in range(self.count)]
        for left, _, keeps in self.steps:
            mine = (
                mmas.fragment_of_warps(a, left) if isinstance(left, list) else mmas.numbers(a, next(operands))
            )  # fmt: skip
            partial = mine @ mmas.numbers(b, next(operands)).T
            if not keeps:
                acc = [np.zeros_like(x) for x in acc]
            acc = list(mmas.accumulate(acc, partial, self.d == "f16"))
        self.results = np.stack(acc)


class Mmas:
    """wgmma. The warps of a warpgroup begin an MMA one by one, which does not order them; it is computed for all of
    them at once, when all have begun it."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.begun = np.zeros(m.warps, np.int64)
        # How many MMAs each warp had begun when each of its groups ended.
        self.ends: list[list[int]] = [[] for _ in range(m.warps)]
        self.running: dict[int, Mma] = {}  # by the number that marks its registers
        self.number = FIRST

    def start(
        self, old: Sequence[Lanes], count: int, d: str, how: How, steps: Steps, commit: bool
    ) -> tuple[Lanes, ...]:
        m = self.m
        on = np.flatnonzero(m.whole_warps("wgmma"))
        kind = np.float32 if d == "f32" else np.uint64
        out = [np.zeros(m.threads, kind) for _ in range(count)]
        for warps in self._alike(on, steps):
            flight = Mma(m, warps, old, count, d, how, steps)
            flight.line = m.line
            for j, x in enumerate(out):
                mark = np.full(len(flight.lanes), MARK << 20 | self.number << 9 | j, np.uint32)
                x[flight.lanes] = mark.view(np.float32) if d == "f32" else mark
            self.running[self.number] = flight
            self.number = FIRST if self.number == LAST else self.number + 1
            self.running.pop(self.number, None)
            if m.way.latency == "eager":
                flight.land()
        self.begun[on] += 1
        for w in on:
            if commit:
                self.ends[w].append(int(self.begun[w]))
            for other in range(w // 4 * 4, min(w // 4 * 4 + 4, m.warps)):
                if m.blocked[other] == OTHERS:
                    m.blocked[other] = None
        return tuple(out)

    def _alike(self, on: np.ndarray, steps: Steps) -> list[np.ndarray]:
        """Return warps of one warpgroup whose operands are at the same addresses."""
        found: dict[tuple[int, ...], list[int]] = {}
        for w in on:
            t = int(w) * 32
            left, right, _ = steps[0]
            at = -1 if isinstance(left, tuple) else int(left[t])
            key = int(w) // 4, int(self.begun[w]), at, int(right[t])
            found.setdefault(key, []).append(int(w))
        return [np.array(warps) for warps in found.values()]

    def wait(self, pending: int, acc: Sequence[Lanes]) -> tuple[Lanes, ...]:
        """Return the accumulators, whose MMAs have finished as far as the wait demands."""
        m = self.m
        warps = np.flatnonzero(m.whole_warps("wgmma.wait_group"))
        for w in warps if pending >= 0 else ():
            ends = self.ends[w]
            needed = ends[len(ends) - pending - 1] if len(ends) > pending else 0
            if (self.begun[w // 4 * 4 : w // 4 * 4 + 4] < needed).any():
                m.blocked[w], m.again[w] = OTHERS, True
                continue
            for flight in list(self.running.values()):
                if flight.group == w // 4 and flight.number < needed and flight.results is None:
                    flight.land()
        if not m.on.all():
            lanes = np.flatnonzero(m.on)
            out = [x.copy() for x in acc]
            for x, new in zip(out, self.settled([x[lanes] for x in acc], lanes)):
                x[lanes] = new
            return tuple(out)
        return tuple(self.settled(list(acc), np.arange(m.threads)))

    def settled(self, acc: list[np.ndarray], lanes: np.ndarray) -> list[np.ndarray]:
        """Replace registers of some warps that belong to finished MMAs by the results."""
        values = np.stack(acc)
        marks = values[:, ::32]  # all lanes of a warp hold the same mark
        marks = marks.view(np.uint32) if marks.dtype == np.float32 else marks.astype(np.uint32)
        marked = marks >> np.uint32(20) == MARK
        numbers = (marks >> np.uint32(9) & np.uint32(0x7FF)).astype(np.int64)
        registers = (marks & np.uint32(0x1FF)).astype(np.int64)
        for i in np.flatnonzero(marked.any(0)):
            for number in np.unique(numbers[marked[:, i], i]):
                flight = self.running.get(int(number))
                warp = lanes[32 * i] // 32
                if flight is None or flight.results is None or warp not in flight.warps:
                    continue
                rows = marked[:, i] & (numbers[:, i] == number)
                start = 32 * int(np.flatnonzero(flight.warps == warp)[0])
                mine = flight.results[registers[rows, i], start : start + 32]
                values[rows, 32 * i : 32 * i + 32] = mine
        return list(values)

    def end(self) -> None:
        whole = len(self.begun) // 4 * 4
        groups, left = self.begun[:whole].reshape(-1, 4), self.begun[whole:]
        if (groups != groups[:, :1]).any() or left.any():
            raise SimulatedHazard("wgmma with warps of a warpgroup missing")
