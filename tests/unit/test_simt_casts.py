"""Casts of packed 8-bit integers on a simulated GPU: every byte, in every place of a register."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.runtime.driver import driver


@tessera.jit
def widened(x, out, N: tl.constexpr, TO: tl.constexpr, TURNED: tl.constexpr):
    at = tl.arange(0, N)
    y = tl.load(x + at)
    if TURNED:  # bytes of one register become neighbours of others'
        y = tl.reshape(tl.trans(tl.reshape(y, (N // 4, 4))), (N,))
    tl.store(out + at, y.to(TO).to(tl.float32))


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    driver.set_active("simt")
    yield
    driver.reset_active()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("to", [tl.float16, tl.bfloat16, tl.float32])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_every_byte(dtype: type, to: tl.dtype, turned: bool):
    every = np.arange(256, dtype=np.uint8).view(dtype)
    x = np.concatenate([np.roll(every, n) for n in range(4)])
    out = np.zeros(x.size, np.float32)
    widened[(1,)](x, out, x.size, to, turned, num_warps=4)
    want = x.reshape(-1, 4).T.ravel() if turned else x
    np.testing.assert_array_equal(out, want.astype(np.float32))


def test_bytes_are_permuted():
    """What the optimisation is for: no conversion of single integers is left."""
    x, out = np.zeros(1024, np.int8), np.zeros(1024, np.float32)
    code = widened.warmup(x, out, 1024, tl.float16, False, grid=(1,), num_warps=4).asm["llir"]
    assert "sitofp" not in code
    assert "sext i8" not in code
    plain = widened.warmup(
        x, out, 1024, tl.float16, False, grid=(1,), num_warps=4, disable_optimizations="byte-casts"
    ).asm["llir"]
    assert "sext i8" in plain  # as small integers, one by one


@tessera.jit
def of_numbers(x, out, N: tl.constexpr, MASK: tl.constexpr, LESS: tl.constexpr, TO: tl.constexpr):
    at = tl.arange(0, N)
    y = tl.load(x + at)
    if MASK:
        y = (y & MASK) - LESS
    tl.store(out + at, y.to(TO).to(tl.float32))


def converted(x: np.ndarray, mask: int, less: int, to: tl.dtype, **options: str):
    """What the kernel stores, and its code."""
    out = np.zeros(x.size, np.float32)
    found = of_numbers[(1,)](x, out, x.size, mask, less, to, num_warps=4, **options)
    return out, found.asm["llir"]


def nearest(x: np.ndarray, to: tl.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(NUMPY[to]).astype(np.float32)


NUMPY = {tl.float16: np.float16, tl.bfloat16: ml_dtypes.bfloat16}
MANY = 1 << 23


@pytest.mark.parametrize("to", [tl.float16, tl.bfloat16])
@pytest.mark.parametrize(
    ("mask", "less"), [(15, 8), (1023, 512), (1023, 511), (MANY - 1, MANY // 2)]
)
def test_small_numbers(mask: int, less: int, to: tl.dtype):
    """All that are in a short range, and both ends of a long one."""
    x = np.arange(-1024, 1024, dtype=np.int32)
    found, code = converted(x, mask, less, to)
    np.testing.assert_array_equal(found, nearest((x & mask) - less, to))
    assert "sitofp" not in code
    plain, code = converted(x, mask, less, to, disable_optimizations="small-casts")
    np.testing.assert_array_equal(found, plain)
    assert "sitofp" in code


@pytest.mark.parametrize("to", [tl.float16, tl.bfloat16])
@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_every_short(dtype: type, to: tl.dtype):
    """16 bits are small enough for fp32, and may be too large for fp16."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    for part in np.split(x, 8):
        found, code = converted(part, 0, 0, to)
        np.testing.assert_array_equal(found, nearest(part, to))
        assert "itofp" not in code


@pytest.mark.parametrize(("mask", "less"), [(0, 0), (2 * MANY - 1, MANY // 2)])
def test_large_numbers_are_converted(mask: int, less: int):
    """Nothing is known of them, or they may be larger than those of which each has its own float."""
    x = np.array([0, 1, -1, 2**31 - 1, -(2**31), MANY // 2, MANY, 2049] * 32, np.int32)
    found, code = converted(x, mask, less, tl.float16)
    np.testing.assert_array_equal(found, nearest((x & mask) - less if mask else x, tl.float16))
    assert "sitofp" in code


@tessera.jit
def as_single(x, out, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.multiple_of(x.to(tl.pointer_type(tl.bfloat16), bitcast=True), 16)
    y = tl.load(x + at)
    tl.store(out + at, y.to(tl.float32).to(tl.int32, bitcast=True))


def test_every_bf16():
    """Each has its bits above 16 zeros, taken from a register of two by one instruction. (NaNs keep theirs.)"""
    every = np.arange(65536, dtype=np.uint16).view(np.int16)
    x = np.concatenate([every, np.roll(every, 1)])
    out = np.zeros(x.size, np.int32)
    done = as_single[(x.size // 2048,)](x, out, 2048, num_warps=4)
    np.testing.assert_array_equal(out.view(np.uint32), x.view(np.uint16).astype(np.uint32) << 16)
    assert "fpext" not in done.asm["llir"]


@tessera.jit
def whole(x, out, N: tl.constexpr, TO: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at).to(TO).to(tl.int64, bitcast=True))


@pytest.mark.parametrize("to", [tl.int64, tl.uint64])
def test_whole_numbers_of_64_bits(to: tl.dtype):
    """They saturate, as the instruction does by itself, and NaN gives 0, for which it gives the sign bit."""
    edges = [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        1.9,
        -1.9,
        2.0**63,
        -(2.0**63),
        2.0**64,
        1e30,
        -1e30,
        3e18,
        -3e18,
    ]
    x = np.resize(np.array(edges, np.float32), 128)
    low, high = (-(2**63), 2**63 - 1) if to is tl.int64 else (0, 2**64 - 1)
    want = [0 if np.isnan(v) else min(max(int(np.clip(v, -1e38, 1e38)), low), high) for v in x]
    out = np.zeros(128, np.int64)
    done = whole[(1,)](x, out, 128, to, num_warps=1)
    np.testing.assert_array_equal(
        out, np.array([v % 2**64 for v in want], np.uint64).view(np.int64)
    )
    assert ".sat." not in done.asm["llir"]
