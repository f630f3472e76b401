"""Loops on the CPU that take a few vectors of carried tiles through several iterations at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tests.unit.cpu_kit import agree, floats

NAME = "blocked-iterations"


@tessera.jit
def column_sums(x, out, low, high, n, B: tl.constexpr):
    columns = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.full([B], 0.5, tl.float32)
    for k in range(low, high):
        total += tl.load(x + (k & 31) * n + columns, mask=columns < n, other=0.0)
    tl.store(out + columns, total, mask=columns < n)


@tessera.jit
def extremes(x, out, m, n, B: tl.constexpr, STEP: tl.constexpr):
    """Two tiles that each need the other one's value before, in rows that end anew in each iteration."""
    columns = tl.arange(0, B)
    least, found = tl.full([B], 9.0, tl.float32), tl.zeros([B], tl.int64)
    for k in range(m - 1, -1, -STEP):
        v = tl.load(x + k * n + columns, mask=columns < n - k % 7, other=3.0)
        less = v < least
        found = tl.where(less, k + found % 3, found)
        least = tl.where(less, v, least)
    tl.store(out + columns, least)
    tl.store(out + B + columns, found.to(tl.float32))


@tessera.jit
def changed_places(x, out, m, B: tl.constexpr):
    at = tl.arange(0, B)
    a, b = tl.load(x + at), tl.load(x + B + at)
    for k in range(0, m):
        a, b = b + k, a
    tl.store(out + at, a)
    tl.store(out + B + at, b)


@tessera.jit
def blocks(x, out, m, n, R: tl.constexpr, B: tl.constexpr):
    """Tiles of several rows, under a mask of rows that iterations differ in."""
    r, c = tl.arange(0, R)[:, None], tl.arange(0, B)[None, :]
    total = tl.zeros([R, B], tl.float32)
    for first in range(0, m, R):
        rows = first + r
        total = total * 0.5 + tl.load(x + rows * n + c, (rows < m) & (c < n), other=1.0)
    tl.store(out + r * B + c, total)


@tessera.jit
def turned(x, out, m, B: tl.constexpr):
    """Each element depends on another one's value before."""
    r, c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    v = tl.load(x + r * B + c)
    for _ in range(0, m):
        v = tl.trans(v) + 1
    tl.store(out + r * B + c, v)


@tessera.jit
def stored(x, out, m, B: tl.constexpr):
    """What an iteration reads the one before has stored."""
    at = tl.arange(0, B)
    total = tl.zeros([B], tl.float32)
    for _ in range(0, m):
        total += tl.load(x + at) + tl.load(out + at)
        tl.store(out + at, total)
    tl.store(out + B + at, total)


def both(
    monkeypatch: pytest.MonkeyPatch, kernel: Any, x: Any, size: int, *rest: Any, **meta: Any
) -> Any:
    """The results with the optimisation and without it, and whether it changed the code."""
    results, texts = list[np.ndarray](), list[str]()
    for disabled in ("", NAME):
        monkeypatch.setattr(knobs.compilation, "disable", disabled)
        out = np.zeros(size, np.float32)
        texts.append(kernel[(1,)](x, out, *rest, **meta).asm["llir"])
        results.append(out)
    return *results, texts[0] != texts[1]


@pytest.mark.parametrize(("low", "high"), [(0, 40), (3, 3), (5, 2), (-3, 30), (0, 16), (1, 2)])
@pytest.mark.parametrize(("n", "block"), [(130, 256), (256, 256), (257, 128), (300, 512)])
def test_sums_of_columns(low: int, high: int, n: int, block: int):
    x = floats(32, n)
    agree(column_sums, (-(-n // block),), x, np.zeros(n, np.float32), low, high, n, B=block)


@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize("m", [1, 16, 50])
def test_tiles_that_need_each_other(m: int, step: int):
    agree(extremes, (1,), floats(m, 150), np.zeros(512, np.float32), m, 150, B=256, STEP=step)


@pytest.mark.parametrize("trips", [0, 1, 2, 17, 33])
def test_tiles_that_change_places(trips: int):
    agree(changed_places, (1,), floats(512), np.zeros(512, np.float32), trips, B=256)


@pytest.mark.parametrize(("rows", "block"), [(4, 64), (32, 16), (64, 4)])
@pytest.mark.parametrize("m", [1, 100, 1000])
def test_tiles_of_several_rows(m: int, rows: int, block: int):
    n = block - block // 3
    out = np.zeros(rows * block, np.float32)
    agree(blocks, (1,), floats(m, n), out, m, n, R=rows, B=block)


@pytest.mark.parametrize(("kernel", "size"), [(turned, 256), (stored, 512)])
def test_what_depends_on_other_elements_or_on_memory(kernel: Any, size: int):
    block = 16 if kernel is turned else 256
    agree(kernel, (1,), floats(size), np.zeros(size, np.float32), 20, B=block)


def test_bits_are_those_of_one_iteration_after_the_other(monkeypatch: pytest.MonkeyPatch):
    ours, theirs, differ = both(monkeypatch, column_sums, floats(32, 257), 257, 0, 333, 257, B=512)
    assert differ
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(("kernel", "size"), [(turned, 256), (stored, 512)])
def test_these_run_one_iteration_after_the_other(
    kernel: Any, size: int, monkeypatch: pytest.MonkeyPatch
):
    block = 16 if kernel is turned else 256
    assert not both(monkeypatch, kernel, floats(size), size, 20, B=block)[2]
