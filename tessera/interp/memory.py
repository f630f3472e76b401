"""Accesses memory for the interpreter: reads and writes vectors of addresses through a view of the address space.

Accesses are checked against the storages of the kernel's array arguments. A kernel with raw addresses as arguments,
or that loads pointers from memory, may reach other storage: then only null is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tessera.errors import InterpreterError, OutOfBounds
from tessera.interp.numerics import from_storage, storage, to_storage
from tessera.ir import ElementType

_BASE = 4096  # the first page is never mapped, so the window starts after it

Kind = type[np.generic] | np.dtype[np.generic]  # of the words in which memory is accessed


class _Window:
    """The whole address space as one NumPy array of `width`-byte words."""

    def __init__(self, kind: Kind):
        width = np.dtype(kind).itemsize
        shape = (((1 << 47) - _BASE) // width,)
        self.__array_interface__ = {
            "shape": shape, "typestr": np.dtype(kind).str, "data": (_BASE, False), "version": 3
        }  # fmt: skip


@dataclass(slots=True)
class Memory:
    """Storages known to the launch: `extents` maps argument names to (first address, end address)."""

    extents: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    open: bool = False  # whether pointers to unknown storage may occur
    windows: dict[Kind, np.ndarray] = field(default_factory=dict[Kind, np.ndarray])

    def _words(
        self, address: np.ndarray, kind: Kind, what: str, mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the window of words of a kind, and the index of each address in it, after checking them."""
        width = np.dtype(kind).itemsize
        address = np.asarray(address, np.int64)
        if address.size:
            self._check(address, width, what, mask)
            if int(np.bitwise_or.reduce(address, axis=None)) & (width - 1):
                first = int(address.reshape(-1)[np.argmax(address.reshape(-1) % width != 0)])
                raise InterpreterError(
                    f"{what} at address {first:#x}, which is not a multiple of {width} bytes"
                )
        if kind not in self.windows:
            self.windows[kind] = np.asarray(_Window(kind))
        return self.windows[kind], (address - _BASE) >> (width.bit_length() - 1)

    def _check(self, address: np.ndarray, width: int, what: str, mask: np.ndarray | None) -> None:
        lowest, highest = int(address.min()), int(address.max()) + width
        if self.open and lowest >= _BASE:
            return
        for low, high in self.extents.values():
            if low <= lowest and highest <= high:
                return  # the usual case: all in one array
        flat = address.reshape(-1)
        inside = np.full(flat.shape, False)
        for low, high in self.extents.values():
            inside |= (flat >= low) & (flat + width <= high)
        if self.open:
            inside = flat >= _BASE
        if not inside.all():
            first = int(np.argmin(inside))
            where = int(flat[first])
            dims = address.shape
            if mask is not None:
                first, dims = int(np.flatnonzero(mask)[first]), mask.shape
            at = tuple(map(int, np.unravel_index(first, dims)))
            element = f"element ({', '.join(map(str, at))}) of the tile" if at else "it"
            raise OutOfBounds(
                f"{what} out of bounds: {element} is at {self._place(where, width)}",
                help=f'{OutOfBounds.help}; `debug="check"` shows what the address is made of',
            )

    def _place(self, address: int, width: int) -> str:
        """Describe an address outside all storages, in elements of the nearest one."""
        if not self.extents:
            return f"address {address:#x}"
        name, (low, high) = min(
            self.extents.items(), key=lambda e: max(e[1][0] - address, address - e[1][1] + 1, 0)
        )
        last = (high - low) // width - 1
        return f"element {(address - low) // width} of `{name}`, whose storage ends after {last}"

    def load(
        self,
        address: np.ndarray,
        elem: ElementType,
        mask: np.ndarray | None,
        other: np.ndarray | None,
    ) -> np.ndarray:
        """Load values of type `elem` at `address` where `mask`; elsewhere return `other`, or 0."""
        kind = storage(elem)
        if mask is None or np.all(mask):
            words, index = self._words(address, kind, "load")
            return from_storage(words[index], elem)
        raw = np.zeros(np.shape(address), kind)
        active = np.asarray(address)[mask]
        words, index = self._words(active, kind, "load", mask)
        raw[mask] = words[index]
        value = from_storage(raw, elem)
        return value if other is None else np.where(mask, value, other)

    def store(
        self, address: np.ndarray, value: np.ndarray, elem: ElementType, mask: np.ndarray | None
    ) -> None:
        raw = to_storage(value, elem)
        if mask is not None and not np.all(mask):
            address, raw = np.asarray(address)[mask], np.asarray(raw)[mask]
        words, index = self._words(address, storage(elem), "store", mask)
        words[index] = raw
