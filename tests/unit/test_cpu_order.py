"""Order of loads and stores on the CPU back end: fusion must never let a store overtake a load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.cpu import fusion
from tests.unit.cpu_kit import agree, floats, native


@tessera.jit
def shift_kernel(x, N: tl.constexpr, BY: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + BY + at, tl.load(x + at))


@pytest.mark.parametrize("by", [1, 7, 16, 100])
def test_shift_in_place(by):
    agree(shift_kernel, (1,), floats(400), N=256, BY=by)


@tessera.jit
def rotate_kernel(x, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    b = tl.load(x + N + at)
    tl.store(x + at, a * 0.5 - b)
    tl.store(x + N + at, a + b * 0.5)


@pytest.mark.parametrize("n", [16, 64, 512])
def test_halves_update_each_other(n):
    agree(rotate_kernel, (1,), floats(2 * n), N=n)


@tessera.jit
def residual_kernel(x, y, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    tl.store(y + at, a + tl.load(y + at))
    tl.store(out + at, a * 2 + tl.load(y + at))


def test_two_arguments_name_one_array():
    # x and y are the same memory: what was loaded before the first store must not be loaded again after it.
    x, out = floats(256), np.zeros(256, np.float32)
    a = x.copy()
    native(residual_kernel, (1,), x, x, out, N=256)
    np.testing.assert_array_equal(x, a + a)
    np.testing.assert_array_equal(out, a * 2 + (a + a))


@tessera.jit
def transpose_kernel(x, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    t = tl.load(x + i * N + j)
    tl.store(x + i * N + j, tl.trans(t))


@pytest.mark.parametrize("n", [4, 16, 32, 64])
def test_transpose_in_place(n):
    agree(transpose_kernel, (1,), floats(n, n), N=n)


@tessera.jit
def loop_kernel(x, y, n, N: tl.constexpr):
    at = tl.arange(0, N)
    before = tl.load(x + at)
    for i in range(n):
        tl.store(x + at, tl.load(x + at) * 0.5 + i)
    tl.store(y + at, before + tl.load(x + at))


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_load_before_a_loop_that_writes(trips):
    agree(loop_kernel, (1,), floats(64), floats(64), trips, N=64)


@tessera.jit
def branch_kernel(x, y, flag, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.exp(tl.load(x + at))
    if flag > 0:
        tl.store(x + at, a + 1)
        b = tl.load(x + at) * a
    else:
        b = a * 3
    tl.store(y + at, b + a)


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("n", [32, 1024])
def test_values_used_in_and_after_a_branch(flag, n):
    agree(branch_kernel, (1,), floats(n), floats(n), flag, rtol=1e-6, N=n)


@tessera.jit
def masked_kernel(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    m = at < n
    tl.store(y + at, tl.load(x + at, mask=m, other=7.0) + 1, mask=m)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 255, 256, 257, 1000])
def test_masked_lanes_touch_nothing(n):
    # The arrays end where the mask ends; what lies behind them must stay as it is.
    store = np.full(2048, -1, np.float32)
    native(masked_kernel, (tessera.cdiv(n, 256),), floats(n), store[:n], n, B=256)
    np.testing.assert_array_equal(store[:n], floats(n) + 1)
    assert (store[n:] == -1).all()


@tessera.jit
def square_mask_kernel(x, y, n, N: tl.constexpr):
    at = tl.arange(0, N)
    inside = at < n
    m = inside[:, None] & inside[None, :]
    v = tl.load(x + at[:, None] * N + at[None, :], mask=m, other=-3.0)
    tl.store(y + at[None, :] * N + at[:, None], v)


@pytest.mark.parametrize("n", [0, 5, 37, 64])
def test_one_mask_along_both_dimensions(n):
    agree(square_mask_kernel, (1,), floats(64, 64), floats(64, 64), n, N=64)


@tessera.jit
def atomic_kernel(x, index, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    m = at < n
    where = tl.load(index + at, mask=m, other=0)
    old = tl.atomic_add(x + where, 1.0, mask=m)
    tl.store(out + at, old, mask=m)


def test_atomics_see_the_order_of_elements():
    index = np.random.default_rng(1).integers(0, 8, 100).astype(np.int32)
    agree(atomic_kernel, (2,), floats(8), index, np.zeros(100, np.float32), 100, B=64)


@tessera.jit
def cheap_kernel(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    for k in tl.static_range(8):
        tl.store(y + k * N + at, tl.load(x + at) + 1.0)


def test_what_no_loop_keeps_is_not_looked_for_in_later_ones(monkeypatch: pytest.MonkeyPatch):
    """Constants and indices have as many users as a kernel has loops: to go through all of them for each loop takes
    time that grows with the square."""
    asked: list[Any] = []
    needed_after = fusion.needed_after

    def counted(*args: Any) -> bool:
        if len(args) == 4:  # with what is known of a loop's values
            asked.append(args[1])
        return needed_after(*args)

    monkeypatch.setattr(fusion, "needed_after", counted)
    agree(cheap_kernel, (1,), floats(64), floats(8, 64), N=64)
    assert not asked
