"""Holds the barriers of a cluster, named ones and mbarriers, and the warps that wait at them."""

from __future__ import annotations

import numpy as np

from tessera.backends.nvidia.primitives.row import Lanes, Machine
from tessera.backends.nvidia.simulator.memory import SHARED
from tessera.errors import SimulatedHazard


class Knowledge:
    """Tells which accesses of other warps each warp knows to have happened: it has synchronised with them since.

    Times count what is handed over; `now` is the one at which accesses are recorded. They go on from one program to the
    next, which knows all that was before `start`. `met`: by warp, the time up to which its lanes know each other."""

    def __init__(self, warps: int, start: int = 1) -> None:
        self.now = start
        self.of = np.full((warps, warps), start - 1)  # by warp: the time up to which it knows each
        self.met = np.full(warps, start - 1)

    def nothing(self) -> np.ndarray:
        return np.zeros(len(self.of), np.int64)

    def hand_over(self, warp: int, to: np.ndarray) -> None:
        """Add what a warp knows, its own accesses included, to what a barrier keeps."""
        self.of[warp, warp] = self.now
        self.now += 1
        np.maximum(to, self.of[warp], out=to)

    def take(self, warp: int, what: np.ndarray) -> None:
        np.maximum(self.of[warp], what, out=self.of[warp])
        self.met[warp] = max(self.met[warp], what[warp])

    def meet(self, warps: np.ndarray) -> None:
        """Let the lanes of each of `warps` know each other's accesses."""
        self.met[warps] = self.now
        self.now += 1


class Barriers:
    """Named barriers of all CTAs, and the one of the cluster (number -1 of CTA 0)."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.states: dict[tuple[int, int], tuple[int, list[int], int, np.ndarray]] = {}

    def arrive(self, key: tuple[int, int], warp: int, wanted: int, stay: bool) -> None:
        new = (0, list[int](), wanted, self.m.knowledge.nothing())
        count, waiting, before, handed = self.states.get(key, new)
        self.m.knowledge.hand_over(warp, handed)
        if before != wanted:
            raise SimulatedHazard(f"barrier {key[1]} is one of {before} threads and of {wanted}")
        count += 32
        if stay:
            waiting = [*waiting, warp]
            self.m.blocked[warp] = f"barrier {key[1]} ({count} of {wanted} threads)"
        if count > wanted:
            raise SimulatedHazard(f"{count} threads arrive at barrier {key[1]} of {wanted}")
        if count < wanted:
            self.states[key] = (count, waiting, wanted, handed)
            return
        self.states.pop(key, None)
        for w in waiting:
            self.m.knowledge.take(w, handed)
            self.m.blocked[w] = None


class Mbarriers:
    """Holds the mbarriers by address: arrivals left, bytes left, phase, arrivals of a phase."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.states: dict[int, list[int]] = {}
        self.waiting: dict[int, set[tuple[int, int]]] = {}  # by warp: its (address, parity)
        # By address: what the arrivals of this phase have handed over, and those of all before.
        self.handed: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def init(self, bar: Lanes, count: int, mask: Lanes) -> None:
        for t in np.nonzero(mask)[0]:
            self.states[int(bar[t])] = [count, 0, 0, count]
            self.handed[int(bar[t])] = self.m.knowledge.nothing(), self.m.knowledge.nothing()

    def invalidate(self, bar: Lanes, mask: Lanes) -> None:
        for t in np.nonzero(mask)[0]:
            self.state(int(bar[t]))
            del self.states[int(bar[t])]

    def state(self, address: int) -> list[int]:
        if address not in self.states:
            where = f"{address - SHARED:#x} of shared memory"
            raise SimulatedHazard(f"no mbarrier has been made at {where}")
        return self.states[address]

    def arrive(self, bar: Lanes, mask: Lanes, expect: int = 0) -> None:
        for t in np.nonzero(mask)[0]:
            address = int(bar[t])
            state = self.state(address)
            state[1] += expect
            state[0] -= 1
            if state[0] < 0:
                raise SimulatedHazard(f"too many arrivals at the mbarrier at {address - SHARED:#x}")
            self.m.knowledge.hand_over(int(t) // 32, self.handed[address][0])
            self.end_phase(address)

    def start(self, addresses: list[int], warp: int) -> None:
        """Note a copy to arrive in bytes, by whose end the warp's accesses up to here have happened."""
        for address in addresses:
            self.state(address)
            self.m.knowledge.hand_over(warp, self.handed[address][0])

    def bytes(self, address: int, count: int) -> None:
        self.state(address)[1] -= count
        self.end_phase(address)

    def end_phase(self, address: int) -> None:
        state = self.states[address]
        if state[0] == 0 and state[1] == 0:
            state[0], state[2] = state[3], state[2] ^ 1
            arrived, before = self.handed[address]
            before[:] = np.maximum(before, arrived)
            for warp, needs in list(self.waiting.items()):
                if (address, state[2] ^ 1) in needs:
                    needs.discard((address, state[2] ^ 1))
                    self.m.knowledge.take(warp, before)
                if not needs:
                    del self.waiting[warp]
                    self.m.blocked[warp] = None

    def wait(self, bar: Lanes, parity: Lanes, mask: Lanes) -> None:
        for t in np.nonzero(mask)[0]:
            address, phase = int(bar[t]), int(parity[t])
            if self.state(address)[2] == phase:
                warp = int(t) // 32
                self.waiting.setdefault(warp, set()).add((address, phase))
                self.m.blocked[warp] = f"the mbarrier at {address - SHARED:#x}, parity {phase}"
            else:
                self.m.knowledge.take(int(t) // 32, self.handed[address][1])
