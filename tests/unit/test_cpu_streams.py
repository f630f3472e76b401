"""Tiles of several rows that the CPU stores past its caches: which rows, what is prefetched, and what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.config import knobs
from tests.unit.cpu_kit import floats, native


@tessera.jit
def doubled(x, out, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    rows, columns = (
        tl.program_id(1) * BM + tl.arange(0, BM),
        tl.program_id(0) * BN + tl.arange(0, BN),
    )
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    v = tl.load(x + rows[:, None] * N + columns[None, :], mask=inside)
    tl.store(out + rows[:, None] * stride + columns[None, :], v + v, mask=inside)


@tessera.jit
def chosen(x, places, out, N, BM: tl.constexpr, BN: tl.constexpr):
    """Rows of x at places that memory tells."""
    rows, columns = (
        tl.program_id(1) * BM + tl.arange(0, BM),
        tl.program_id(0) * BN + tl.arange(0, BN),
    )
    place = tl.load(places + rows)
    v = tl.load(x + place[:, None] * N + columns[None, :])
    tl.store(out + rows[:, None] * N + columns[None, :], v)


@tessera.jit
def placed_rows(x, places, out, N, BM: tl.constexpr, BN: tl.constexpr):
    """Rows of the result begin where memory tells."""
    rows, columns = (
        tl.program_id(1) * BM + tl.arange(0, BM),
        tl.program_id(0) * BN + tl.arange(0, BN),
    )
    place = tl.load(places + rows)
    tl.store(
        out + place[:, None] + columns[None, :], tl.load(x + rows[:, None] * N + columns[None, :])
    )


@tessera.jit
def turned(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """out[j, i] = x[i, j]: consecutive along the first dimension of the tile."""
    i, j = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    v = tl.load(x + i[:, None] * N + j[None, :])
    tl.store(out + i[:, None] + j[None, :] * M, v)


@tessera.jit
def larger(x, values, places, N, size, BLOCK: tl.constexpr):
    """The largest one of nine elements, and which it is: what both stores need is kept between them."""
    columns = tl.arange(0, BLOCK)
    row, inside = tl.program_id(0) * N, columns < size
    at = row + columns
    found, place = tl.load(x + 2 * row + 2 * columns, mask=inside), tl.zeros([BLOCK], tl.int64)
    for k in tl.static_range(1, 9):
        other = tl.load(x + 2 * row + k + 2 * columns, mask=inside)
        better = (other > found) | (other != other)
        found, place = tl.where(better, other, found), tl.where(better, k, place)
    tl.store(values + at, found, mask=inside)
    tl.store(places + at, place, mask=inside)


def assembly(width: int = 64) -> str:
    kinds = {"x": "*fp32", "out": "*fp32", "M": "i32", "N": "i32", "stride": "i32"}
    constants = {"BM": 32, "BN": width}
    source = ASTSource(doubled, {**kinds, **dict.fromkeys(constants, "constexpr")}, constants)
    return tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["asm"]


def counted(text: str) -> tuple[int, int]:
    return text.count("\tvmovntps\t"), text.count("\tprefetcht0\t")


def test_rows_of_whole_lines_go_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration stores a vector and asks for its place in the next tile."""
    assert counted(assembly()) == (1, 1)
    monkeypatch.setattr(knobs.compilation, "disable", "tile-prefetch")
    assert counted(assembly()) == (1, 0)
    monkeypatch.setattr(knobs.compilation, "disable", "streaming-tiles")
    assert counted(assembly()) == (0, 0)


def test_vectors_of_an_iteration_share_an_address() -> None:
    assert "\tvmovups\t96(%" in assembly()


def test_rows_of_one_line_stay_in_the_caches() -> None:
    assert counted(assembly(16)) == (0, 0)


def test_large_tiles_are_prefetched_into_the_second_cache() -> None:
    text = assembly(256)
    assert text.count("\tprefetcht1\t") == 1
    assert "\tprefetcht0\t" not in text


def placed(rows: int, stride: int, offset: int) -> Any:
    """An array of `rows` x `stride` floats that begins `offset` elements behind a cache line."""
    store = np.zeros(rows * stride + 32, np.float32)
    first = (-store.ctypes.data % 64) // 4 + offset
    return store[first : first + rows * stride].reshape(rows, stride)


@pytest.mark.parametrize(
    ("columns", "stride", "offset"),
    [(2048, 2048, 0), (2040, 2056, 0), (1999, 2001, 3)],
)
def test_rows_begin_anywhere(columns: int, stride: int, offset: int) -> None:
    """28 MiB written; what lies between the rows, and behind the last, stays."""
    rows, x = 3590, floats(1, columns)
    out = placed(rows, stride, offset)
    x = np.ascontiguousarray(np.broadcast_to(x, (rows, columns)))
    grid = (tessera.cdiv(columns, 64), tessera.cdiv(rows, 32))
    native(doubled, grid, x, out, rows, columns, stride, BM=32, BN=64)
    np.testing.assert_array_equal(out[:, :columns], x + x)
    assert not out[:, columns:].any()


def test_rows_at_places_that_memory_tells() -> None:
    rows, columns = 3584, 2048
    x, places = floats(64, columns), (np.arange(rows) * 37 % 64).astype(np.int32)
    out = placed(rows, columns, 0)
    native(chosen, (columns // 64, rows // 32), x, places, out, columns, BM=32, BN=64)
    np.testing.assert_array_equal(out, x[places])


def test_rows_that_are_not_placed_like_the_first_ones() -> None:
    """The first two rows of each tile begin at a cache line, others do not."""
    rows, columns = 3584, 2048
    at = np.arange(rows)
    places = (at * (columns + 16) + at % 32 // 2 % 5).astype(np.int32)
    x, out = floats(rows, columns), placed(rows, columns + 16, 0)
    native(placed_rows, (columns // 64, rows // 32), x, places, out, columns, BM=32, BN=64)
    flat = out.ravel()
    assert all((flat[p : p + columns] == row).all() for p, row in zip(places, x, strict=True))


def test_tiles_that_lie_along_their_first_dimension() -> None:
    rows, columns = 3584, 2048
    x, out = floats(rows, columns), placed(columns, rows, 0)
    native(turned, (rows // 64, columns // 32), x, out, rows, columns, BM=64, BN=32)
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize(("columns", "size"), [(27, 27), (513, 509)])
def test_what_two_stores_share_stays_in_the_caches(columns: int, size: int) -> None:
    """Rows begin anywhere, and so do vectors of the first one to be stored: tiles in memory of the kernel's own begin
    where vectors of them are not aligned."""
    rows = 14000
    x = floats(2 * rows * columns + 8)
    values, places = np.zeros(rows * columns, np.float32), np.zeros(rows * columns, np.int64)
    native(larger, (rows,), x, values, places, columns, size, BLOCK=512)
    nine = np.stack([x[k : k + 2 * values.size : 2] for k in range(9)])
    inside = np.arange(rows * columns) % columns < size
    np.testing.assert_array_equal(values, np.where(inside, nine.max(0), 0))
    np.testing.assert_array_equal(places, np.where(inside, nine.argmax(0), 0))
