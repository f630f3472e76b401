"""Implements, in native code, how launches are timed: by the clock, and on a GPU by two events each, or by CUPTI."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TypeAlias, cast

from tessera.backends.llvm.subset import Pointer, array, f32, i32, i64, memcpy, native
from tessera.backends.process_singleton import process_singleton
from tessera.runtime.native.launcher import native_code
from tessera.runtime.native.structures import (
    INVALID_HANDLE,
    MONOTONIC,
    NOT_READY,
    ROW_WORDS,
    Entry,
    Run,
    Timing,
)

Elapsed: TypeAlias = Callable[[Pointer[f32], i64, i64], i32]  # cuEventElapsedTime


@native
def is_full(e: Entry) -> bool:
    """Whether there is no room for the times of a launch."""
    timing = e.timing
    return False if timing is None else timing.count >= timing.room


@native
def nanoseconds(t: Timing) -> i64:
    time = array(i64, 2)
    t.clock(i32(MONOTONIC), time)
    return time[0] * 1000000000 + time[1]


@native
def begin(e: Entry, t: Timing, run: Run) -> i64:
    """Take a row, and note that the launch starts; return the number of the row."""
    number = t.count
    t.count = number + 1
    row = t.rows + ROW_WORDS * number
    row[0] = e.tag
    memcpy(row + 1, run.extents, 24)
    record = t.record
    if record is not None:
        record(t.events[2 * number], run.stream)
    capturing = t.capturing
    if capturing is not None:
        status = array(i32, 1)
        status[0] = 0
        capturing(run.stream, status)
        row[7] = 0 if status[0] == 0 else INVALID_HANDLE
    row[4] = nanoseconds(t)
    return number


@native
def end(t: Timing, number: i64, stream: i64) -> i32:
    record = t.record
    if record is not None:
        record(t.events[2 * number + 1], stream)
    row = t.rows + ROW_WORDS * number
    row[5] = nanoseconds(t)
    return 0


@native(exported=True)
def read_times(t: Timing, elapsed: Elapsed, first: i64, count: i64) -> i64:
    """Write into rows from `first` on what is between their events. Return the first row that is not finished."""
    for i in range(first, count):
        row = t.rows + ROW_WORDS * i
        if row[5] != 0:
            row[6] = 0
            code = elapsed(cast(Pointer[f32], row + 6), t.events[2 * i], t.events[2 * i + 1])
            if code == NOT_READY:
                return i
            row[7] = i64(code)
    return count


@process_singleton
def reader() -> Callable[[int, int, int, int], int]:
    """Return `read_times` for Python, with addresses in place of structures and functions."""
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )
    return kind(native_code()["read_times"])
