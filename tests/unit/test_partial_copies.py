"""Copies ahead of a loop whose rows end within a vector: nothing behind that end is read, and zeros stand for it."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tests.simt_kit import Compiled

ROWS, WIDTH, BK = 32, 64, 32
ARGS = {"a": "", "b": "", "c": "*fp32", "k": "i32", "BK": "constexpr", "WAY": "constexpr"}
KINDS = {"fp16": np.float16, "fp32": np.float32, "i8": np.int8}
TYPES = {"fp16": "*fp16", "fp32": "*fp32", "i8": "*i8"}


@tessera.jit
def rows(a, b, c, k, BK: tl.constexpr, WAY: tl.constexpr):
    """c = a bᵀ of rows that are 64 elements apart, and have k of them.

    Where they are "stored" each iteration stores what it found, and for all that a compiler knows the next one loads
    it."""
    at, along = tl.arange(0, 32), tl.arange(0, BK)
    acc = tl.zeros((32, 32), c.dtype.element_ty)
    for i in range(0, k, BK):
        inside = (i + along < k)[None, :]
        x = tl.load(
            a + at[:, None] * 64 + i + along[None, :], inside, 0, volatile=WAY == "volatile"
        )
        y = tl.load(
            b + at[:, None] * 64 + i + along[None, :], inside, 0, volatile=WAY == "volatile"
        )
        acc = tl.dot(x, y.T, acc)
        if WAY == "stored":
            tl.store(a + at * 64 + i, tl.load(a + at * 64 + i))
            tl.store(b + at * 64 + i, tl.load(b + at * 64 + i))
    tl.store(c + at[:, None] * 32 + at[None, :], acc)


def compiled(dtype: str, cc: int, way: str = "copied") -> Compiled:
    out = "*i32" if dtype == "i8" else "*fp32"
    signature = {**ARGS, "a": TYPES[dtype], "b": TYPES[dtype], "c": out}
    options = {"num_warps": 4, "num_stages": 3, "pointer_maps": False, "no_alias": False}
    return Compiled(rows, signature, {"BK": BK, "WAY": way}, cc, **options)


def check(kernel: Compiled, dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (ROWS, WIDTH)).astype(KINDS[dtype]) for _ in range(2))
    for k in (*range(1, 18), 31, 33, 47, 63):
        # What lies between rows must not get into the sum, and the last row has nothing behind its end.
        for x in (a, b):
            x[:, k:] = 100 if dtype == "i8" else np.nan
        ends = [x.reshape(-1)[: (ROWS - 1) * WIDTH + k].copy() for x in (a, b)]
        c = np.full((ROWS, ROWS), 7, np.int32 if dtype == "i8" else np.float32)
        kernel.run(*ends, c, k)
        wide = np.int64 if dtype == "i8" else np.float64
        np.testing.assert_array_equal(c, a[:, :k].astype(wide) @ b[:, :k].astype(wide).T)


@pytest.mark.parametrize("cc", [80, 90])
@pytest.mark.parametrize("dtype", KINDS)
def test_rows_end_within_a_vector(dtype: str, cc: int) -> None:
    kernel = compiled(dtype, cc)
    size = 8 if dtype == "i8" else 16  # of what a thread copies at once
    assert kernel.count(rf"cp\.async\.c[ag]\.shared\.global.*, {size}, %r") > 0
    assert kernel.count(r"ld\.global") == 0
    check(kernel, dtype)


@pytest.mark.parametrize("dtype", KINDS)
def test_loads_that_are_not_copied_ahead(dtype: str) -> None:
    """A vector is loaded whole where it lies in the row, and element by element where the row ends within it."""
    kernel = compiled(dtype, 90, "stored")
    assert kernel.count(r"cp\.async") == 0
    assert kernel.count(r"ld\.global\.v2\.b32" if dtype == "i8" else r"ld\.global\.v4\.") > 0
    check(kernel, dtype)


def test_volatile_loads_stay_as_they_are() -> None:
    kernel = compiled("fp16", 90, "volatile")
    assert kernel.count(r"cp\.async") == 0
    assert kernel.count(r"ld\.volatile\.global") > 0
    assert kernel.count(r"ld\.global") == 0
    check(kernel, "fp16")


def test_without_the_optimisation_elements_are_loaded_one_by_one() -> None:
    with knobs.scope():
        knobs.compilation.disable = "partial-copies"
        assert compiled("fp16", 80).count(r"ld\.global") > 0
