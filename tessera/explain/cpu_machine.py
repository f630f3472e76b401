"""Measures what the CPU at hand can do, once in a process: copies of arrays that fit each cache, multiply-adds in
registers, matrix products, and the time of a launch that does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from tessera.analysis.machines import Machine
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.effects import STREAM_BYTES
from tessera.backends.cpu.target import resolve
from tessera.config import knobs
from tessera.explain.probes import (
    copy_blocks,  # pyright: ignore[reportUnknownVariableType]
    multiply_adds,  # pyright: ignore[reportUnknownVariableType]
    read_blocks,  # pyright: ignore[reportUnknownVariableType]
    update_blocks,  # pyright: ignore[reportUnknownVariableType]
)
from tessera.explain.product_rates import ProductRates
from tessera.explain.timing import SHIFT, ones, threads_used, typical
from tessera.runtime.benchmark import device_name
from tessera.runtime.driver import driver_named
from tessera.runtime.launching.interface import KernelInterface

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL = {2: 1 << 20, 3: 32 << 20}  # bytes of caches, where the system does not tell
BLOCK = 4096
PARTS = 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4  # of the third cache, of which others use some
LARGEST = 256 << 20  # bytes of the arrays that stand for memory
ROUNDS, SECONDS = 5, 0.02  # of a measurement, at least
LEAST = 0.1  # of a copy's time, that its writes take: they wait for the memory that reads use, whatever noise says
CHAINS = 8  # of multiplications and additions: two units of four cycles have always something to do
TRIPS = 250_000  # of the loop that measures the clock: about a millisecond


def cache_bytes() -> dict[int, int]:
    """Return the bytes of the CPU's caches by level: of one core for level 2."""
    found = dict(USUAL)
    for place in CACHES.glob("index*") if CACHES.exists() else ():
        level = int((place / "level").read_text())
        size = (place / "size").read_text().strip()
        if level in found and size.endswith("K"):
            found[level] = int(size[:-1]) << 10
    return found


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second that are read; that are written, where a line is read before it is written; and that are written
    past the caches."""

    read: float
    write: float
    stream: float = 0.0


def _rates(size: int) -> Rates:
    """Return the rates of memory, or of the cache, that holds `size` bytes."""
    n = size // 4
    x = ones("fp32", n).view(np.float32)
    out = ones("fp32", max(n // 2, n // BLOCK + 1), SHIFT).view(np.float32)
    whole, half = (-(-n // BLOCK),), (-(-n // 2 // BLOCK),)
    read = 4 * n / _time(read_blocks, whole, x, out, n)  # pyright: ignore[reportUnknownArgumentType]
    update = 4 * n / _time(update_blocks, whole, x, n)  # pyright: ignore[reportUnknownArgumentType]
    if 2 * n < STREAM_BYTES:
        return Rates(read, update)
    copied = _time(copy_blocks, half, x, out, n // 2)  # pyright: ignore[reportUnknownArgumentType]
    return Rates(read, update, 2 * n / max(copied - 2 * n / read, copied * LEAST))


def _time(kernel: KernelInterface, grid: tuple[int, ...], *args: object) -> float:
    return typical(partial(kernel[grid], *args, BLOCK=BLOCK), ROUNDS, SECONDS)


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
    launch = typical(lambda: copy_blocks[(1,)](out, out, 1, BLOCK=BLOCK), 50)
    flops = _flops(threads)
    l2, l3 = threads * caches[2], caches[3]
    sizes = [l2 // 2, *(int(part * l3) for part in PARTS), max(3 * l3, LARGEST)]
    rates = [_rates(size) for size in sizes]
    fits = [0.75 * l2, *sizes[1:-1], float("inf")]
    memory = tuple((size, r.read) for size, r in zip(fits, rates, strict=True))
    written = tuple((size, r.write) for size, r in zip(fits, rates, strict=True))
    clock = flops / (
        4 * _lanes() * threads
    )  # of one that multiplies and adds two vectors in a cycle
    products = ProductRates(threads)
    return Machine(
        device_name(),
        threads,
        clock,
        memory,
        flops,
        products,
        launch,
        0.0,
        written,
        rates[-1].stream,
    )


def _flops(threads: int) -> float:
    """Return operations of fp32 a second by the clock that the cores reach now."""
    return 2.0 * threads / multiply_add_seconds(TRIPS, 25)


def multiply_add_seconds(trips: int, rounds: int) -> float:
    """Return the seconds that a multiply-add of one element takes in one core that does nothing else."""
    block = CHAINS * _lanes()
    out = np.zeros(block, np.float32)
    return typical(lambda: multiply_adds[(1,)](out, trips, BLOCK=block), rounds) / (trips * block)


def is_native(target: GPUTarget) -> bool:
    """Whether the machine at hand is the one that a CPU target means."""
    return target.backend == "cpu" and driver_named("cpu").get_current_target().arch == target.arch
