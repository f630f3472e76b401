"""Weights that are unpacked from words reach MMAs of warpgroups by vectors."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tessera
from tessera.runtime.driver import driver
from tests.unit.optimization_samples import words


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    driver.set_active("simt")
    yield
    driver.reset_active()


@pytest.mark.parametrize("disabled", ["", "operand-order"])
@pytest.mark.parametrize(("columns", "num_warps"), [(64, 4), (128, 4), (128, 8)])
def test_words_are_written_along_the_depth(columns: int, num_warps: int, disabled: str):
    """A word has eight weights of a column, which a thread writes at once; with more warps than columns fill, too."""
    r, rows, depth = np.random.default_rng(0), 64 * num_warps // 4, 128
    a = r.integers(-2, 3, (rows, depth)).astype(np.float16)
    b = r.integers(-(2**31), 2**31, (depth // 8, columns)).astype(np.int32)
    c = np.zeros((rows, columns), np.float32)
    found = tessera.jit(words.fn)[(1,)](
        a,
        b,
        c,
        depth,
        rows,
        columns,
        64,
        num_warps=num_warps,
        num_stages=3,
        disable_optimizations=disabled,
    )
    weights = (np.repeat(b, 8, axis=0) >> (np.arange(depth) % 8 * 4)[:, None] & 15) - 8
    np.testing.assert_array_equal(c, a.astype(np.float32) @ weights.astype(np.float32))
    assert "wgmma" in found.asm["gir"]
    assert ("store_shared(16, 1," in found.asm["llir"]) == bool(disabled)  # elements one by one
