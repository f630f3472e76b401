"""Counts bank conflicts: shared memory has 32 banks of 4 bytes, each of which serves one word at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tessera.backends.nvidia.primitives.row import Machine

BANKS = 32  # of shared memory, each 4 bytes wide


@dataclass
class Traffic:
    """Counts for one instruction at one source line how often a warp ran it, how many passes over the banks that took,
    and how many it would have taken without conflicts."""

    accesses: int = 0
    passes: int = 0
    ideal: int = 0

    @property
    def conflicts(self) -> int:
        return self.passes - self.ideal


def passes(where: np.ndarray, size: int, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each warp, the passes that an access of `size` bytes at `where` takes, and the fewest possible.

    An access is split into phases of at most 128 bytes: all lanes, halves for 8 bytes, quarters for 16 (also the rows
    of an ldmatrix matrix). A phase takes as many passes as there are different words in the bank that has most of them.
    """
    lanes = min(32, BANKS * 4 // size)
    words = max(1, size // 4)
    at = (where >> np.uint64(2)).astype(np.int64)[:, None] + np.arange(words)
    at = np.where(mask[:, None], at, -1).reshape(-1, lanes * words)
    at.sort(axis=1)
    new = at >= 0
    new[:, 1:] &= at[:, 1:] != at[:, :-1]
    phase = np.broadcast_to(np.arange(len(at))[:, None], at.shape)
    load = np.bincount((phase * BANKS + at % BANKS)[new], minlength=len(at) * BANKS)
    taken = load.reshape(len(at), BANKS).max(1)
    per = 32 // lanes
    return taken.reshape(-1, per).sum(1), new.any(1).reshape(-1, per).sum(1)


class Banks:
    """Traffic by source line and instruction."""

    def __init__(self) -> None:
        self.traffic: dict[tuple[str, str], Traffic] = {}

    def count(self, m: Machine, where: np.ndarray, size: int, mask: np.ndarray) -> None:
        taken, best = passes(where, size, mask)
        found = self.traffic.setdefault((m.place_of(m.line), m.step.name), Traffic())
        found.accesses += int((best > 0).sum())
        found.passes += int(taken.sum())
        found.ideal += int(best.sum())
