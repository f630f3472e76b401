"""Keeps the shadows of checked launches, which find programs that race and elements that nothing has stored.

`passes/checks/shadow_checks.py` says what is in a shadow. It lives as long as a launch; that a storage is uninitialised
is known from launch to launch.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np

from tessera.errors import LaunchError
from tessera.interp.extents import array_extent, root_of
from tessera.ops.memory import UNKNOWN_EXTENT

_POISON = 0xCB  # of a float: -2.7e7; of an int32: -875836469
_ROWS = 3  # of a shadow: read, written, changed
Extent = tuple[int, int]
Array = TypeVar("Array")


# Storages that were declared uninitialised, with a flag for each byte: whether a kernel has stored there.
_declared: dict[Extent, np.ndarray] = {}


def uninitialised(x: Array) -> Array:
    """Declare that nothing has stored the elements of an array; return the array.

    `x`: an array of NumPy, or a tensor of torch on the host, of any shape and dtype; its whole storage is meant, and is
    filled with the byte 0xcb. A checked launch (`debug="check"`) then reports the first element that a program reads
    before a kernel has stored it. The declaration lasts from launch to launch, until an unchecked launch, one with
    atomics, or anything but a kernel (NumPy, torch) stores there. Raises LaunchError for an array without host memory.

    Example:
        >>> out = tessera.testing.uninitialised(np.empty(4, np.float32))
        >>> out.view(np.uint8)[:2].tolist()
        [203, 203]

    Compare: Valgrind's memcheck, `compute-sanitizer --tool initcheck`, which see allocations by themselves.
    """
    found = None if getattr(x, "is_cuda", False) else array_extent(x)
    if found is None:
        raise LaunchError(
            f"the memory of a {type(x).__name__} is not known, or not on the host",
            help="declare arrays of NumPy or tensors of torch on the CPU, where checked launches run",
        )
    owner = _owner(x)
    _bytes(found)[:] = _POISON
    ending = weakref.finalize(owner, _declared.pop, found, None)
    ending.atexit = False
    _declared[found] = np.zeros(found[1] - found[0], np.bool_)
    return x


def _owner(x: object) -> object:
    """Return the object whose end is that of the memory."""
    return root_of(cast("np.ndarray", x)) if isinstance(x, np.ndarray) else x


def _bytes(extent: Extent) -> np.ndarray:
    """Return the bytes of a storage."""
    low, high = extent
    return np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))


@dataclass(slots=True)
class Shadows:
    """The shadows of a launch. `unit`: bytes of an entry, 0: the launch keeps none; `events`: how many there are."""

    unit: int
    events: int = 0
    arrays: dict[Extent, np.ndarray] = field(default_factory=dict[Extent, np.ndarray])

    def arguments(
        self, kinds: Sequence[str], args: Sequence[object], stored: Sequence[int]
    ) -> list[object]:
        """Return what a checked build takes for each pointer after its own arguments: first and end address of the
        storage and, if it keeps shadows, that of the storage. There is none (None) where no program stores (`stored`:
        the numbers of the arguments by which it may), and nowhere if an argument is a raw address, which may lead
        anywhere."""
        known = {i: array_extent(args[i]) for i, kind in enumerate(kinds) if kind.startswith("*")}
        closed = self.events < 2**31 and all(
            e is not None or args[i] is None for i, e in known.items()
        )
        changing = {known.get(i) for i in stored}
        added: list[object] = []
        for extent in known.values():
            added += extent or UNKNOWN_EXTENT
            if self.unit:
                added.append(
                    self._shadow(extent, extent in changing) if closed and extent else None
                )
            elif extent in changing and extent:
                _declared.pop(extent, None)  # nobody sees what is stored
        return added

    def _shadow(self, extent: Extent, changing: bool) -> np.ndarray | None:
        known = self.arrays.get(extent)
        if known is None and (changing or extent in _declared):
            entries = -(-(extent[1] - extent[0]) // self.unit)
            known = self.arrays[extent] = np.zeros((_ROWS, entries), np.int32)
            stored = _declared.get(extent)
            if stored is not None and (_bytes(extent)[~stored] == _POISON).all():
                known[-1] = -self._by_unit(~stored)
            else:
                _declared.pop(extent, None)  # somebody else has stored there
        return known

    def _by_unit(self, flags: np.ndarray) -> np.ndarray:
        """Return for each entry whether a byte of it has a flag."""
        padded = np.zeros(-(-flags.size // self.unit) * self.unit, np.bool_)
        padded[: flags.size] = flags
        return np.asarray(padded.reshape(-1, self.unit).any(1)).astype(np.int32)

    def close(self) -> None:
        """Keep what has been stored in storages that are uninitialised."""
        for extent, shadow in self.arrays.items():
            stored = _declared.get(extent)
            if stored is not None:
                stored |= np.repeat(shadow[1] > 0, self.unit)[: stored.size]
