"""Holds the barriers of a cluster, named ones and mbarriers, and the warps that wait at them."""

from __future__ import annotations

import numpy as np

from tessera.backends.nvidia.primitives.row import Lanes, Machine
from tessera.backends.nvidia.simulator.memory import SHARED
from tessera.errors import SimulatedHazard


class Barriers:
    """Named barriers of all CTAs, and the one of the cluster (number -1 of CTA 0)."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.states: dict[tuple[int, int], tuple[int, list[int], int]] = {}

    def arrive(self, key: tuple[int, int], warp: int, wanted: int, stay: bool) -> None:
        count, waiting, before = self.states.get(key, (0, [], wanted))
        if before != wanted:
            raise SimulatedHazard(f"barrier {key[1]} is one of {before} threads and of {wanted}")
        count += 32
        if stay:
            waiting = [*waiting, warp]
            self.m.blocked[warp] = f"barrier {key[1]} ({count} of {wanted} threads)"
        if count > wanted:
            raise SimulatedHazard(f"{count} threads arrive at barrier {key[1]} of {wanted}")
        if count < wanted:
            self.states[key] = (count, waiting, wanted)
            return
        self.states.pop(key, None)
        for w in waiting:
            self.m.blocked[w] = None


class Mbarriers:
    """Holds the mbarriers by address: arrivals left, bytes left, phase, arrivals of a phase."""

    def __init__(self, m: Machine) -> None:
        self.m = m
        self.states: dict[int, list[int]] = {}
        self.waiting: dict[int, set[tuple[int, int]]] = {}  # by warp: its (address, parity)

    def init(self, bar: Lanes, count: int, mask: Lanes) -> None:
        for t in np.nonzero(mask)[0]:
            self.states[int(bar[t])] = [count, 0, 0, count]

    def invalidate(self, bar: Lanes, mask: Lanes) -> None:
        for t in np.nonzero(mask)[0]:
            self.state(int(bar[t]))
            del self.states[int(bar[t])]

    def state(self, address: int) -> list[int]:
        if address not in self.states:
            raise SimulatedHazard(
                f"no mbarrier has been made at {address - SHARED:#x} of shared memory"
            )
        return self.states[address]

    def arrive(self, bar: Lanes, mask: Lanes, expect: int = 0) -> None:
        for t in np.nonzero(mask)[0]:
            address = int(bar[t])
            state = self.state(address)
            state[1] += expect
            state[0] -= 1
            if state[0] < 0:
                raise SimulatedHazard(f"too many arrivals at the mbarrier at {address - SHARED:#x}")
            self.end_phase(address)

    def bytes(self, address: int, count: int) -> None:
        self.state(address)[1] -= count
        self.end_phase(address)

    def end_phase(self, address: int) -> None:
        state = self.states[address]
        if state[0] == 0 and state[1] == 0:
            state[0], state[2] = state[3], state[2] ^ 1
            for warp, needs in list(self.waiting.items()):
                needs.discard((address, state[2] ^ 1))
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
