"""Gives the arguments of a kernel addresses, and lets a count of its work read their memory without changing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.dtypes import pointer_type
from tessera.interp import address_of, array_extent
from tessera.interp.memory import Memory
from tessera.interp.numerics import from_storage, settle, storage
from tessera.ir import ElementType, Value

UNKNOWN_BASE = (
    1 << 40
)  # of the first argument that has no memory; the next ones follow at this distance


@dataclass(frozen=True, slots=True)
class Range:
    """The memory of one argument: its addresses for the kernel, and a function that returns where the host has it."""

    name: str
    low: int
    high: int
    host: Callable[[], Any] | None = None  # None: there is no data


@dataclass(slots=True)
class QuietMemory(Memory):
    """Memory that is read where data is, is zero elsewhere, and is never written. `guessed`: whether a value that
    decides the kernel's work was read where there is no data."""

    ranges: list[Range] = field(default_factory=list[Range])
    copies: dict[str, Any] = field(default_factory=dict[str, Any])
    guessed: bool = False

    def load(
        self, address: np.ndarray, elem: ElementType, mask: np.ndarray | None, other: np.ndarray | None
    ) -> np.ndarray:  # fmt: skip
        kind = storage(elem)
        address = np.asarray(address, np.int64)
        raw = np.zeros(address.shape, kind)
        wanted = (
            np.ones(address.shape, bool) if mask is None else np.broadcast_to(mask, address.shape)
        )
        for r in self.ranges:
            inside = wanted & (address >= r.low) & (address + raw.itemsize <= r.high)
            if r.host is None or not inside.any():
                continue
            self.open = True  # what is read was checked
            words, index = self._words(address[inside] - r.low + self._host(r), kind, "load")
            raw[inside] = words[index]
            wanted = wanted & ~inside
        self.guessed |= bool(wanted.any())
        value = from_storage(raw, elem)
        return value if other is None or mask is None else np.where(mask, value, other)

    def store(self, address: object, value: object, elem: object, mask: object) -> None:
        """Write nothing."""

    def _host(self, r: Range) -> int:
        if r.name not in self.copies:
            self.copies[r.name] = r.host() if r.host is not None else 0
        found = self.copies[r.name]
        return found if isinstance(found, int) else found.data_ptr()


def bind(formals: Sequence[Value], args: Sequence[object]) -> tuple[list[object], QuietMemory]:
    """Return the values of a kernel's IR arguments for a launch with `args`, and its memory."""
    memory, values = QuietMemory(), list[object]()
    for number, (formal, x) in enumerate(zip(formals, args, strict=True)):
        if not isinstance(formal.type, pointer_type):
            values.append(settle(np.asarray(x), formal.type))
            continue
        extent = array_extent(x)
        if extent is None or extent == (0, 0):
            low = address_of(x) or UNKNOWN_BASE * (1 + number)
            extent, host = (low, low + UNKNOWN_BASE // 2), None
            address = low
        else:
            address, host = address_of(x), _host_of(x, extent[0])
        memory.ranges.append(Range(formal.name, *extent, host))
        values.append(np.asarray(address, np.int64))
    return values, memory


def _host_of(x: Any, low: int) -> Callable[[], Any]:
    if getattr(x, "is_cuda", False):
        return lambda: x.untyped_storage().cpu()
    return lambda: low


def known_bytes(memory: QuietMemory) -> dict[str, int]:
    """Return the size of each array argument whose size is known."""
    return {r.name: r.high - r.low for r in memory.ranges if r.host is not None}
