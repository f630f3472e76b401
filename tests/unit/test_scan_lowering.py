"""Scans on the simulated GPU, for all places of the axis in registers, lanes and warps."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.runtime.driver import driver
from tests.simt_kit import Compiled

SHAPES = [(1, 2), (1, 64), (2, 512), (4, 128), (8, 8), (32, 64), (64, 4), (128, 2), (512, 1), (1, 2048)]  # fmt: skip


@tessera.jit
def then(a, b, c, d):
    """One affine map after another: neither commutative nor the same from both ends."""
    return a * c, b * c + d


@tessera.jit
def maps(x, y, p, q, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, BACK: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    a, b = tl.associative_scan((tl.load(x + at), tl.load(y + at)), AXIS, then, reverse=BACK)
    tl.store(p + at, a)
    tl.store(q + at, b)


def expected(x: np.ndarray, y: np.ndarray, axis: int, back: bool) -> tuple[np.ndarray, np.ndarray]:
    a, b = x.copy(), y.copy()
    size = x.shape[axis]
    order = range(size - 2, -1, -1) if back else range(1, size)
    for i in order:
        at, before = [slice(None)] * 2, [slice(None)] * 2
        at[axis], before[axis] = i, i + 1 if back else i - 1  # type: ignore[call-overload]
        here, there = tuple(at), tuple(before)
        b[here] += b[there] * a[here]
        a[here] *= a[there]
    return a, b


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    with knobs.scope():
        driver.set_active("simt")
        yield
    driver.reset_active()


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("warps", [1, 4, 16])
def test_maps_one_after_another(shape: tuple[int, int], warps: int, axis: int, back: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-(2**31), 2**31, shape).astype(np.int32) for _ in range(2))
    p, q = np.zeros_like(x), np.zeros_like(y)
    maps[(1,)](x, y, p, q, M=shape[0], N=shape[1], AXIS=axis, BACK=back, num_warps=warps)
    want = expected(x, y, axis, back)
    np.testing.assert_array_equal(p, want[0])
    np.testing.assert_array_equal(q, want[1])


@tessera.jit
def total(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.cumsum(tl.load(x + at)))


def test_a_thread_combines_each_of_its_elements_twice_at_most() -> None:
    """16 elements in each thread of one warp: 15 in the thread, 5 steps over lanes, 15 by the lane in front."""
    found = Compiled(
        total, {"x": "*fp32", "out": "*fp32", "N": "constexpr"}, {"N": 512}, num_warps=1
    )
    adds = [line for line in found.ir.splitlines() if " fadd " in line]
    assert len(adds) == 15 + 5 + 15
