"""Holds what native launches write of their times: blocks of rows, on a GPU with two CUDA events for each row, unless
CUPTI times its kernels."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tessera.backends.llvm.subset_types import words_of
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.native.structures import INVALID_HANDLE, ROW_WORDS, Timing
from tessera.runtime.native.timing import reader

ROWS = 2048  # of a block
SPARE: dict[int, list[int]] = {}  # events of each context: making one takes longer than recording


class Row(NamedTuple):
    """One launch: the kernel's tag, the grid, start in nanoseconds, seconds of the device's work (None: CUPTI has
    them)."""

    tag: int
    grid: tuple[int, int, int]
    start: int
    seconds: float | None


class Block:
    """Room for the times of ROWS launches: a structure `Timing` at `address`, which native launches fill. `on_gpu`: on
    the current CUDA context, where events time the launches, or CUPTI (`events`)."""

    def __init__(self, on_gpu: bool, events: bool = True) -> None:
        self._api = cuda.driver() if on_gpu else None
        self._by_events, self._by_cupti = on_gpu and events, on_gpu and not events
        self._spare: list[int] = []
        made: list[int] = []
        if self._api is not None and self._by_events:
            self._spare = SPARE.setdefault(self._api.current_context(), [])
            made = self._spare[: 2 * ROWS]
            del self._spare[: 2 * ROWS]
            made += [self._api.event_create() for _ in range(2 * ROWS - len(made))]
        self._events = (ctypes.c_uint64 * len(made))(*made)
        self._rows = (ctypes.c_int64 * (ROW_WORDS * ROWS))()
        clock = ctypes.CDLL(None).clock_gettime
        fields = {
            "record": self._address("cuEventRecord", self._by_events),
            "capturing": self._address("cuStreamIsCapturing", self._by_cupti),
            "clock": ctypes.cast(clock, ctypes.c_void_p).value or 0, "count": 0, "room": ROWS,
            "events": ctypes.addressof(self._events), "rows": ctypes.addressof(self._rows),
        }  # fmt: skip
        self._timing = words_of(Timing, fields)
        self._count = list(fields).index("count")
        self.address = ctypes.addressof(self._timing)

    def _address(self, name: str, wanted: bool) -> int:
        return self._api.address(name) if self._api is not None and wanted else 0

    @property
    def used(self) -> int:
        return self._timing[self._count]

    @property
    def full(self) -> bool:
        return self.used >= ROWS

    def finish(self, wait: bool = True) -> bool:
        """Write the times between events into the rows and let other blocks have the events. False if some launches are
        not finished and nobody waits."""
        if self._api is not None and self._by_events:
            elapsed, done = self._api.address("cuEventElapsedTime"), 0
            while (done := reader()(self.address, elapsed, done, self.used)) < self.used:
                if not wait:
                    return False
                self._api.event_synchronize(self._events[2 * done + 1])
            self._spare += self._events[:]
        return True

    def rows(self) -> Iterator[Row]:
        """Yield the launches that have started. Those that a CUDA graph captured have no time of their own."""
        words = self._rows[: ROW_WORDS * self.used]
        columns = [words[i::ROW_WORDS] for i in range(ROW_WORDS)]
        for tag, x, y, z, start, end, between, code in zip(*columns, strict=True):
            if not end or code == INVALID_HANDLE:
                continue
            seconds = None if self._by_cupti else (end - start) * 1e-9
            if self._api is not None and self._by_events:
                self._api.check("cuEventElapsedTime", code)
                seconds = struct.unpack("<fi", struct.pack("<q", between))[0] * 1e-3
            yield Row(tag, (x, y, z), start, seconds)


class Blocks:
    """The blocks of one profile. `_open`, by backend and device: those whose launches may be under way."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], list[Block]] = {}
        self._finished: list[Block] = []

    def current(self, backend: str, device: int, events: bool = True) -> Block:
        """Return a block with free rows, on a GPU with `events` or for times by CUPTI."""
        blocks = self._open.setdefault((backend, device), [])
        if not blocks or blocks[-1].full:
            while blocks and blocks[0].finish(wait=False):
                self._finished.append(blocks.pop(0))
            blocks.append(Block(backend == "cuda", events))
        return blocks[-1]

    def rows(self) -> Iterator[Row]:
        """Yield all launches, after waiting for them, and drop the blocks."""
        found = self._finished
        for block in (b for blocks in self._open.values() for b in blocks):
            block.finish()
            found.append(block)
        self._open, self._finished = {}, []
        for block in found:
            yield from block.rows()
