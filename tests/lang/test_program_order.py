"""A program sees what it has stored before, whichever of its threads did, and stores over what it has read before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.lang.program_order_kit import CASES, PROGRAMS, SIZE, N, filled


@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("name", CASES)
def test_accesses_keep_their_order(device: Any, name: str, warps: int) -> None:
    kernel, meaning = CASES[name]
    x = filled()
    p, out = device.array(x), device.zeros((PROGRAMS, N), "i32")
    kernel[(PROGRAMS,)](p, out, 3, num_warps=warps)
    want = np.stack([meaning(row, 3) for row in x])
    np.testing.assert_array_equal(device.numpy(out), want)
    np.testing.assert_array_equal(device.numpy(p), x)  # the meaning stores into its rows, too


@tessera.jit
def add_one_turned(x, M: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, M)[None, :]
    a = tl.load(x + i * M + j)
    tl.store(x + j * M + i, a + 1)
    tl.store(x + i * M + j, tl.load(x + i * M + j) * 2)


@pytest.mark.parametrize("dtype", ["fp16", "i8", "i64"])
def test_tiles_turn_in_place(device: Any, dtype: str) -> None:
    x = np.arange(32 * 32).reshape(32, 32) % 50
    p = device.array(x.astype({"fp16": np.float16, "i8": np.int8, "i64": np.int64}[dtype]), dtype)
    add_one_turned[(1,)](p, M=32)
    np.testing.assert_array_equal(device.numpy(p), (x.T + 1) * 2)


@tessera.jit
def products_in_place(x, steps, M: tl.constexpr):
    i, j = tl.arange(0, M)[:, None], tl.arange(0, M)[None, :]
    at = x + i * M + j
    for _ in range(steps):
        a = tl.load(at)
        tl.store(at, tl.dot(a, a, out_dtype=tl.float32).to(tl.float16))
    tl.store(at, tl.load(x + j * M + i) - tl.load(at))


@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("size", [32, 64])
def test_products_in_place(device: Any, size: int, warps: int) -> None:
    x = np.random.default_rng(size).integers(0, 8, (size, size)) == 0
    p = device.array(x.astype(np.float16), "fp16")
    products_in_place[(1,)](p, 2, M=size, num_warps=warps)
    want = x.astype(np.float32)
    for _ in range(2):
        want = (want @ want).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(device.numpy(p), (want.T - want).astype(np.float16))


def test_rows_are_large_enough() -> None:
    assert SIZE > N + 8
