"""Quotients and remainders of indices that are negative: C's, whatever vectors the back end makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl


@tessera.jit
def division_kernel(x, out, back, DIVISOR: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N) - back
    tl.store(out + tl.arange(0, N), tl.load(x + 256 + i // DIVISOR))
    tl.store(out + N + tl.arange(0, N), tl.load(x + 256 + i % DIVISOR))


@tessera.jit
def constant_kernel(x, out, BACK: tl.constexpr, DIVISOR: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N) - BACK
    tl.store(out + tl.arange(0, N), tl.load(x + 256 + i // DIVISOR))
    tl.store(out + N + tl.arange(0, N), tl.load(x + 256 + i % DIVISOR))


@pytest.mark.parametrize("back", [0, 16, 48, 64, 128])
@pytest.mark.parametrize("divisor", [1, 4, 16, 24, 64])
def test_loads_at_quotients_and_remainders(device: Any, back: int, divisor: int):
    n = 64
    values = np.arange(512, dtype=np.float32)
    x = device.array(values)
    i = np.arange(n) - back
    quotient = np.trunc(i / divisor).astype(int)
    want = np.concatenate([values[256 + quotient], values[256 + i - quotient * divisor]])
    for launch in (
        lambda out: division_kernel[(1,)](x, out, back, divisor, n),
        lambda out: constant_kernel[(1,)](x, out, back, divisor, n),
    ):
        out = device.zeros(2 * n, "fp32")
        launch(out)
        np.testing.assert_array_equal(device.numpy(out), want)


@tessera.jit
def assumed_kernel(x, out, start, N: tl.constexpr):
    tl.assume(start >= 0)
    i = start + tl.arange(0, N)
    tl.store(out + tl.arange(0, N), tl.load(x + i % 64) + tl.load(x + i // 64))


def test_a_promise_keeps_vectors(device: Any):
    values = np.arange(64, dtype=np.float32)
    x, out = device.array(values), device.zeros(64, "fp32")
    for start in (0, 16, 80):
        assumed_kernel[(1,)](x, out, start, 64)
        i = start + np.arange(64)
        np.testing.assert_array_equal(device.numpy(out), values[i % 64] + values[i // 64])
