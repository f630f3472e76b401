"""Measures what the CPU at hand can do, once in a process: copies of arrays that fit each cache, products in registers'
time by the clock, and the time of a launch that does nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median

import numpy as np

from tessera.analysis.machines import Machine
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.effects import STREAM_BYTES
from tessera.backends.cpu.pool import default_threads
from tessera.backends.cpu.target import resolve
from tessera.config import knobs
from tessera.explain.predict import WRITE_ALLOCATE
from tessera.explain.probes import copy_blocks, multiply_adds  # pyright: ignore[reportUnknownVariableType]
from tessera.runtime.benchmark import device_name
from tessera.runtime.driver import driver_named

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL = {2: 1 << 20, 3: 32 << 20}  # bytes of caches, where the system does not tell
BLOCK = 4096
LARGEST = 256 << 20  # bytes of the arrays that stand for memory
CHAINS = 8  # of multiplications and additions: two units of four cycles have always something to do
TRIPS = 250_000  # of the loop that measures the clock: about a millisecond
SHARE = 0.95  # of the peak that products reach


def cache_bytes() -> dict[int, int]:
    """Return the bytes of the CPU's caches by level: of one core for level 2."""
    found = dict(USUAL)
    for place in CACHES.glob("index*") if CACHES.exists() else ():
        level = int((place / "level").read_text())
        size = (place / "size").read_text().strip()
        if level in found and size.endswith("K"):
            found[level] = int(size[:-1]) << 10
    return found


def _typical(run: Callable[[], object], rounds: int) -> float:
    """Return the median time of a few calls, since a kernel, too, runs while others use caches, memory and the other
    half of a core; of one thread that of the processor, which does not count what others take of its time."""
    run()
    clock = time.process_time if threads_used() == 1 else time.perf_counter
    times: list[float] = []
    for _ in range(rounds):
        start = clock()
        run()
        times.append(clock() - start)
    return median(times)


def threads_used() -> int:
    return knobs.runtime.num_threads or default_threads()


def _copy_rate(size: int) -> float:
    """Return the bytes a second that copies of `size` bytes move, lines that are read before they are written
    included: large copies bypass the caches."""
    n = size // 8
    # Memory that was only asked for is one page of zeros, which the first cache holds.
    x, out = np.ones(n, np.float32), np.ones(n, np.float32)
    start = copy_blocks[(-(-n // BLOCK),)]  # pyright: ignore[reportUnknownVariableType]
    times = max(3, min(40, (64 << 20) // size))
    moved = 4 * n * (1 + (1 if 4 * n >= STREAM_BYTES else WRITE_ALLOCATE))
    return moved / _typical(partial(start, x, out, n, BLOCK=BLOCK), times)


def _lanes() -> int:
    """Return the elements of fp32 in a vector."""
    _, facts = resolve(knobs.cpu.isa or "native")
    return facts.vector_bits // 32


def cpu() -> Machine:
    """Return the machine at hand, with as many threads as launches use now."""
    return _measured(threads_used())


def measured_anew() -> Machine:
    """Return the machine at hand as it is now: other programs may have left it more or less since."""
    _measured.cache_clear()
    return cpu()


@cache
def _measured(threads: int) -> Machine:
    caches = cache_bytes()
    out = np.zeros(BLOCK * threads, np.float32)
    launch = _typical(lambda: copy_blocks[(1,)](out, out, 1, BLOCK=BLOCK), 50)
    flops = _flops(threads)
    l2, l3 = threads * caches[2], caches[3]
    levels = (
        (0.75 * l2, _copy_rate(l2 // 2)),
        (0.75 * l3, _copy_rate(l3 // 2)),
        (float("inf"), _copy_rate(max(3 * l3, LARGEST))),
    )
    products = {kind: times * SHARE * flops for kind, times in _products().items()}
    clock = flops / (
        4 * _lanes() * threads
    )  # of one that multiplies and adds two vectors in a cycle
    return Machine(device_name(), threads, clock, levels, flops, products, launch)


def _products() -> dict[str, float]:
    """Return how many times the operations of fp32 products those of other types are, by the CPU's instructions."""
    _, facts = resolve(knobs.cpu.isa or "native")
    bf16 = 16.0 if facts.tiles else 2.0 if facts.bf16_dot else 1.0
    bytes_ = 32.0 if facts.tiles else 4.0 if facts.bytes_dot else 1.0
    return {"fp32": 1.0, "fp64": 0.5, "bf16": bf16, "int8": bytes_, "uint8": bytes_}


def _flops(threads: int) -> float:
    """Return operations of fp32 a second by the clock that the cores reach now."""
    return 2.0 * threads / multiply_add_seconds(TRIPS, 25)


def multiply_add_seconds(trips: int, rounds: int) -> float:
    """Return the seconds that a multiply-add of one element takes in one core that does nothing else."""
    block = CHAINS * _lanes()
    out = np.zeros(block, np.float32)
    return _typical(lambda: multiply_adds[(1,)](out, trips, BLOCK=block), rounds) / (trips * block)


def is_native(target: GPUTarget) -> bool:
    """Whether the machine at hand is the one that a CPU target means."""
    return target.backend == "cpu" and driver_named("cpu").get_current_target().arch == target.arch
