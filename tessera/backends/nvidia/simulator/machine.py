"""Runs a decoded program for all threads of a cluster: which warps go on, and what they share.

Warps at the same step run together up to the next step at which they might wait. If the latency is `random`, the seed
decides which of them run, and which go first. Diverged threads of a warp reconverge by program order:
those that are furthest behind go first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tessera.backends.nvidia.primitives.lanes import signed
from tessera.backends.nvidia.primitives.memory import Combine
from tessera.backends.nvidia.primitives.row import Lanes
from tessera.backends.nvidia.simulator.banks import Banks
from tessera.backends.nvidia.simulator.barriers import Barriers, Knowledge, Mbarriers
from tessera.backends.nvidia.simulator.boxes import TensorMap
from tessera.backends.nvidia.simulator.copies import Copies, Mmas, StoredBox, TmaUnit, UnderWay
from tessera.backends.nvidia.simulator.memory import SHARED, WINDOW, Global, Shared
from tessera.backends.nvidia.simulator.program import BRANCH, PAUSE, PURE, Program, Step
from tessera.backends.nvidia.simulator.races import READ, STORED, UPDATED, Races
from tessera.backends.nvidia.simulator.text import Value
from tessera.errors import DeviceAssertionError, OutOfBounds, SimulatedHazard, TesseraError
from tessera.interp.directed import directed

BEHIND = 1 << 40  # the step of a thread that is done
PATIENCE = 100  # steps of the scheduler without a change of global memory, after which other programs go on
BITS = {"i1": 1, "i8": 8, "i16": 16}


class Machine:
    """One cluster of `cluster` CTAs with `threads` threads each. Meanings of primitives use of it:

     `on` (the threads that run), `threads`, `load`, `store`, `atomic`, `place`, `whole_warps`, `barrier`,
    `cluster_barrier`, `proxy_fence`, and the parts `mbarriers`, `copies`, `tma`, `mmas`.
    """

    def __init__(
        self, program: Program, memory: Global, shared_bytes: int, threads: int, cluster: int, latency: str, seed: int
    ) -> None:  # fmt: skip
        self.program, self.memory, self.in_block, self.cluster = program, memory, threads, cluster
        # Warpgroups stay whole: with several CTAs, some threads at the end of each do not exist.
        self.stride = threads if cluster == 1 else -(-threads // 128) * 128
        self.threads = cluster * self.stride
        self.rank, self.index = np.divmod(
            np.arange(self.threads, dtype=np.uint64), np.uint64(self.stride)
        )
        self.warps = self.threads // 32
        self.bits = np.uint64(1) << (self.index // np.uint64(32))
        self.shared = Shared(shared_bytes, cluster)
        self.rng = np.random.default_rng(seed)
        self.latency = latency
        self.random = latency == "random"
        self.tensor_maps: list[TensorMap] = []
        self.program_id, self.grid, self.time = (0, 0, 0), (1, 1, 1), 0
        self.clock = self.segment = 0  # steps that were run before this segment; its first step
        self.counts: dict[str, int] = {}
        self.written = {"global": 0, "shared": 0}  # bytes
        self.banks: Banks | None = None
        self.knowledge, self.races = Knowledge(self.warps), Races(memory, self)
        self.shared.where = lambda: self.place_of(self.line)
        self.line = self.number = -1  # of the source line, of the step

    # --- running --------------------------------------------------------------------------------------------------
    def run(
        self, args: list[np.ndarray], program: tuple[int, ...], grid: tuple[int, ...]
    ) -> Iterator[None]:
        """Run one program of the grid. It yields where it may wait for what another program does."""
        self.program_id, self.grid = program, grid
        self.shared.forget()
        self.way = UnderWay(self.latency, self.rng)
        self.copies, self.tma, self.mmas = Copies(self), TmaUnit(self), Mmas(self)
        self.knowledge = Knowledge(self.warps, self.knowledge.now + 1)
        self.shared.now = lambda: self.knowledge.now
        self.barriers, self.mbarriers = Barriers(self), Mbarriers(self)
        self.blocked: list[str | None] = [None] * self.warps
        self.again = np.zeros(self.warps, bool)  # warps that run the step of their pause once more
        self.local: dict[int, tuple[str, Lanes]] = {}
        env = list(self.program.initial)
        for (_, slot), x in zip(self.program.params, args, strict=True):
            env[slot] = x
        self.pc = np.where(self.index < self.in_block, 0, BEHIND).astype(np.int64)
        try:
            yield from self._schedule(env)
            self._end()
        except TesseraError as error:
            where = self.place_of(self.line)
            if where and isinstance(error, (SimulatedHazard, OutOfBounds)):
                error.note(f"at {where}, program {self.program_id}")
            raise

    def _schedule(self, env: list[Any]) -> Iterator[None]:
        left, changes = PATIENCE, self.memory.changes
        while True:
            left -= self.program.may_wait
            if left == 0:
                if changes == self.memory.changes:
                    yield
                left, changes = PATIENCE, self.memory.changes
            front = self.pc.reshape(-1, 32).min(1)
            live = front < BEHIND
            if not live.any():
                return
            self.way.tick()
            self.clock += 1  # also while nobody can go on
            ready = live & np.array([b is None for b in self.blocked])
            if not ready.any():
                if not self.way.land_one():
                    self._deadlock(live)
                continue
            group = self._chosen(front, ready)
            here = int(front[group].min())
            on = np.repeat(group, 32) & (self.pc == here)
            self._segment(here, on, env)

    def _chosen(self, front: np.ndarray, ready: np.ndarray) -> np.ndarray:
        """Return the warps that go on, all at the same step."""
        if not self.random:
            return ready & (front == front[ready].min())
        able = np.flatnonzero(ready)
        first = able[self.rng.integers(len(able))]
        group = ready & (front == front[first])
        if len(able) > 1 and self.rng.random() < 0.5:
            group &= self.rng.random(self.warps) < 0.5
            group[first] = True
        return group

    def _segment(self, at: int, on: np.ndarray, env: list[Any]) -> None:
        """Run from step `at` to the next pause or branch."""
        self.on, self.segment = on, at
        steps = self.program.steps
        everybody = bool((on | (self.pc >= BEHIND)).all())
        while True:
            step = steps[at]
            if step.kind >= BRANCH:
                if step.awaits:
                    self.shared.arrived(step.awaits, on, self.bits)
                break
            if step.kind == PURE:
                x = step.run(env)
            else:
                self.line, self.step, self.number = step.line, step, at
                if step.awaits:
                    self.shared.arrived(step.awaits, on, self.bits)
                x = step.run(self, env)
            dest = step.dest
            if dest >= 0:
                if step.keep and not everybody and env[dest] is not None:
                    x = merged(on, x, env[dest])
                env[dest] = x
            at += 1
            if step.kind == PAUSE:
                self.clock += at - self.segment
                self.pc[on] = at
                if self.again.any():
                    self.pc[on & np.repeat(self.again, 32)] = at - 1
                    self.again[:] = False
                return
        self.clock += at + 1 - self.segment
        if step.kind > BRANCH:
            self.pc[on] = BEHIND
            return
        self._branch(step, on, everybody, env)

    def _branch(self, step: Step, on: np.ndarray, everybody: bool, env: list[Any]) -> None:
        sides = [on]
        if step.dest >= 0:
            condition = env[step.dest].astype(bool)
            sides = [on & condition, on & ~condition]
        for mask, (target, moves) in zip(sides, step.targets):
            if moves:
                whole = everybody and (len(sides) == 1 or mask.sum() == on.sum())
                if whole or mask.any():
                    new = [env[source] for _, source in moves]
                    for (slot, _), x in zip(moves, new):
                        env[slot] = x if whole or env[slot] is None else merged(mask, x, env[slot])
            self.pc[mask] = target

    def _deadlock(self, live: np.ndarray) -> None:
        found: dict[str, list[int]] = {}
        for w in np.flatnonzero(live):
            at = int(self.pc[w * 32 : w * 32 + 32].min())
            why, step = self.blocked[w], self.program.steps[at - 1]
            found.setdefault(f"{why}, {self.place_of(step.line) or step.name}", []).append(int(w))
        error = SimulatedHazard("all threads wait, and nobody is left to end it")
        for why, warps in found.items():
            error.note(f"warps {', '.join(map(str, warps))} wait for {why}")
        raise error

    def _end(self) -> None:
        self.mmas.end()
        for flight in list(self.way.flights):
            if isinstance(flight, StoredBox):
                if flight.data is None:
                    raise SimulatedHazard("a CTA ends while a tensor store reads its shared memory")
                self.way.land(flight)

    def place_of(self, line: int) -> str:
        return self.program.lines.get(line, "")

    # --- threads ----------------------------------------------------------------------------------------------------
    def place(self, what: str, axis: int = 0) -> np.ndarray:
        """Return where a thread is; for `shared`, the address of its shared memory."""
        if what == "thread":
            return self.index
        if what == "rank":
            return self.rank
        if what == "shared":
            return np.uint64(SHARED) + self.rank * np.uint64(WINDOW)
        if what == "time":
            self.time += 1000
        number = {
            "program": self.program_id[axis], "programs": self.grid[axis], "time": self.time, "smid": 0,
            "clock": self.clock + self.number - self.segment,
        }[what]  # fmt: skip
        return np.full(self.threads, number, np.uint64)

    def directed(self, function: str, direction: str, *args: np.ndarray) -> np.ndarray:
        """Return a function rounded in a direction, as the interpreter does."""
        return directed(function, direction, *args)

    def whole_warps(self, what: str) -> np.ndarray:
        """Return which warps run; all of their threads must."""
        warps = self.on.reshape(-1, 32)
        on = warps[:, 0]
        if (warps != on[:, None]).any():
            raise SimulatedHazard(f"{what} with threads of a warp missing")
        return on

    def stack(self) -> np.ndarray:
        return np.full(self.threads, (len(self.local) + 1) << 48, np.uint64)

    # --- memory -----------------------------------------------------------------------------------------------------
    def aligned(self, space: str, where: np.ndarray, size: int, mask: np.ndarray) -> None:
        bad = mask & (where & np.uint64(size - 1) != 0)
        if bad.any():
            raise SimulatedHazard(
                f"{size} bytes at {int(where[np.argmax(bad)]):#x} of {space} memory: misaligned address"
            )

    def load(
        self, space: str, where: np.ndarray, count: int, size: int, mask: np.ndarray
    ) -> np.ndarray:
        """Return [threads, count] words of `size` bytes, zeros where `mask` is false."""
        self.tally("ld", space, count * size)
        whole = mask.all()
        at = where if whole else where[mask]
        if space == "shared":
            if self.banks is not None:
                self.banks.count(self, where, count * size, mask)
            got = self.shared.read(at, count, size, self.bits if whole else self.bits[mask])
            self.shared.remember(self.number, where, mask)
        else:
            self.aligned(space, where, count * size, mask)
            got = np.zeros((0, count), np.uint64)
            if len(at):
                got = self.memory.read(at, count, size)
                self.races.access(READ, at, count * size, np.flatnonzero(mask))
        if whole:
            return got
        out = np.zeros((self.threads, count), np.uint64)
        out[mask] = got
        return out

    def store(
        self, space: str, where: np.ndarray, raw: np.ndarray, size: int, mask: np.ndarray
    ) -> None:
        self.tally("st", space, raw.shape[1] * size)
        if not mask.any():
            return
        self.written[space] += int(mask.sum()) * raw.shape[1] * size
        if space == "shared":
            if self.banks is not None:
                self.banks.count(self, where, raw.shape[1] * size, mask)
            self.shared.write(where[mask], raw[mask], size, self.bits[mask])
        else:
            self.aligned(space, where, raw.shape[1] * size, mask)
            self.memory.write(where[mask], raw[mask], size)
            lanes = np.flatnonzero(mask)
            self.races.access(STORED, where[mask], raw.shape[1] * size, lanes)

    def atomic(
        self, space: str, where: Lanes, operands: Sequence[Lanes], size: int, mask: Lanes, combine: Combine
    ) -> Lanes:  # fmt: skip
        """Update for one thread after the other; return the old words."""
        self.aligned(space, where, size, mask)
        old = np.zeros(self.threads, np.uint64)
        threads = np.nonzero(mask)[0]
        if self.random:
            self.rng.shuffle(threads)
        for t in threads:
            one = where[t : t + 1]
            if space == "shared":
                raw = self.shared.read(one, 1, size, self.bits[t : t + 1])
            else:
                raw = self.memory.read(one, 1, size)
                self.races.access(UPDATED, one, size, np.array([t]))
            old[t] = raw[0, 0]
            new = np.array([[combine(int(raw[0, 0]), *[int(x[t]) for x in operands])]], np.uint64)
            if space == "shared":
                self.shared.write(one, new, size, self.bits[t : t + 1])
            elif new != raw:
                self.memory.write(one, new, size)
        return old

    def tally(self, how: str, space: str, size: int) -> None:
        key = f"{how}.{space}.{size}"
        self.counts[key] = self.counts.get(key, 0) + 1

    # --- order ------------------------------------------------------------------------------------------------------
    def barrier(
        self, number: int | Lanes, threads: int = 0, stay: bool = True, among: np.ndarray | None = None
    ) -> None:  # fmt: skip
        on = self.on if among is None else self.on & among
        warps = on.reshape(-1, 32)
        if (warps != warps[:, :1]).any():
            raise SimulatedHazard("a barrier with threads of a warp missing")
        for w in np.flatnonzero(warps[:, 0]):
            t = int(w) * 32
            which = number if isinstance(number, int) else int(number[t])
            self.barriers.arrive((t // self.stride, which), int(w), threads or self.in_block, stay)

    def cluster_barrier(self) -> None:
        for w in np.flatnonzero(self.whole_warps("barrier.cluster")):
            self.barriers.arrive((0, -1), int(w), self.cluster * self.in_block, True)

    def proxy_fence(self) -> None:
        for rank in range(self.cluster):
            here = self.on & (self.rank == rank)
            if here.any():
                own = slice(rank * self.stride // 32, (rank + 1) * self.stride // 32)
                known = self.knowledge.of[np.unique(np.flatnonzero(here) // 32), own].min(0)
                self.shared.fence(rank, int(np.bitwise_or.reduce(self.bits[here])), known)

    # --- messages -----------------------------------------------------------------------------------------------------
    def trap(self) -> None:
        raise DeviceAssertionError("the kernel has stopped itself")

    def fail(self, message: str, file: str, line: np.ndarray) -> None:
        if self.on.any():
            raise DeviceAssertionError(f"{file}:{int(line[0])}: {message}")

    def print(self, form: str, buffer: object) -> np.ndarray:
        base = int(buffer[0]) if isinstance(buffer, np.ndarray) else 0
        slots = [self.local.pop(k) for k in sorted(self.local) if base and k >> 48 == base >> 48]
        form = form.replace("ll", "").replace("%p", "%#x")
        kinds = re.findall(r"%[0-9#]*([a-z])", form)
        for t in np.nonzero(self.on)[0]:
            values = [
                int(signed(x[t : t + 1], BITS.get(type, int(type[1:]) if type[0] == "i" else 64))[0])
                if how == "i" else x[t].item()
                for (type, x), how in zip(slots, kinds)
            ]  # fmt: skip
            print(form % tuple(values), end="")
        return np.zeros(self.threads, np.uint64)


def merged(on: np.ndarray, new: Value, old: Value) -> Value:
    """Return `new` where threads are on, else `old`."""
    if isinstance(new, tuple):
        if not isinstance(old, tuple) or len(old) != len(new):
            return new
        return tuple(merged(on, a, b) for a, b in zip(new, old))
    if not isinstance(new, np.ndarray) or not isinstance(old, np.ndarray):
        return new
    if new.dtype != old.dtype or new.shape != old.shape:
        return new
    return np.where(on if new.ndim == 1 else on[:, None], new, old)
