"""Kernels that read what they have stored, and store over what they have read, in rows of their own; with the meaning
of each, which works on one row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera
import tessera.language as tl

N, SIZE, PROGRAMS = 256, 320, 5


def filled() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 1000, (PROGRAMS, SIZE)).astype(np.int32)


@tessera.jit
def one_number(p, out, n):
    p += tl.program_id(0) * 320
    tl.store(p, n + 7)
    tl.store(out + tl.program_id(0) * 256 + tl.arange(0, 256), tl.load(p))


def one_number_meaning(row: np.ndarray, n: int) -> np.ndarray:
    row[0] = n + 7
    return np.full(N, row[0])


@tessera.jit
def few_numbers(p, out, n):
    """A tile of which several warps hold copies."""
    i, at = tl.arange(0, 16), tl.arange(0, 256)
    p += tl.program_id(0) * 320
    tl.store(p + i, tl.load(p + i) * n)
    tl.store(p + i, tl.load(p + i) + 1)
    tl.store(out + tl.program_id(0) * 256 + at, tl.sum(tl.load(p + i), 0))


def few_numbers_meaning(row: np.ndarray, n: int) -> np.ndarray:
    row[:16] = row[:16] * n + 1
    return np.full(N, row[:16].sum())


@tessera.jit
def turned(p, out, n):
    i = tl.arange(0, 256)
    p += tl.program_id(0) * 320
    tl.store(p + i, i + n)
    tl.store(out + tl.program_id(0) * 256 + i, tl.load(p + 255 - i))


def turned_meaning(row: np.ndarray, n: int) -> np.ndarray:
    row[:N] = np.arange(N) + n
    return row[:N][::-1].copy()


@tessera.jit
def read_then_stored(p, out, n):
    i = tl.arange(0, 256)
    p += tl.program_id(0) * 320
    x = tl.load(p + 255 - i)
    tl.store(p + i, i * n)
    tl.store(out + tl.program_id(0) * 256 + i, x)


def read_then_stored_meaning(row: np.ndarray, n: int) -> np.ndarray:
    x = row[:N][::-1].copy()
    row[:N] = np.arange(N) * n
    return x


@tessera.jit
def stored_twice(p, out, n):
    i = tl.arange(0, 256)
    p += tl.program_id(0) * 320
    tl.store(p + 255 - i, i)
    tl.store(p + i, i + n)
    tl.store(out + tl.program_id(0) * 256 + i, i)


def stored_twice_meaning(row: np.ndarray, n: int) -> np.ndarray:
    row[:N] = np.arange(N) + n
    return np.arange(N)


@tessera.jit
def walking(p, out, n):
    i = tl.arange(0, 256)
    p += tl.program_id(0) * 320
    for k in range(n):
        tl.store(p + i + k + 1, tl.load(p + i + k) + 1)
    tl.store(out + tl.program_id(0) * 256 + i, tl.load(p + i))


def walking_meaning(row: np.ndarray, n: int) -> np.ndarray:
    for k in range(n):
        row[k + 1 : k + 1 + N] = row[k : k + N] + 1
    return row[:N].copy()


@tessera.jit
def by_steps(p, out, n):
    """Each iteration has elements of its own, but for the last loop, which reads them the other way round."""
    i = tl.arange(0, 64)
    p += tl.program_id(0) * 320
    for k in range(0, 256, 64):
        tl.store(p + k + i, tl.load(p + k + i) * n)
    for k in range(0, 256, 64):
        tl.store(out + tl.program_id(0) * 256 + k + i, tl.load(p + 255 - k - i))


def by_steps_meaning(row: np.ndarray, n: int) -> np.ndarray:
    row[:N] *= n
    return row[:N][::-1].copy()


@tessera.jit
def counted(p, out, n):
    """The number of rounds is what the round before has stored."""
    i = tl.arange(0, 256)
    p += tl.program_id(0) * 320
    tl.store(p + 300, n)
    total = i * 0
    while tl.load(p + 300) > 0:
        if n > 2:
            tl.store(p + i, tl.load(p + (i + 1) % 256) + 1)
        total += tl.load(p + i)
        tl.store(p + 300, tl.load(p + 300) - 1)
    tl.store(out + tl.program_id(0) * 256 + i, total)


def counted_meaning(row: np.ndarray, n: int) -> np.ndarray:
    total = np.zeros(N, np.int32)
    row[300] = 0
    for _ in range(n):
        row[:N] = np.roll(row[:N], -1) + 1
        total += row[:N]
    return total


@tessera.jit
def scattered(p, out, n):
    i = tl.arange(0, 256)
    p += tl.program_id(0) * 320
    at = (i * 7 + n) % 256
    tl.atomic_add(p + at, i)
    x = tl.load(p + i)
    tl.atomic_max(p + 255 - i, x)
    tl.store(out + tl.program_id(0) * 256 + i, tl.load(p + i))


def scattered_meaning(row: np.ndarray, n: int) -> np.ndarray:
    i = np.arange(N)
    row[(i * 7 + n) % N] += i.astype(np.int32)
    row[:N] = np.maximum(row[:N], row[:N][::-1])
    return row[:N].copy()


@tessera.jit
def in_one_place(p, out, n):
    """Elements of all warps share addresses; few of them are stored."""
    i = tl.arange(0, 256)
    p += tl.program_id(0) * 320
    tl.store(p + i % 8, i + n, mask=i < 8)
    x = tl.load(p + i % 8)
    low = tl.minimum(i, n)
    tl.store(p + 16 + low, x, mask=i <= n)
    tl.store(out + tl.program_id(0) * 256 + i, x * tl.load(p + 16 + low))


def in_one_place_meaning(row: np.ndarray, n: int) -> np.ndarray:
    i = np.arange(N)
    row[:8] = np.arange(8) + n
    x = row[i % 8]
    row[16 : 17 + n] = x[: n + 1]
    return x * row[16 + np.minimum(i, n)]


@tessera.jit
def overlapping_rows(p, out, n):
    """Each row of the tile begins one element behind the row before; the first column is stored."""
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    p += tl.program_id(0) * 320
    tl.store(p + i + j, i * 3 + n + j, mask=j == 0)
    x = tl.load(p + i + j)
    tl.store(out + tl.program_id(0) * 256 + i * 16 + j, x)


def overlapping_rows_meaning(row: np.ndarray, n: int) -> np.ndarray:
    i = np.arange(16)
    row[:16] = i * 3 + n
    return row[i[:, None] + i].ravel()


@tessera.jit
def by_table(p, out, n):
    """Addresses are loaded; the last rows of the table are equal to others."""
    i = tl.arange(0, 256)
    p += tl.program_id(0) * 320
    at = tl.load(p + i) % 64
    tl.store(p + 256 + at, i * 0)
    tl.atomic_max(p + 256 + at, i)
    last = tl.load(p + 256 + at)
    tl.store(p + 256 + at, last + n)
    tl.store(out + tl.program_id(0) * 256 + i, tl.load(p + 256 + at) - last)


def by_table_meaning(row: np.ndarray, n: int) -> np.ndarray:
    at = row[:N] % 64
    row[256 + at] = 0
    np.maximum.at(row, 256 + at, np.arange(N))
    row[256 + at] += n
    return np.full(N, n)


@tessera.jit(noinline=True)
def put_turned(p, n):
    i = tl.arange(0, 256)
    tl.store(p + 255 - i, i * n)


@tessera.jit
def in_a_function(p, out, n):
    i = tl.arange(0, 256)
    p += tl.program_id(0) * 320
    put_turned(p, n)
    x = tl.load(p + i)
    put_turned(p, n + 1)
    tl.store(out + tl.program_id(0) * 256 + i, tl.load(p + i) - x)


def in_a_function_meaning(row: np.ndarray, n: int) -> np.ndarray:
    row[:N] = np.arange(N)[::-1] * (n + 1)
    return np.arange(N)[::-1]


Meaning = Callable[[np.ndarray, int], np.ndarray]
CASES: dict[str, tuple[Any, Meaning]] = {
    "one_number": (one_number, one_number_meaning),
    "few_numbers": (few_numbers, few_numbers_meaning),
    "turned": (turned, turned_meaning),
    "read_then_stored": (read_then_stored, read_then_stored_meaning),
    "stored_twice": (stored_twice, stored_twice_meaning),
    "walking": (walking, walking_meaning),
    "by_steps": (by_steps, by_steps_meaning),
    "counted": (counted, counted_meaning),
    "scattered": (scattered, scattered_meaning),
    "in_one_place": (in_one_place, in_one_place_meaning),
    "overlapping_rows": (overlapping_rows, overlapping_rows_meaning),
    "by_table": (by_table, by_table_meaning),
    "in_a_function": (in_a_function, in_a_function_meaning),
}
