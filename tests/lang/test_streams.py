"""Loops that stream through memory on every device: reductions over long rows, stores under way, unrolled bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl


@tessera.jit
def row_sums(x, out, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    peak = tl.full((BLOCK,), -1.0e30, tl.float32)
    for start in tl.range(0, cols, BLOCK, num_stages=STAGES, loop_unroll_factor=UNROLL):
        inside = start + at < cols
        value = tl.load(x + row * cols + start + at, mask=inside, other=-1.0e30).to(tl.float32)
        peak = tl.maximum(peak, value)
        total += tl.where(inside, value, 0.0)
    tl.store(out + 2 * row, tl.sum(total, 0))
    tl.store(out + 2 * row + 1, tl.max(peak, 0))


@tessera.jit
def centre(x, out, rows, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Rows less their mean; the sums of columns on the way."""
    at = tl.arange(0, BLOCK)
    inside = at < cols
    total = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(0, rows, num_stages=STAGES):
        value = tl.load(x + row * cols + at, mask=inside, other=0.0)
        tl.store(out + row * cols + at, value - tl.sum(value, 0) / cols, mask=inside)
        total += value
    tl.store(out + rows * cols + at, total, mask=inside)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("cols", [16, 1024, 2064, 5120])
@pytest.mark.parametrize(("stages", "unroll"), [(1, 1), (3, 1), (4, 2)])
def test_row_sums(device: Any, dtype: str, cols: int, stages: int, unroll: int) -> None:
    x = np.random.default_rng(cols).integers(-8, 8, (3, cols)).astype(dtype)
    out = device.array(np.zeros((3, 2), np.float32))
    row_sums[(3,)](device.array(x), out, cols, 1024, stages, unroll)
    wide = x.astype(np.float32)
    assert (device.numpy(out) == np.stack([wide.sum(1), wide.max(1)], 1)).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stores_between_loads(device: Any, rows: int, stages: int) -> None:
    cols = 496
    x = np.random.default_rng(rows).integers(-8, 8, (rows, cols)).astype(np.float32)
    out = device.array(np.zeros((rows + 1, cols), np.float32))
    centre[(1,)](device.array(x), out, rows, cols, 512, stages)
    found = device.numpy(out)
    assert np.allclose(found[:-1], x - x.mean(1, keepdims=True), atol=1e-5)
    assert (found[-1] == x.sum(0)).all()
