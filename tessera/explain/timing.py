"""Times launches on the CPU at hand, and makes the arrays for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from tessera.backends.cpu.pool import default_threads
from tessera.config import knobs
from tessera.dtypes import by_short_name

PAGE = 4096  # bytes
SHIFT = 640  # bytes by which arrays of one launch begin apart in their pages: no power of two, whole lines of caches


def threads_used() -> int:
    return knobs.runtime.num_threads or default_threads()


def typical(run: Callable[[], object], rounds: int, seconds: float = 0.0) -> float:
    """Return the median time of at least `rounds` calls, and of as many as take `seconds`, since a kernel, too, runs
    while others use caches, memory and the other half of a core; of one thread that of the processor, which does not
    count what others take of its time."""
    run()
    clock = time.process_time if threads_used() == 1 else time.perf_counter
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < rounds or time.perf_counter() < end:
        start = clock()
        run()
        times.append(clock() - start)
    return median(times)


def ones(kind: str, count: int, shift: int = 0) -> np.ndarray:
    """Return an array of ones of a type, as words of its size, that begins `shift` bytes behind the begin of a page."""
    elem = by_short_name(kind)
    one = elem.exponent_bias << elem.fp_mantissa_width if elem.is_floating() else 1
    size = count * elem.storage_bytes
    room = np.empty(size + PAGE + shift, np.uint8)
    first = -room.ctypes.data % PAGE + shift
    found = room[first : first + size].view(f"u{elem.storage_bytes}")
    # Zeros would not do: memory that was only asked for is one page of them, which the first cache holds.
    found[:] = one
    return found
