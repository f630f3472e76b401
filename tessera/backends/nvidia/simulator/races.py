"""Finds races of a program's warps in global memory: accesses to a byte, one of them a store, with no barrier between.

A program means what it does in the order in which it is written; its warps run each on their own. What one stores,
another sees after both have met at a barrier. For each byte it is recorded when each warp last read it, stored it or
changed it atomically; an access that another warp's may not precede, and does not know of, is a hazard. Atomics do not
race with one another, nor do the elements of one store (of one source line): which of them is the last is left open.
Lanes of a warp are taken for one: they access memory in the order of the program. A copy (cp.async) of a whole vector
reads when it is started; what the TMA unit reads and stores is not recorded.
"""

from __future__ import annotations

import numpy as np

from tessera.backends.nvidia.primitives.row import Machine
from tessera.backends.nvidia.simulator.memory import Extent, Global
from tessera.errors import SimulatedHazard

MOST_BYTES = 1 << 22  # of an array whose accesses are recorded: 12 bytes each and warp
READ, STORED, UPDATED = "read", "stored", "updated"
# Which earlier accesses of other warps each kind of access must know of.
AFTER = {READ: (STORED, UPDATED), STORED: (READ, STORED, UPDATED), UPDATED: (READ, STORED)}


class Races:
    """The accesses of one program after another to global memory."""

    def __init__(self, memory: Global, machine: Machine) -> None:
        self.memory, self.machine = memory, machine
        self.times: dict[tuple[int, str], np.ndarray] = {}  # by extent: [bytes, warps]
        self.lines: dict[int, np.ndarray] = {}  # by extent: of the last store to each byte

    def access(self, how: str, address: np.ndarray, size: int, lanes: np.ndarray) -> None:
        """Record that `lanes` (numbers of threads) access `size` bytes at each address; check it."""
        known, at = self.machine.knowledge, np.arange(size)
        for which, extent in self.memory.pieces(address, size):
            if extent.end - extent.first > MOST_BYTES or extent not in self.memory.extents:
                continue
            first = np.asarray(address[which] - np.uint64(extent.first), np.int64)
            places: np.ndarray = np.add.outer(first, at)
            warps = lanes[which] // 32
            for other in AFTER[how]:
                times = self.times.get((extent.first, other))
                if times is not None:
                    late = times[places] > known.of[warps][:, None]
                    if how == other:
                        late &= (self._lines(extent)[places] != self.machine.line)[..., None]
                    self._check(how, other, late, warps)
            self._of(extent, how)[places, warps[:, None]] = known.now
            if how == STORED:
                self._lines(extent)[places] = self.machine.line

    def _of(self, extent: Extent, how: str) -> np.ndarray:
        key = extent.first, how
        if key not in self.times:
            shape = extent.end - extent.first, self.machine.warps
            self.times[key] = np.zeros(shape, np.int32)  # pages that nobody touches take no memory
        return self.times[key]

    def _lines(self, extent: Extent) -> np.ndarray:
        if extent.first not in self.lines:
            self.lines[extent.first] = np.full(extent.end - extent.first, -1, np.int32)
        return self.lines[extent.first]

    def _check(self, how: str, other: str, late: np.ndarray, warps: np.ndarray) -> None:
        """`late` [lanes, bytes, warps]: whether a lane does not know of a warp's earlier access."""
        per_block = self.machine.stride // 32
        numbers = np.arange(self.machine.warps)
        own: np.ndarray = numbers // per_block == (warps // per_block)[:, None]
        own &= numbers != warps[:, None]  # other warps of this program
        late = late & own[:, None]
        if late.any():
            lane, _, by = (int(x[0]) for x in np.nonzero(late))
            raise SimulatedHazard(
                f"global memory is {how} by warp {int(warps[lane])} and was {other} by warp {by} since they last met: "
                "a barrier is missing between"
            )
