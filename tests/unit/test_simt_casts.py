"""Casts of packed 8-bit integers on a simulated GPU: every byte, in every place of a register."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator

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
    plain = widened.warmup(
        x, out, 1024, tl.float16, False, grid=(1,), num_warps=4, disable_optimizations="byte-casts"
    ).asm["llir"]
    assert "sitofp" in plain
