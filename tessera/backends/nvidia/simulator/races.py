"""Finds races of a program's threads in global memory: accesses to a byte, one a store, with no barrier between.

A program means what it does in the order in which it is written; its threads run each on their own. What one stores,
another sees after both have met at a barrier, be it only of their warp. For each byte it is recorded when each warp
last read it, stored it or changed it atomically, and by which lane; an access that another thread's may not precede,
and does not know of, is a hazard. Atomics do not race with one another, nor do the elements of one store (of one source
line): which of them is the last is left open. A copy (cp.async) of a whole vector reads when it is started, and the TMA
unit reads and stores then, too, as the thread that starts it.
"""

from __future__ import annotations

import numpy as np

from tessera.backends.nvidia.primitives.row import Machine
from tessera.backends.nvidia.simulator.boxes import TensorMap
from tessera.backends.nvidia.simulator.memory import Extent, Global
from tessera.errors import SimulatedHazard

MOST_BYTES = 1 << 22  # of an array whose accesses are recorded: 15 bytes each and warp
READ, STORED, UPDATED = "read", "stored", "updated"
# Which earlier accesses of other threads each kind of access must know of.
AFTER = {READ: (STORED, UPDATED), STORED: (READ, STORED, UPDATED), UPDATED: (READ, STORED)}
SEVERAL = -1  # lanes of a warp accessed a byte since they last met


class Races:
    """The accesses of one program after another to global memory."""

    def __init__(self, memory: Global, machine: Machine) -> None:
        self.memory, self.machine = memory, machine
        # By extent: [bytes, warps], when each warp last accessed a byte, and which of its lanes.
        self.times: dict[tuple[int, str], tuple[np.ndarray, np.ndarray]] = {}
        self.lines: dict[int, np.ndarray] = {}  # by extent: of the last store to each byte

    def access(self, how: str, address: np.ndarray, size: int, threads: np.ndarray) -> None:
        """Record that `threads` access `size` bytes at each address; check it."""
        at = np.arange(size)
        for which, extent in self.memory.pieces(address, size):
            if extent.end - extent.first > MOST_BYTES or extent not in self.memory.extents:
                continue
            first = np.asarray(address[which] - np.uint64(extent.first), np.int64)
            places: np.ndarray = np.add.outer(first, at)
            for other in AFTER[how]:
                self._check(how, other, extent, places, threads[which])
            self._record(how, extent, places, threads[which])
            if how == STORED:
                self._lines(extent)[places] = self.machine.line

    def box(self, how: str, box: TensorMap, at: tuple[int, ...], thread: int) -> None:
        """Record what the TMA unit accesses for a thread."""
        rows, start, first, last = box.lines(at, how == READ)
        self.access(how, start.astype(np.uint64), last - first, np.full(rows.size, thread))

    def _record(self, how: str, extent: Extent, places: np.ndarray, threads: np.ndarray) -> None:
        key = extent.first, how
        if key not in self.times:
            shape = extent.end - extent.first, self.machine.warps
            # Pages that nobody touches take no memory.
            self.times[key] = np.zeros(shape, np.int32), np.zeros(shape, np.int8)
        times, by = self.times[key]
        warps, lanes = (x[:, None] for x in np.divmod(threads, 32))
        known = self.machine.knowledge
        shared = (times[places, warps] > known.met[warps]) & (by[places, warps] != lanes)
        by[places, warps] = lanes
        shared |= by[places, warps] != lanes  # of this access, too
        times[places, warps] = known.now
        by[places[shared], np.broadcast_to(warps, places.shape)[shared]] = SEVERAL

    def _lines(self, extent: Extent) -> np.ndarray:
        if extent.first not in self.lines:
            self.lines[extent.first] = np.full(extent.end - extent.first, -1, np.int32)
        return self.lines[extent.first]

    def _check(
        self, how: str, other: str, extent: Extent, places: np.ndarray, threads: np.ndarray
    ) -> None:
        """Check that the threads know of earlier accesses that they must come after."""
        if (extent.first, other) not in self.times:
            return
        times, by = (x[places] for x in self.times[extent.first, other])  # [threads, bytes, warps]
        warps, lanes = (x[:, None] for x in np.divmod(threads, 32))
        per_block, numbers = self.machine.stride // 32, np.arange(self.machine.warps)
        known, own = self.machine.knowledge, numbers == warps
        beside: np.ndarray = (numbers // per_block == warps // per_block) & ~own  # of this program
        late = (times > known.of[warps[:, 0]][:, None]) & beside[:, None]
        late |= (times > known.met) & (by != lanes[..., None]) & own[:, None]
        if how == other:
            late &= (self._lines(extent)[places] != self.machine.line)[..., None]
        if late.any():
            i, _, w = (int(x[0]) for x in np.nonzero(late))
            who = f"warp {w}" if w != warps[i, 0] else "another thread of it"
            raise SimulatedHazard(
                f"global memory is {how} by warp {int(warps[i, 0])} and was {other} by {who} since they last met: "
                "a barrier is missing between"
            )
