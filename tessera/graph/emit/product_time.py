"""Estimates how long a matrix product takes on a GPU by how it is tiled, to find its best tiles.

time = START + the greater of
    rounds of programs x (steps along k x the greatest of (products, loads, wait) + stores)
    bytes of operands and result / MEMORY

Programs that share a multiprocessor share its tensor cores and its loads, and hide each other's waits: a step waits
for LATENCY divided by the tiles that are on their way. The constants are those of `python -m tools.fit.products`, by
times of products in bf16 on an H200 with nothing in its L2 cache: of the tiles below, those that are estimated to be
the fastest take 1.025 times as long as those that were, in the geometric mean (1.11 at most).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tessera.analysis.machines import GPUS

START = 5.4  # µs of a product of any size
PRODUCTS = 6.5e6  # multiplications and additions of one multiprocessor in a µs
LOADS = 118e3  # bytes that one multiprocessor loads in a µs
LATENCY = 0.78  # µs from asking for a tile until it is there
STORES = 3.8e4  # elements that one program stores in a µs
MEMORY = 2.8e6  # bytes a µs
MULTIPROCESSORS = GPUS["H200"].units
SHARED, PER_PROGRAM = (
    227 << 10,
    1 << 10,
)  # bytes of shared memory of a multiprocessor, and of it for the system
REGISTERS, OTHERS = 1 << 16, 70  # of a multiprocessor; of a thread beside its accumulators
HALF = 2  # bytes of an element
LAUNCH = 1.5  # µs for a kernel more in a recorded graph (benchmarks/graph_products.py)
LIGHT = 8  # operations of an epilogue that needs few registers


@dataclass(frozen=True, slots=True)
class Blocks:
    """Extents of a program's tiles, how many blocks of rows follow one another, warps, and how many tiles along k are
    on their way at once (0: as the target has it)."""

    m: int
    n: int
    k: int
    group: int
    warps: int
    stages: int = 0


TILES = (
    Blocks(128, 256, 64, 8, 8, 3), Blocks(256, 128, 64, 8, 8, 3), Blocks(128, 128, 64, 8, 8, 3),
    Blocks(128, 128, 64, 8, 8, 4), Blocks(128, 128, 64, 8, 8, 5), Blocks(64, 128, 64, 8, 4, 6),
    Blocks(64, 128, 64, 8, 4, 8), Blocks(64, 64, 64, 8, 4, 6), Blocks(64, 64, 128, 8, 4, 4),
    Blocks(64, 32, 128, 8, 4, 6),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """`batch` products of m x k and k x n elements of two bytes."""

    batch: int
    m: int
    k: int
    n: int


def microseconds(s: Shape, b: Blocks) -> float:
    """The time of a product that is tiled in this way."""
    programs = s.batch * -(-s.m // b.m) * -(-s.n // b.n)
    each = -(-programs // MULTIPROCESSORS)
    together = min(_resident(b), each)
    products = b.m * b.n * b.k * 2 / PRODUCTS
    loads = (b.m + b.n) * b.k * HALF / LOADS
    wait = LATENCY / max(b.stages - 1, 1)
    steps = -(-s.k // b.k) * max(together * products, together * loads, wait)
    rounds = -(-each // together) * (steps + together * b.m * b.n / STORES)
    moved = s.batch * (s.m * s.k + s.k * s.n + s.m * s.n) * HALF
    return START + max(rounds, moved / MEMORY)


def _resident(b: Blocks) -> int:
    """How many programs fit on a multiprocessor."""
    shared = b.stages * (b.m + b.n) * b.k * HALF + PER_PROGRAM
    threads = 32 * b.warps
    registers = threads * (b.m * b.n // threads + OTHERS)
    return max(1, min(SHARED // shared, REGISTERS // registers))


def fitting(extra: int, operations: int) -> tuple[Blocks, ...]:
    """The tiles for which the registers suffice where a product is read by an epilogue with so many operations, which
    holds `extra` tiles of the product's size beside it: ptxas spills with larger ones."""
    if extra == 0 or (extra == 1 and operations <= LIGHT):
        return TILES
    small = (b for b in TILES if b.m * b.n <= 64 * 32 * b.warps)
    return tuple(b for b in small if extra == 1 or b.warps == 4)


@cache
def fastest(s: Shape, tiles: tuple[Blocks, ...] = TILES) -> Blocks:
    """The tiles of the product that are estimated to take the least time; of equal ones the first."""
    return min(tiles, key=lambda b: microseconds(s, b))


@cache
def of_library(s: Shape) -> float:
    """The time that the product of a tuned library is estimated to take: of more tiles the best."""
    sides = [(m, n) for m in (64, 128, 192, 256) for n in (32, 64, 96, 128, 160, 192, 224, 256)]
    tiles = (
        Blocks(m, n, 64, 8, 8 if m * n >= 1 << 14 else 4, _deepest(m, n))
        for m, n in sides
        if m * n <= 1 << 15
    )
    return min(microseconds(s, b) for b in tiles)


def _deepest(m: int, n: int) -> int:
    """How many tiles of 64 along k fit into shared memory, within reason."""
    return max(3, min(6, SHARED // ((m + n) * 64 * HALF)))
