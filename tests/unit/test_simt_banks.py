"""Bank conflicts as the simulator counts them, for layouts whose conflicts are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.backends.nvidia.simulator import passes

LANES = np.arange(32)
Array = np.ndarray[Any, np.dtype[Any]]


def counted(where: Any, size: int, mask: Any = None) -> tuple[int, int]:
    """(passes, passes at best) of one warp."""
    on = np.ones(32, bool) if mask is None else np.asarray(mask)
    taken, best = passes(np.asarray(where, np.uint64), size, on)
    return int(taken[0]), int(best[0])


@pytest.mark.parametrize(
    ("size", "phases"), [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)], ids=lambda x: str(x)
)
def test_neighbours(size: int, phases: int) -> None:
    assert counted(LANES * size, size) == (phases, phases)


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16, 32, 33, 31, 3, 48])
def test_columns_of_words(stride: int) -> None:
    """Lanes that walk down a column of a tile of `stride` words a row."""
    ways = np.gcd(stride, 32)
    assert counted(4 * stride * LANES, 4) == (ways, 1)


def test_one_word_for_all_is_no_conflict() -> None:
    assert counted(np.zeros(32), 4) == (1, 1)
    assert counted(LANES // 2 * 128, 4) == (16, 1)  # sixteen words of one bank, each wanted twice
    assert counted(2 * LANES, 2) == (1, 1)  # halves of words


def test_lanes_that_are_off_take_part_in_nothing() -> None:
    assert counted(128 * LANES, 4, LANES < 4) == (4, 1)
    assert counted(128 * LANES, 4, LANES < 0) == (0, 0)
    assert counted(16 * LANES, 16, LANES < 8) == (1, 1)


@pytest.mark.parametrize("width", [128, 64, 32])
def test_rows_of_matrices(width: int) -> None:
    """ldmatrix reads 8 rows of 16 bytes a phase: swizzled ones lie in all banks, plain ones in few."""
    rows, columns = LANES % 8, LANES // 8 % (width // 16)
    place = rows * width + columns * 16
    swizzled = place ^ ((place >> 7 & width // 16 - 1) << 4)
    assert counted(swizzled, 16) == (4, 4)
    assert counted(place, 16)[0] == {128: 32, 64: 16, 32: 8}[width]
    padded = rows * (width + 16) + columns * 16
    assert counted(padded, 16) == (4, 4)


def test_each_warp_counts_for_itself() -> None:
    where: Array = np.concatenate([4 * LANES, 128 * LANES]).astype(np.uint64)
    taken, best = passes(where, 4, np.ones(64, bool))
    assert list(taken) == [1, 32]
    assert list(best) == [1, 1]
