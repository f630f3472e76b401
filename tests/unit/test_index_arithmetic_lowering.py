"""Comparisons and quotients of indices on the simulated GPU: what they compute, and in how many instructions."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.simt_kit import Compiled


@tessera.jit
def window(x, out, shift, low: tl.constexpr, high: tl.constexpr, N: tl.constexpr):
    """As TorchInductor pads: bounds are 64-bit constants, indices 32-bit."""
    at = tl.load(x + tl.arange(0, N)) + shift
    inside = (at >= tl.full([1], low, tl.int64)) & (at < tl.full([1], high, tl.int64))
    tl.store(out + tl.arange(0, N), inside.to(tl.int32))


@pytest.mark.parametrize(("low", "high"), [(0, 48), (0, 0), (0, 2**31 - 1), (1, 48), (0, -3)])
def test_what_lies_between_zero_and_a_number_takes_one_comparison(low: int, high: int):
    signature = {
        "x": "*i32", "out": "*i32", "shift": "i32", "low": "constexpr", "high": "constexpr", "N": "constexpr",
    }  # fmt: skip
    compiled = Compiled(window, signature, {"low": low, "high": high, "N": 128}, num_warps=4)
    edges = [-(2**31), -(2**31) + 1, -4, -3, -1, 0, 1, 2, 47, 48, 49, 2**31 - 2, 2**31 - 1]
    x = np.resize(np.array(edges, np.int32), 128)
    out = np.full(128, -1, np.int32)
    compiled.run(x, out, 0)
    np.testing.assert_array_equal(out, (x >= low) & (x < high))
    assert compiled.count(r"setp\.\w+\.[su]64") == 0
    if low == 0 and 0 < high < 100:
        assert compiled.count(r"setp") == 1


@tessera.jit
def places(out, D: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, (at // D) * 1000 + (at // 3) % D + (at - 5) // D * 100000)


@pytest.mark.parametrize("d", [1, 2, 3, 9, 48, 1000])
@pytest.mark.parametrize("n", [32, 512])
def test_quotients_of_numbers_that_are_never_negative(d: int, n: int):
    signature = {"out": "*i32", "D": "constexpr", "N": "constexpr"}
    compiled = Compiled(places, signature, {"D": d, "N": n}, num_warps=2)
    out, at = np.zeros(n, np.int32), np.arange(n)
    compiled.run(out)
    last = np.trunc((at - 5) / d).astype(np.int64)
    np.testing.assert_array_equal(out, at // d * 1000 + at // 3 % d + last * 100000)
