"""Tiles of dots whose ends constant masks leave out: they are cut off, and only where nothing depends on them."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tests.unit.cpu_kit import agree, floats


@tessera.jit
def attention(
    q, k, v, out, sums, length, DIM: tl.constexpr, D: tl.constexpr, B: tl.constexpr, HOW: tl.constexpr,
    OTHER: tl.constexpr,
):  # fmt: skip
    """Heads of DIM numbers in tiles of D. HOW: what else depends on the columns from DIM on."""
    rows, at, dims = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, B), tl.arange(0, D)
    if HOW == "promised":
        dims = tl.max_contiguous(dims, D)
    real = dims[None, :] < DIM
    there = (rows[:, None] < length) & real
    x = tl.load(q + rows[:, None] * D + dims[None, :], mask=there, other=OTHER)
    acc = tl.zeros((B, D), tl.float32)
    start = 0
    while start < length:
        keys = (start + at)[:, None]
        place = keys * D + dims[None, :]
        y = tl.load(k + place, mask=(keys < length) & real, other=OTHER)
        z = tl.load(v + place, mask=(keys < length) & real, other=OTHER)
        weights = tl.maximum(tl.dot(x, y.T, input_precision="ieee"), -1.0)
        acc = tl.dot(weights.to(z.dtype), z, acc * 0.5, input_precision="ieee")
        start += B
    if HOW == "summed":
        tl.store(sums + rows, tl.sum(acc + 1.0, axis=1))
    if HOW == "scanned":
        acc = tl.cumsum(acc, axis=1)
    if HOW == "stored":
        tl.store(out + rows[:, None] * D + dims[None, :], acc + 1.0)
    elif HOW == "added":
        tl.atomic_add(out + rows[:, None] * D + dims[None, :], acc, mask=there)
    elif HOW == "turned":
        tl.store(out + rows[None, :] * D + dims[:, None], acc.T, mask=there.T)
    else:
        tl.store(out + rows[:, None] * D + dims[None, :], acc, mask=there)


def run(
    dim: int, d: int, how: str = "", other: int | None = 0, t: Any = np.float32, b: int = 32
) -> str:
    """Compare with the interpreter; return the LLVM IR."""
    x = [floats(64, d, seed=i).astype(t) for i in range(3)]
    for array in x:  # what no mask lets through
        array[:, dim:] = np.nan
    out, sums = np.ones((64, d), np.float32), np.ones(64, np.float32)
    near = 1e-4 if t is np.float32 else 3e-2
    options = {"DIM": dim, "D": d, "B": b, "HOW": how, "OTHER": other}
    found = agree(attention, (1,), *x, out, sums, 50, **options, rtol=near, atol=near * d)
    return found.asm["llir"]


@pytest.mark.parametrize(("isa", "dim", "d", "b", "width"), [
    ("native", 96, 128, 16, 96), ("native", 33, 128, 32, 64), ("native", 40, 64, 32, 64), ("native", 20, 64, 64, 32),
    ("generic", 80, 128, 16, 96),
])  # fmt: skip
def test_dots_have_the_extents_that_matter(isa: str, dim: int, d: int, b: int, width: int):
    """Depth of the first dot, columns of the second, even if keys and columns are the same `arange`."""
    with knobs.scope():
        knobs.cpu.isa = isa
        for t in (np.float32, ml_dtypes.bfloat16):
            text = run(dim, d, t=t, b=b)
            assert f"dot fp32 {b}x{b}x{width}: " in text and f"dot fp32 {b}x{width}x{b}: " in text


@pytest.mark.parametrize("how", ["added", "turned"])
def test_masked_writes_of_other_kinds(how: str):
    assert "dot fp32 32x96x32: " in run(96, 128, how)


@pytest.mark.parametrize("how", ["stored", "summed", "scanned", "promised"])
def test_ends_on_which_something_depends(how: str):
    """Dots are narrow only along dimensions that nothing else looks at, and these correspond here."""
    assert "dot fp32 32x128x32: " in run(96, 128, how)


def test_loads_that_are_not_zero_behind_the_mask():
    text = run(96, 128, other=1)
    assert "dot fp32 32x32x128: " in text
    assert "dot fp32 32x32x96: " in run(96, 128, other=None)


@tessera.jit
def bytes_(a, b, c, K: tl.constexpr, M: tl.constexpr):
    m, n, k = tl.arange(0, 128), tl.arange(0, 32), tl.arange(0, 128)
    x = tl.load(a + m[:, None] * 128 + k, mask=(m[:, None] < M) & (k < K), other=0)
    y = tl.load(b + k[:, None] * 32 + n, mask=k[:, None] < K, other=0)
    tl.store(c + m[:, None] * 32 + n, tl.dot(x, y), mask=m[:, None] < M)


def test_rows_and_products_of_bytes():
    """Four bytes for each row of a tile of the matrix unit are a multiple of 64."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, shape).astype(np.int8) for shape in ((128, 128), (128, 32)))
    for k, m, shape in ((50, 70, "128x32x64"), (64, 64, "64x32x64"), (65, 1, "64x32x128")):
        found = agree(bytes_, (1,), a, b, np.ones((128, 32), np.int32), K=k, M=m)
        assert f"dot int32 {shape}: " in found.asm["llir"]


@tessera.jit
def one_side(a, b, c, K: tl.constexpr):
    m, k = tl.arange(0, 32), tl.arange(0, 64)
    x = tl.load(a + m[:, None] * 64 + k, mask=k < K, other=0.0)
    y = tl.load(b + k[:, None] * 32 + m)
    tl.store(c + m[:, None] * 32 + m, tl.dot(x, y, input_precision="ieee"))


def test_zeros_times_what_is_not_finite():
    b = floats(64, 32)
    b[40:, 3], b[40:, 5] = np.nan, np.inf
    c = np.zeros((32, 32), np.float32)
    found = agree(one_side, (1,), floats(32, 64), b, c, K=32, rtol=1e-4, atol=1e-4)
    assert "dot fp32 32x32x64: " in found.asm["llir"]
