"""Ragged arrays: rows of one slice are read as padding, and not written, outside of it."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.tools.ragged_tma import (
    atomic_add_ragged,
    create_ragged_descriptor,
    load_ragged,
    store_ragged,
)

OFFSETS = np.array([0, 5, 5, 14, 16], "i4")  # slices of 5, 0, 9 and 2 rows


@tessera.jit
def doubled(source, target, offsets, MODE: tl.constexpr, ROWS: tl.constexpr):
    start = tl.load(offsets + tl.program_id(0))
    size = tl.load(offsets + tl.program_id(0) + 1) - start
    place = [tl.program_id(1) * ROWS, 0]
    block = load_ragged(source, start, size, place)
    if MODE == "add":
        atomic_add_ragged(target, start, size, place, block)
    else:
        store_ragged(target, start, size, place, block * 2)


@pytest.mark.parametrize("mode", ["store", "add"])
def test_rows_of_slices(device, mode):
    x = np.arange(16 * 32, dtype="f4").reshape(16, 32) + 1
    out = device.array(np.full_like(x, 3.0))
    made = [create_ragged_descriptor(t, [4, 32]) for t in (device.array(x), out)]
    doubled[(4, 3)](*made, device.array(OFFSETS), MODE=mode, ROWS=4)  # pyright: ignore[reportCallIssue]
    np.testing.assert_array_equal(device.numpy(out), x + 3 if mode == "add" else 2 * x)


@tessera.jit
def one_block(source, out, start, size, row, column, DIM: tl.constexpr):
    at = tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)
    tl.store(out + at, load_ragged(source, start, size, [row, column], DIM))


@pytest.mark.parametrize(("dim", "start", "size", "row", "column"), [
    (0, 3, 5, 0, 0), (0, 3, 5, 2, 8), (0, 3, 5, -2, 0), (0, 0, 16, 12, 24), (1, 8, 11, 0, 0), (1, 8, 11, 4, 8),
    (0, 3, 0, 0, 0),
])  # fmt: skip
def test_edges_of_a_slice(device, dim, start, size, row, column):
    x = np.arange(16 * 32, dtype="f4").reshape(16, 32) + 1
    out = device.zeros((8, 16), "fp32")
    source = create_ragged_descriptor(device.array(x), [8, 16], dim)
    one_block[(1,)](source, out, start, size, row, column, DIM=dim)
    part = x[start : start + size] if dim == 0 else x[:, start : start + size]
    want = np.zeros((64, 96), "f4")
    want[16 : 16 + part.shape[0], 16 : 16 + part.shape[1]] = part
    want = want[16 + row : 24 + row, 16 + column : 32 + column]
    np.testing.assert_array_equal(device.numpy(out), want)


def test_a_dimension_that_is_not_there():
    with pytest.raises(ValueError, match="rank 2"):
        create_ragged_descriptor(np.zeros((4, 32), "f4"), [4, 32], 2)
