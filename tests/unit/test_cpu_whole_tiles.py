"""Reductions of columns on the CPU, whose masks hold for whole tiles or not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.config import knobs
from tests.unit.cpu_kit import agree, floats


@tessera.jit
def column_sums(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros([BN], tl.float32)
    for first in range(0, M, BM):
        rows = first + tl.arange(0, BM)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        part = tl.load(x + rows[:, None] * N + columns[None, :], mask=inside, other=0.0)
        total += tl.sum(part, axis=0)
    tl.store(out + columns, total, mask=columns < N)


@tessera.jit
def largest_rows(x, where, sums, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Which row has a column's maximum, and a sum of what is under the mask and beside it."""
    rows, columns = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (columns < N)[None, :] & (rows < M)[:, None]
    at = rows[:, None] * N + columns[None, :]
    v = tl.load(x + at, mask=inside, other=-1.0)
    tl.store(where + columns, tl.argmax(v, axis=0), mask=columns < N + 3)
    tl.store(sums + columns, tl.sum(tl.where(inside, v, 2.0), axis=0), mask=columns < N + 3)


@tessera.jit
def row_sums(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros([BM], tl.float32)
    for first in range(0, N, BN):
        columns = first + tl.arange(0, BN)
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        part = tl.load(x + rows[:, None] * N + columns[None, :], mask=inside, other=0.0)
        total += tl.sum(part, axis=1)
    tl.store(out + rows, total, mask=rows < M)


@tessera.jit
def planes(x, out, N, P: tl.constexpr, R: tl.constexpr, B: tl.constexpr):
    """Sums over the middle dimension of three, under a mask along the last."""
    p, r, at = tl.arange(0, P), tl.arange(0, R), tl.arange(0, B)
    place = (p[:, None, None] * R + r[None, :, None]) * N + at[None, None, :]
    v = tl.load(x + place, mask=(at < N)[None, None, :], other=1.0)
    tl.store(out + p[:, None] * B + at[None, :], tl.sum(v, axis=1))


def assembly(kernel: Any) -> str:
    kinds = {"x": "*fp32", "out": "*fp32", "M": "i32", "N": "i32"}
    constants = {"BM": 32, "BN": 128}
    source = ASTSource(kernel, {**kinds, **dict.fromkeys(constants, "constexpr")}, constants)
    return tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["asm"]


@pytest.mark.parametrize(("kernel", "more"), [(column_sums, 16), (row_sums, 4)])
def test_whole_tiles_load_without_masks(
    kernel: Any, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of a tile that is there as a whole are added from memory: four vectors of four unrolled groups of
    columns, or of a loop along rows."""
    with_it = assembly(kernel)
    monkeypatch.setattr(knobs.compilation, "disable", "whole-tiles")
    without = assembly(kernel)
    added = [len(re.findall(r"vaddps\t\d*\(.*\), %ymm", t)) for t in (with_it, without)]
    assert added[0] >= added[1] + more


@pytest.mark.parametrize("columns", [1, 64, 127, 128, 200, 256])
@pytest.mark.parametrize("rows", [1, 31, 64, 100])
def test_sums_of_columns(rows: int, columns: int) -> None:
    x, out = floats(rows, columns), np.zeros(columns, np.float32)
    grid = (tessera.cdiv(columns, 128),)
    agree(column_sums, grid, x, out, rows, columns, BM=32, BN=128, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [1, 128, 200, 256])
@pytest.mark.parametrize("rows", [1, 32, 40])
def test_sums_of_rows(rows: int, columns: int) -> None:
    x, out = floats(rows, columns), np.zeros(rows, np.float32)
    grid = (tessera.cdiv(rows, 32),)
    agree(row_sums, grid, x, out, rows, columns, BM=32, BN=128, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [32, 64, 1024])
@pytest.mark.parametrize("columns", [1, 31, 32, 100, 1024])
def test_what_lies_beside_the_mask(columns: int, width: int) -> None:
    """Short vector loops, which are unrolled, and long ones; elements of a column beyond all that are there."""
    rows, count = 12, columns + 3
    x = floats(rows, columns)
    x[3] = x[5]  # ties
    where, sums = np.full(count, -1, np.int32), np.zeros(count, np.float32)
    grid = (tessera.cdiv(count, width),)
    agree(
        largest_rows, grid, x, where, sums, rows - 1, columns, BM=16, BN=width, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("columns", [1, 17, 32])
def test_sums_over_a_middle_dimension(columns: int) -> None:
    x, out = floats(4, 8, columns), np.zeros((4, 32), np.float32)
    agree(planes, (1,), x, out, columns, P=4, R=8, B=32, rtol=1e-5, atol=1e-5)
