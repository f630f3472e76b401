"""Loops and branches that carry tiles on the CPU back end."""

from __future__ import annotations

import time

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.cpu.interrupt import BLOCK
from tests.unit.cpu_kit import agree, floats


@tessera.jit
def swap_kernel(x, y, n, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    for _ in range(n):
        a, b = b, a + b * 0.5
    tl.store(x + at, a)
    tl.store(y + at, b)


@pytest.mark.parametrize("n", [16, 256])
@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_carried_tiles_change_places(n, trips):
    agree(swap_kernel, (1,), floats(n), floats(n, seed=1), trips, rtol=1e-6, N=n)


@tessera.jit
def turn_kernel(x, n, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + at)
    s = tl.sum(a, 1)
    for _ in range(n):
        a = tl.trans(a) + s[:, None] * 0.1
        s = tl.sum(a, 0) * 0.01 + s
    tl.store(x + at, a)


@pytest.mark.parametrize("n", [8, 16, 64])
def test_carried_tile_is_turned(n):
    agree(turn_kernel, (1,), floats(n, n), 3, rtol=2e-5, atol=2e-5, N=n)


@tessera.jit
def pointer_kernel(x, y, rows, stride, N: tl.constexpr):
    p = x + tl.arange(0, N)
    q = y + tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for _ in range(rows):
        v = tl.load(p)
        total += v
        tl.store(q, total)
        p += stride
        q += N
    tl.store(q, tl.load(p - stride))


def test_carried_pointers():
    k = agree(
        pointer_kernel,
        (1,),
        floats(40, 70),
        np.zeros((41, 64), np.float32),
        40,
        70,
        rtol=1e-6,
        N=64,
    )
    assert "gather" not in k.asm["llir"]
    assert "scatter" not in k.asm["llir"]


@tessera.jit
def while_kernel(x, limit, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    steps = 0
    while tl.max(a, 0) < limit:
        a = a * 1.5 + 1
        steps += 1
    tl.store(x + at, a + steps)


@pytest.mark.parametrize("limit", [-10.0, 3.0, 1000.0])
def test_while_carries_a_tile(limit):
    agree(while_kernel, (1,), floats(64), limit, rtol=1e-6, N=64)


@tessera.jit
def nested_kernel(x, out, n, m, N: tl.constexpr):
    at = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for i in range(n):
        row = tl.zeros([N], tl.float32)
        for j in range(i, m, 2):
            if (i + j) % 3 == 0:
                row += tl.load(x + j * N + at)
            else:
                row -= tl.load(x + i * N + at)
        total += row * row
    tl.store(out + at, total)


@pytest.mark.parametrize("n", [32, 512])
def test_nested_loops_and_branches(n):
    agree(nested_kernel, (1,), floats(8, n), np.zeros(n, np.float32), 5, 8, rtol=1e-5, N=n)


@tessera.jit
def down_kernel(x, out, n):
    total = 0.0
    for i in range(n, 2, -3):
        total = total * 0.5 + tl.load(x + i)
    tl.store(out, total)


@pytest.mark.parametrize("n", [0, 2, 3, 19])
def test_descending_range(n):
    agree(down_kernel, (1,), floats(32), np.zeros(1, np.float32), n, rtol=1e-6)


@tessera.jit
def blocks_kernel(x, out, low, high, step):
    count = 0
    last = low
    total = 0.0
    for i in range(low, high, step):
        count += 1
        last = i
        total = total * 0.5 + tl.load(x + count % 8)
    tl.store(out, count)
    tl.store(out + 1, last)
    tl.store(out + 2, tl.cast(total * 1024, tl.int64))


@tessera.jit
def blocks_of_a_constant_step_kernel(out, low, high, STEP: tl.constexpr, N: tl.constexpr):
    seen = tl.zeros([N], tl.int64)
    last = low
    for i in range(low, high, STEP):
        seen += tl.arange(0, N)
        last = i
    tl.store(out + tl.arange(0, N), seen + last)


TOP = 2**63 - 1
RANGES = [
    (0, BLOCK - 1, 1), (0, BLOCK, 1), (5, BLOCK + 6, 1), (-7, 3 * BLOCK, 3), (0, 2 * BLOCK * 5, 5),
    (4, 4, 1), (9, 3, 2), (TOP - 5, TOP, 1), (TOP - 4 * BLOCK - 9, TOP - 4, 4), (-TOP, TOP - 2**61, 2**61),
    (-TOP, TOP - 2**53, 2**53), (-(2**62), TOP - 2**50, 2**50),
    # The number after the last one is none of int64.
    (TOP - 100, TOP, 40), (TOP - 3 * BLOCK, TOP, 2), (2**40, TOP, 2**61), (-TOP - 1, TOP, 2**62), (TOP - 1, TOP, TOP),
]  # fmt: skip


@pytest.mark.parametrize(("low", "high", "step"), RANGES)
def test_loops_in_blocks(low: int, high: int, step: int):
    """A loop is cut in blocks, to look for signals in between: of as many iterations, also near the largest numbers."""
    wanted = range(low, high, step)
    last = wanted[-1] if wanted else low
    x, out = floats(8), np.zeros(3, np.int64)
    total = 0.0
    for n in range(1, len(wanted) + 1):
        total = np.float32(total) * np.float32(0.5) + x[n % 8]
    blocks_kernel[(1,)](x, out, low, high, step)
    assert list(out[:2]) == [len(wanted), last]
    assert abs(out[2] - total * 1024) <= 1
    many = np.zeros(16, np.int64)
    blocks_of_a_constant_step_kernel[(1,)](many, low, high, step, 16)
    np.testing.assert_array_equal(many, np.arange(16) * len(wanted) + last)


@tessera.jit
def countdown_kernel(out, low, high, STEP: tl.constexpr):
    count, last = 0, low.to(tl.int64)
    for i in range(low, high, STEP):
        count += 1
        last = tl.cast(i, tl.int64)
    tl.store(out, tl.cast(count, tl.int64))
    tl.store(out + 1, last)


COUNTDOWNS = [
    (5, 0, -1), (0, 5, -1), (TOP, TOP - 7, -2), (TOP, -TOP, -(2**61)), (TOP, -TOP - 1, -(2**62)), (TOP, -TOP - 1, -TOP),
    (-TOP, -TOP - 1, -TOP), (0, -TOP - 1, -(2**62)), (-TOP + 3, -TOP - 1, -5), (TOP, -TOP - 1, -TOP - 1),
]  # fmt: skip


@pytest.mark.parametrize(("low", "high", "step"), COUNTDOWNS)
def test_countdowns_over_any_range(low: int, high: int, step: int):
    """The range may be longer than 2^63, and its end the least number."""
    wanted, out = range(low, high, step), np.zeros(2, np.int64)
    countdown_kernel[(1,)](out, np.int64(low), np.int64(high), step)
    assert list(out) == [len(wanted), wanted[-1] if wanted else low]


def test_descending_loops_in_blocks():
    agree(down_kernel, (1,), floats(BLOCK + 8), np.zeros(1, np.float32), BLOCK + 3, rtol=1e-3)


@tessera.jit
def steps_kernel(a, b, c, n, K: tl.constexpr, N: tl.constexpr):
    i, k = tl.arange(0, N), tl.arange(0, K)
    at = i[:, None] * N + i[None, :]
    acc = tl.load(c + at)
    for step in range(n):
        x = tl.load(a + i[:, None] * (n * K) + step * K + k[None, :])
        y = tl.load(b + (step * K + k)[:, None] * N + i[None, :])
        acc = tl.dot(x, y, acc * 0.5, input_precision="ieee")
    tl.store(c + at, acc + tl.sum(acc, 1)[:, None])


@pytest.mark.parametrize("n", [16, 48])
def test_accumulator_scaled_in_a_loop(n):
    size = 1 << (n - 1).bit_length()
    a, b, c = floats(size, 4 * 16), floats(4 * 16, size, seed=1), floats(size, size, seed=2)
    agree(steps_kernel, (1,), a, b, c, 4, rtol=1e-4, atol=1e-3, K=16, N=size)


@tessera.jit
def program_kernel(out, N: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    gx, gy = tl.num_programs(0), tl.num_programs(1)
    at = (z * gy + y) * gx + x
    tl.store(out + at * N + tl.arange(0, N), x * 100 + y * 10 + z + tl.arange(0, N) * 1000)


def test_three_dimensional_grid():
    agree(program_kernel, (3, 4, 2), np.zeros((24, 8), np.int32), N=8)


@tessera.jit(noinline=True)
def helper(a, b):
    if a > 0:
        b = b * 2
    return a * b + tl.program_id(0), b - 1


@tessera.jit
def calling_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = helper(tl.load(x), 3.0)
    tl.store(out + tl.program_id(0) * N + at, a + b * tl.load(x + at))


@pytest.mark.parametrize("first", [-1.0, 2.0])
def test_functions_that_are_not_inlined(first):
    x = floats(64)
    x[0] = first
    agree(calling_kernel, (2,), x, np.zeros(128, np.float32), rtol=1e-5, N=64)


@tessera.jit
def moments_kernel(x, out, n, B: tl.constexpr):
    total = tl.zeros([B], tl.float32)
    top = tl.full([B], -float("inf"), tl.float32)
    for start in range(0, n, B):
        at = start + tl.arange(0, B)
        v = tl.load(x + at, mask=at < n, other=0.0)
        total += v * v
        top = tl.maximum(top, v)
    tl.store(out, tl.sum(total, 0))
    tl.store(out + 1, tl.max(top, 0))


@pytest.mark.parametrize("n", [0, 5, 1000])
def test_accumulators_that_are_only_reduced(n):
    k = agree(moments_kernel, (1,), floats(1024), np.zeros(2, np.float32), n, rtol=1e-5, B=256)
    assert "alloca [" not in k.asm["llir"]  # no tile in memory


@tessera.jit
def gathered_divisor_kernel(x, out, n, N: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    b = a
    for _ in range(n):
        b = (a - b) % (tl.abs(tl.gather(a, a & (N - 1), 0)) + 1)
        b += (a >> 1) // (tl.load(x + (a & (N - 1))) | 1)
    tl.store(out + at, b)


def test_divisions_in_a_loop_by_values_that_are_gathered():
    """Not index arithmetic: no table of quotients is made of it before the loop."""
    x = np.random.default_rng(0).integers(0, 1 << 20, 64).astype(np.int32)
    agree(gathered_divisor_kernel, (1,), x, np.zeros(64, np.int32), 3, N=64)


@tessera.jit
def pick_descriptor(x, y, out, flag, n, N: tl.constexpr):
    a = tl.make_tensor_descriptor(x, [n, n], [N, 1], [16, 16])
    b = tl.make_tensor_descriptor(y, [n, n], [N, 1], [16, 16], padding_option="nan")
    if flag > 0:
        d = a
    else:
        d = b
    total = tl.zeros((16, 16), tl.float32)
    k = 0
    while k < 3:
        part = d.load([16 * k, 0])
        total += tl.where(part == part, part, 1000.0)  # what lies outside is zero or NaN
        if k == 1:
            d = b
        k += 1
    for k in range(2):
        total += d.load([16 * k, 16])
        d = a
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    tl.store(out + i * 16 + j, total)


@pytest.mark.parametrize("flag", [0, 1])
def test_descriptors_are_carried(flag):
    x, y = floats(64, 64), floats(64, 64, seed=1)
    agree(pick_descriptor, (1,), x, y, np.zeros((16, 16), np.float32), flag, 40, N=64)


@tessera.jit
def long_kernel(x, out, STEPS: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    rows = v[:, None] + tl.zeros((N, 4), tl.int32)
    for i in tl.static_range(STEPS):
        v = v * 3 + i
        rows = (rows ^ i) + v[:, None]
        if i % 200 == 100:
            tl.store(x + at, v)  # what is waiting must not see it
    cells = at[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(out + cells, rows + tl.load(x + at)[:, None])


@pytest.mark.slow
def test_many_steps_in_a_row():
    """Neither Python's stack nor the time of compilation depends on how long such a chain is."""
    x = np.arange(16, dtype=np.int32)
    start = time.perf_counter()
    agree(long_kernel, (1,), x, np.zeros((16, 4), np.int32), STEPS=900, N=16)
    assert time.perf_counter() - start < 60


@tessera.jit
def branches_kernel(x, out, n, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    if n > 3:
        v = tl.flip(v * 2) + v
    elif n > 2:
        v = tl.cumsum(tl.flip(v))
    if n < 2:
        v = tl.flip(v - 1) - tl.flip(v + 3)
    tl.store(out + at, v)


@pytest.mark.parametrize("n", [1, 3, 4])
def test_branches_share_memory_beyond_the_stack(n: int, monkeypatch: pytest.MonkeyPatch):
    """A buffer that one branch has made is there in the next one."""
    monkeypatch.setattr("tessera.backends.cpu.lowering.STACK_LIMIT", 0)
    agree(branches_kernel, (1,), np.arange(1024, dtype=np.float32), floats(1024), n, N=1024)
