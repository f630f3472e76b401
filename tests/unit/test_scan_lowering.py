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


@pytest.mark.parametrize("off", ["", "share-parts"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "warps"),
    [
        ((64, 64), 0, 4),
        ((64, 64), 0, 16),
        ((64, 256), 0, 8),
        ((32, 128), 0, 16),
        ((4, 8, 64), 1, 8),
    ],
)
def test_totals_of_many_columns(
    shape: tuple[int, ...], axis: int, warps: int, back: bool, off: str
) -> None:
    """Each thread combines the totals of all warps in front, or threads scan them for all others."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-(2**31), 2**31, shape).astype(np.int32) for _ in range(2))
    p, q = np.zeros_like(x), np.zeros_like(y)
    more = (shape[0], shape[1], shape[2] if len(shape) == 3 else 1)
    blocks[(1,)](
        x, y, p, q, SHAPE=more, AXIS=axis, BACK=back, num_warps=warps, disable_optimizations=off
    )
    want = expected(x, y, axis, back)
    np.testing.assert_array_equal(p, want[0])
    np.testing.assert_array_equal(q, want[1])


@tessera.jit
def blocks(x, y, p, q, SHAPE: tl.constexpr, AXIS: tl.constexpr, BACK: tl.constexpr):
    at = tl.arange(0, SHAPE[0] * SHAPE[1] * SHAPE[2]).reshape(SHAPE)
    a, b = tl.associative_scan((tl.load(x + at), tl.load(y + at)), AXIS, then, reverse=BACK)
    tl.store(p + at, a)
    tl.store(q + at, b)


@tessera.jit
def products(x, out, M: tl.constexpr, N: tl.constexpr):
    """Running products down the columns of 16-bit rows, of which a thread holds eight neighbours."""
    at = tl.arange(0, M)[None, :] * N + tl.arange(0, N)[:, None]
    tl.store(out + at, tl.cumprod(tl.load(x + at).to(tl.float32), 1))


PRODUCTS = {"x": "*fp16", "out": "*fp16", "M": "constexpr", "N": "constexpr"}


def test_totals_of_many_columns_are_scanned_once() -> None:
    """32 columns of 64 rows in eight warps, eight columns in a thread: 24 products over lanes and eight with what is in
    front; of the totals three, not seven for each column."""
    counts: dict[str, tuple[int, int]] = {}
    for off in ("", "share-parts"):
        with knobs.scope():
            knobs.compilation.disable = off
            found = Compiled(products, PRODUCTS, {"M": 64, "N": 32}, num_warps=8)
        counts[off] = found.count(r"mul\.f32"), found.count(r"bar\.sync")
    assert counts == {"": (24 + 3 + 8, 2), "share-parts": (24 + 8 * 6 + 8, 1)}


@pytest.mark.parametrize("off", ["", "share-parts"])
@pytest.mark.parametrize(("rows", "width", "warps"), [(64, 32, 8), (32, 128, 8), (4, 128, 4)])
def test_warps_exchange_totals_without_bank_conflicts(
    rows: int, width: int, warps: int, off: str
) -> None:
    """Lanes hold totals of different columns; those of one column lie together only where no other is in that bank.
    What a thread scanned for the others goes to their places: one write, whose conflicts are fewer than what it saves.
    """
    x = np.ones((rows, width), np.float16)
    knobs.simulator.banks = True
    knobs.compilation.always_compile = True
    out = np.zeros_like(x)
    found = products[(1,)](x, out, M=rows, N=width, num_warps=warps, disable_optimizations=off)
    traffic = list(found.simulation.banks.values())
    assert sum(t.passes for t in traffic) > 0
    assert sum(t.conflicts for t in traffic) <= (8 * warps if not off else 0)


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
