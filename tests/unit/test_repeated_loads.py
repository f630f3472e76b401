"""Tiles of loads that repeat addresses in runs are loaded once, and give what they gave."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.runtime.driver import driver

R, C = 128, 64


@tessera.jit
def groups_of_rows(x, out, n, m, R: tl.constexpr, C: tl.constexpr, G: tl.constexpr):
    """Words are shared by G rows; masks are equal in groups."""
    rows, cols = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    v = tl.load(x + rows // G * C + cols, mask=(rows // G < m) & (cols < n), other=7)
    tl.store(out + rows * C + cols, v + rows)


@tessera.jit
def groups_of_columns(x, out, n, m, R: tl.constexpr, C: tl.constexpr, G: tl.constexpr):
    """The other way round, and transposed."""
    cols, rows = tl.arange(0, C)[:, None], tl.arange(0, R)[None, :]
    v = tl.load(x + tl.max_contiguous(cols, (C, 1)) + (rows + 64) // G * C - 64 // G * C).T
    tl.store(out + rows.T * C + cols.T, v)


@tessera.jit
def nested(x, out, n, m, R: tl.constexpr, C: tl.constexpr, G: tl.constexpr):
    """Pointers that two loops carry, whose last ones are used after them."""
    rows, cols = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    p = x + rows // G * C + cols
    total = tl.zeros((R, C), tl.int32)
    for _ in range(m):
        for _ in range(2):
            total += tl.load(p)
            p += C
    tl.store(out + rows * C + cols, total - tl.load(p))


@tessera.jit
def of_a_while(x, out, n, m, R: tl.constexpr, C: tl.constexpr, G: tl.constexpr):
    """A loop that may not be counted carries the pointers: they stay."""
    rows, cols = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    p = x + rows // G * C + cols
    total = tl.zeros((R, C), tl.int32)
    while tl.sum(total) < n:
        total += tl.load(p)
        p += C
    tl.store(out + rows * C + cols, total)


def wanted(kernel: Any, x: np.ndarray, n: int, m: int, g: int) -> np.ndarray:
    group = np.arange(R) // g
    rows, cols = np.arange(R)[:, None], np.arange(C)[None, :]
    if kernel is groups_of_rows:
        inside = (group[:, None] < m) & (cols < n)
        return np.where(inside, x[np.minimum(group, len(x) - 1)], 7) + rows
    if kernel is groups_of_columns:
        return x[(np.arange(R) + 64) // g - 64 // g]
    if kernel is nested:
        return sum(x[group + i] for i in range(2 * m)) - x[group + 2 * m]
    total = np.zeros((R, C), np.int64)
    step = 0
    while total.sum() < n:
        total, step = total + x[group + step], step + 1
    return total


CASES = [(groups_of_rows, True), (groups_of_columns, True), (nested, True), (of_a_while, False)]


@pytest.fixture
def simulated() -> Iterator[None]:
    driver.set_active("simt")
    yield
    driver.reset_active()


@pytest.mark.parametrize(("kernel", "once"), CASES, ids=[k.__name__ for k, _ in CASES])
@pytest.mark.parametrize("g", [2, 8, 16, 64])
def test_loads_of_groups(kernel: Any, once: bool, g: int, simulated: None) -> None:
    x = np.random.default_rng(g).integers(1, 100, (R + 8, C)).astype(np.int32)
    out = np.zeros((R, C), np.int32)
    n, m = (9000, 1) if kernel is of_a_while else (C - 3, 3)
    compiled = kernel[(1,)](x, out, n, m, R, C, g, num_warps=4)
    np.testing.assert_array_equal(out, wanted(kernel, x, n, m, g))
    few = R // min(g, 16)
    small = f"tile<{C}x{few}xi32" if kernel is groups_of_columns else f"tile<{few}x{C}xi32"
    assert (small in compiled.asm["gir"]) == once
