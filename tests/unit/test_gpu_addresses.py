"""Offsets that are products in 64 bits, on a simulated GPU: what is multiplied, and what is added to the pointer."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.runtime.driver import driver

PRODUCT = "mul.wide.s32 $0, $1, $2;"


@tessera.jit
def strided(x, out, stride, first, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + first * stride + at.to(tl.int64) * stride))


@tessera.jit
def scalar(x, out, stride, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * stride
    column = tl.arange(0, N)
    tl.store(out + tl.program_id(0) * N + column, tl.load(x + row + column))


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    driver.set_active("simt")
    yield
    driver.reset_active()


@pytest.mark.parametrize("off", ["", "wide-products"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("stride", [3, -3])
def test_strides(dtype: type, stride: int, off: str):
    x = np.arange(1024).astype(dtype)
    out = np.zeros(128, dtype)
    strided[(1,)](x[512:], out, stride, 5, 128, disable_optimizations=off)
    np.testing.assert_array_equal(out, x[512 + stride * np.arange(5, 133)])


@tessera.jit
def wrapping(x, out, stride, TYPE: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + (at * 4).to(TYPE) * stride.to(TYPE)))


@pytest.mark.parametrize(
    ("to", "more"), [(tl.int8, 1 << 8), (tl.int16, 1 << 16), (tl.uint32, 1 << 30)]
)
def test_products_that_wrap(to: tl.dtype, more: int):
    """A product of fewer bits is not that of the numbers before the casts: the strides here are 1 after them."""
    x, out = np.arange(64, dtype=np.float32), np.zeros(8, np.float32)
    wrapping[(1,)](x, out, more + 1, to, 8)
    np.testing.assert_array_equal(out, np.arange(8) * 4)


def code(dtype: type, count: int, **options: str) -> str:
    x, out = np.zeros(4, dtype), np.zeros(count, dtype)
    return strided.warmup(x, out, 3, 0, count, grid=(1,), **options).asm["llir"]


def test_one_product_for_each_element():
    assert code(np.float32, 256).count(PRODUCT) == 2  # of each of 128 threads
    assert PRODUCT not in code(np.float32, 256, disable_optimizations="wide-products")


def test_program_ids_may_be_too_large():
    """2^31 of them, times the size of an element, would not fit."""
    x, out = np.arange(96, dtype=np.float32), np.zeros(96, np.float32)
    compiled = scalar.warmup(x, out, 32, 32, grid=(3,))
    assert PRODUCT not in compiled.asm["llir"]
    scalar[(3,)](x, out, 32, 32)
    np.testing.assert_array_equal(out, x)
