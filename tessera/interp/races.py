"""Finds races between programs in checked launches of the interpreter.

Programs of a launch run in any order and concurrently: what one stores, another may neither read nor store. The
interpreter runs them one after another, and records for each element who first read it and who last stored it:

    total = tl.load(out)         program (1, 0, 0) reads what program (0, 0, 0) has changed: a race
    tl.store(out, total + s)

Storing the value that is already there conflicts with nothing. Kernels with atomics, volatile loads or raw pointers
order their accesses in ways that are not modelled, so they are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tessera.errors import FailedTile, Loc, ProgramRace
from tessera.ir import Module
from tessera.ops import memory

Program = tuple[int, int, int]
Tile = tuple[int, tuple[int, ...], np.ndarray]  # bytes of an element; shape; the elements, counted
_ORDERED = (memory.Atomic, memory.DescriptorStoreOp)


def may_race(module: Module) -> bool:
    """Whether a module lacks everything by which its programs could order their accesses."""
    return not any(
        isinstance(op, _ORDERED) or (isinstance(op, memory.LoadOp) and op.volatile)
        for op in module.walk()
    )


@dataclass(slots=True)
class _Shadow:
    """Event numbers, from 1, for each byte of a storage: its first read, its last store, its last change."""

    name: str
    read: np.ndarray
    written: np.ndarray
    changed: np.ndarray


@dataclass(slots=True)
class Races:
    """Detects races. `extents`: argument names → (first address, end address); `here`: the source of the next
    access."""

    extents: Mapping[str, tuple[int, int]]
    here: tuple[Program, Loc | None] = ((0, 0, 0), None)
    events: list[tuple[Program, Loc | None]] = field(
        default_factory=list[tuple[Program, "Loc | None"]]
    )
    shadows: dict[tuple[int, int], _Shadow] = field(default_factory=dict[tuple[int, int], _Shadow])

    def load(self, address: np.ndarray, width: int) -> None:
        """Record addresses that this program reads."""
        shape = np.shape(address)
        for shadow, at, which in self._places(address):
            self._refuse(shadow, at, shadow.changed, (width, shape, which), "reads", "has stored")
            new = at[shadow.read[at] == 0]
            shadow.read[new] = self._event()

    def store(self, address: np.ndarray, width: int, changes: np.ndarray) -> None:
        """Record addresses that this program writes; `changes`: whether the value differs from the old one."""
        for shadow, at, which in self._places(address):
            differs = changes.reshape(-1)[which]
            new, tile = at[differs], (width, np.shape(address), which[differs])
            self._refuse(shadow, new, shadow.read, tile, "stores", "has read")
            self._refuse(shadow, new, shadow.written, tile, "stores", "has stored")
            shadow.written[at] = shadow.changed[new] = event = self._event()
            shadow.changed[at[shadow.changed[at] > 0]] = event  # the program's own now, too

    def _places(self, address: np.ndarray) -> list[tuple[_Shadow, np.ndarray, np.ndarray]]:
        """Return the storages that are accessed, the offsets in each, and the elements they belong to."""
        flat = np.asarray(address, np.int64).reshape(-1)
        found: dict[tuple[int, int], tuple[_Shadow, np.ndarray, np.ndarray]] = {}
        for name, (low, high) in self.extents.items():
            which = np.flatnonzero((flat >= low) & (flat < high))
            if not which.size or (low, high) in found:
                continue
            shadow = self.shadows.get((low, high))
            if shadow is None:
                shadow = _Shadow(name, *np.zeros((3, high - low), np.int32))
                self.shadows[low, high] = shadow
            found[low, high] = shadow, flat[which] - low, which
        return list(found.values())

    def _event(self) -> int:
        if not self.events or self.events[-1] != self.here:
            self.events.append(self.here)
        return len(self.events)

    def _refuse(
        self, shadow: _Shadow, at: np.ndarray, seen: np.ndarray, tile: Tile, does: str, did: str
    ) -> None:
        """Raise an error for the first address that another program has accessed."""
        (program, here), (width, shape, which) = self.here, tile
        for event in map(int, np.unique(seen[at])):
            if not event or self.events[event - 1][0] == program:
                continue
            other, loc = self.events[event - 1]
            element = int(at[np.argmax(seen[at] == event)]) // width
            error = ProgramRace(
                f"program {program} {does} element {element} of `{shadow.name}`, which program {other} {did}",
                loc=here,
            )
            if shape:
                others = [i for i, (by, _) in enumerate(self.events, 1) if by != program]
                bad = np.zeros(int(np.prod(shape)), np.uint8)
                bad[which[np.isin(seen[at], others)]] = 1
                error.failed = FailedTile(shape, bad.tobytes(), program, int(np.argmax(bad)))
            raise error if loc is None else error.note(f"the other access is at {loc.short()}")
