"""Checked builds of the interpreter and of the CPU find the same faults and say the same of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera import errors
from tessera.config import knobs
from tessera.language.extra import libdevice
from tessera.runtime.driver import driver


def report(target: str, launch: Callable[[], Any]) -> str:
    driver.set_active(target)
    try:
        with pytest.raises((errors.InterpreterError, errors.DeviceAssertionError)) as caught:
            launch()
    finally:
        driver.reset_active()
    return str(caught.value)


def both(launch: Callable[[], Any]) -> str:
    """The report of a launch, the same on both targets."""
    interpreted = report("interpreter", launch)
    assert report("cpu", launch) == interpreted
    return interpreted


def zeros(n: int, t: Any = np.float32) -> np.ndarray:
    return np.zeros(n, t)


@tessera.jit
def rows_kernel(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    at = i[:, None] * columns + j[None, :]
    v = tl.load(x + at, mask=(i[:, None] < rows) & (j[None, :] < columns))
    tl.store(out + at, v)


def test_two_dimensions():
    x, out = np.ones((5, 6), np.float32), zeros(64)
    text = both(lambda: rows_kernel[(1,)](x, out, 6, 6, 8, 8, debug="check"))
    assert "reads element 30 of argument `x`, whose storage ends after element 29" in text
    assert "program (0, 0, 0), element (5, 0)" in text
    assert "`at` = 30" in text


@tessera.jit
def strided_kernel(x, out, rows, stride, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    first = tl.program_id(0) * M
    v = tl.load(x + (first + i)[:, None] * stride + j[None, :], mask=(i < rows)[:, None])
    tl.store(out + i[:, None] * N + j[None, :], v)


def test_what_an_address_is_made_of():
    """The names that the author gave, at the element, not results of operations that have none."""
    x, out = np.ones((4, 8), np.float32), zeros(32)
    text = both(lambda: strided_kernel[(1,)](x, out, 4, 9, 4, 8, debug="check"))
    assert "reads element 32 of argument `x`" in text
    assert "program (0, 0, 0), element (3, 5)" in text
    notes = re.findall(r"note: `(\w+)` = (.*)", text)
    assert dict(notes) == {"first": "0", "i": "3", "stride": "9", "j": "5", "rows": "4"}
    assert "the operand from" not in text


@tessera.jit
def flat_kernel(x, out, stride):
    i, j = tl.arange(0, 4), tl.arange(0, 8)
    p = tl.reshape(x + i[:, None] * stride + j[None, :], [32])
    tl.store(out + tl.arange(0, 32), tl.load(p))


def test_an_address_of_another_shape():
    """What does not fit the tile is shown by its ends."""
    x = np.ones((4, 8), np.float32)
    text = both(lambda: flat_kernel[(1,)](x, zeros(32), 9, debug="check"))
    assert "program (0, 0, 0), element (29)" in text
    assert "`i` = [0, 1, 2, 3] of shape 4x1" in text


@tessera.jit
def stream_kernel(x, out, n, step, N: tl.constexpr):
    p = x + tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for _ in range(n):
        total += tl.load(p)
        p += step
    tl.store(out + tl.program_id(0) * N + tl.arange(0, N), total)


def test_pointers_that_a_loop_carries():
    x, out = np.ones(64, np.float32), zeros(64)
    stream_kernel[(2,)](x, out, 2, 32, 16, debug="check")
    assert (out[:32] == 2).all()
    text = both(lambda: stream_kernel[(2,)](x, out, 3, 32, 16, debug="check"))
    assert "reads element 64 of argument `x`" in text
    assert "program (0, 0, 0), element (0)" in text


@tessera.jit
def invariant_kernel(x, out, n, far, N: tl.constexpr):
    i = tl.arange(0, N)
    for k in range(n):
        tl.store(out + k * N + i, tl.load(x + i.to(tl.int64) * far))


def test_a_load_does_not_overtake_its_check():
    """The load is invariant in the loop: hoisted before the check it would end the process."""
    x = np.ones(16, np.float32)
    text = both(lambda: invariant_kernel[(1,)](x, zeros(64), 4, 1 << 40, 16, debug="check"))
    assert f"reads element {1 << 40} of argument `x`" in text


@tessera.jit
def many_kernel(x, out, N: tl.constexpr):
    pid = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    i = pid * N + tl.arange(0, N)
    v = 1.0 / tl.load(x + i)
    tl.store(out + i, v)


def test_the_first_of_many_programs():
    x = np.ones(64 * 128, np.float32)
    x[37 * 16 + 5 :] = 0
    for _ in range(5):  # whatever the order in which threads come to it
        text = both(lambda: many_kernel[(64, 8)](x, zeros(64 * 128), 16, debug="check"))
        assert "program (37, 0, 0), element (5)" in text


@tessera.jit(noinline=True)
def fetch(p, i, m):
    return tl.load(p + i) // m


@tessera.jit
def calling_kernel(x, out, i, m):
    pid = tl.program_id(0)
    tl.store(out + pid, fetch(x, i + pid, m) + 1)


def test_functions_know_the_storage_of_their_pointers():
    x, out = np.arange(8, dtype=np.int32), zeros(8, np.int32)
    calling_kernel[(4,)](x, out, 4, 2, debug="check")
    assert out[:4].tolist() == [3, 3, 4, 4]
    text = both(lambda: calling_kernel[(4,)](x, out, 6, 2, debug="check"))
    assert "reads element 8 of argument `p`, whose storage ends after element 7" in text
    assert "program (2, 0, 0)" in text
    out[:] = 7
    text = both(lambda: calling_kernel[(1,)](x, out, 6, 0, debug="check"))
    assert "division by zero" in text
    assert out[0] == 7  # the caller stops too


@tessera.jit
def product_kernel(a, b, out, N: tl.constexpr, K: tl.constexpr):
    i, k = tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + i[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + i[None, :])
    c = tl.dot(x, y, out_dtype=tl.float32)
    tl.store(out + i[:, None] * N + i[None, :], c.to(tl.float16))


def test_products_and_narrowing():
    a = np.ones((16, 32), np.float16)
    b = np.full((32, 16), 1000, np.float16)
    out = zeros(256, np.float16)
    product_kernel[(1,)](a, b, out, 16, 32, debug="check")
    assert (out == 32000).all()
    b[3, 4] = 60000
    text = both(lambda: product_kernel[(1,)](a, b, out, 16, 32, debug="check"))
    assert "becomes infinity: `cast` of finite numbers" in text
    assert "element (0, 4)" in text
    assert "`c` = 91000.0" in text
    big = np.full((32, 16), 3e38, np.float32)
    text = both(lambda: product_kernel[(1,)](big, big, out, 16, 32, debug="check"))
    assert "becomes infinity: `dot` of finite numbers" in text
    assert "`x` = [3e+38, 3e+38, ..., 3e+38, 3e+38] of shape 16x32" in text


@tessera.jit
def sums_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i[:, None] * N + i[None, :])
    total = tl.sum(v, 1)
    running = tl.cumsum(total, 0)
    tl.store(out + i, running)


def test_reductions_and_scans():
    x, out = np.ones((8, 8), np.float32), zeros(8)
    sums_kernel[(1,)](x, out, 8, debug="check")
    assert out[-1] == 64
    x[2, :] = 3e38
    text = both(lambda: sums_kernel[(1,)](x, out, 8, debug="check"))
    assert "becomes infinity: `reduce` of finite numbers" in text
    assert "element (2)" in text
    x[2, :], x[3:5, 0] = 1, 3e38
    text = both(lambda: sums_kernel[(1,)](x, out, 8, debug="check"))
    assert "becomes infinity: `scan` of finite numbers" in text
    x[3, 0], x[3, 1] = np.inf, -np.inf
    text = both(lambda: sums_kernel[(1,)](x, out, 8, debug="check"))
    assert "becomes NaN: `reduce` of infinities" in text


@tessera.jit
def library_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    gamma = libdevice.tgamma(tl.load(x + i))
    tl.store(out + i, gamma)


def test_functions_of_libdevice_are_one_operation():
    x, out = np.array([0.5, 3, 4, 5], np.float32), zeros(4)
    library_kernel[(1,)](x, out, 4, debug="check")  # divides by sin(3 pi) on the way
    np.testing.assert_allclose(out[1:], [2, 6, 24], rtol=1e-6)
    x[2] = 100
    text = both(lambda: library_kernel[(1,)](x, out, 4, debug="check"))
    assert "`gamma` becomes infinity: `tgamma` of finite numbers" in text
    assert "libdevice_special.py" not in text
    assert "element (2)" in text


@tessera.jit
def branches_kernel(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    k = 0
    while k < n:
        if k % 3 == 2:
            v = v * 1e30
        k += 1
    assert tl.max(v, 0) < 1e35, "out of range"
    tl.store(out + i, v)


def test_loops_and_branches():
    x, out = np.arange(1, 9, dtype=np.float32), zeros(8)
    branches_kernel[(1,)](x, out, 4, 8, debug="check")
    text = both(lambda: branches_kernel[(1,)](x * 1e6, out, 4, 8, debug="check"))
    assert "assertion failed: out of range" in text
    text = both(lambda: branches_kernel[(1,)](x, out, 6, 8, debug="check"))
    assert "`v` becomes infinity: `mul` of finite numbers" in text


@tessera.jit
def integers_kernel(x, out, m, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(out + i, -(v % m.to(v.dtype)))


@pytest.mark.parametrize("t", [np.int8, np.int16, np.int64, np.uint32, np.uint64])
def test_integers(t: Any):
    x, out = np.arange(1, 9).astype(t), zeros(8, t)
    text = both(lambda: integers_kernel[(1,)](x, out, 0, 8, debug="check"))
    assert "the result of `rem`: division by zero" in text
    assert "`v` = 1" in text
    x[3] = np.iinfo(t).min
    if np.iinfo(t).min < 0:
        text = both(lambda: integers_kernel[(1,)](x, out, -1, 8, debug="check"))
        assert f"`v` = {np.iinfo(t).min}" in text


@tessera.jit
def sums64_kernel(x, y, out, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    if OP == 0:
        c = a + b
    elif OP == 1:
        c = a - b
    else:
        c = a * b
    tl.store(out + i, c)


@pytest.mark.parametrize("op", [0, 1, 2])
def test_sums_of_64_bits_are_judged_exactly(op: int):
    ends = [-(1 << 63), (1 << 63) - 1, -1, 0, 1, 1 << 62, -(1 << 62), 1 << 32, 3037000500, 2]
    a, b = (list(x) for x in zip(*[(x, y) for x in ends for y in ends], strict=True))
    true = [x + y if op == 0 else x - y if op == 1 else x * y for x, y in zip(a, b, strict=True)]
    bad = [not -(1 << 63) <= t < 1 << 63 for t in true]
    good = [k for k in range(len(a)) if not bad[k]]
    good += good[: 128 - len(good)]
    x, y = np.array(a, np.int64), np.array(b, np.int64)
    for target in ("interpreter", "cpu"):
        driver.set_active(target)
        try:
            sums64_kernel[(1,)](x[good], y[good], zeros(128, np.int64), 64, op, debug="check")
        finally:
            driver.reset_active()
    for k in np.flatnonzero(bad):
        x, y = np.array([1, 2, a[k], 3]), np.array([1, 2, b[k], 3])
        out = zeros(4, np.int64)
        text = report("cpu", partial(sums64_kernel[(1,)], x, y, out, 4, op, debug="check"))
        assert "element (2)" in text
        assert f"`a` = {a[k]}" in text


@tessera.jit
def half_kernel(x, out, N: tl.constexpr, T: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i).to(T)
    tl.store(out + i, (v * v).to(tl.float32))


@pytest.mark.parametrize("t", [tl.float16, tl.bfloat16, tl.float64])
def test_every_width_of_floats(t: Any):
    x, out = np.full(16, 2.0, np.float32), zeros(16)
    half_kernel[(1,)](x, out, 16, t, debug="check")
    assert (out == 4).all()
    x[9] = 300 if t is tl.float16 else 3e38
    text = both(lambda: half_kernel[(1,)](x, out, 16, t, debug="check"))
    assert "becomes infinity" in text
    assert "element (9)" in text


def test_a_compiled_kernel_is_launched_with_arrays():
    x, out = np.ones(64, np.float32), zeros(64)
    driver.set_active("cpu")
    try:
        kernel = stream_kernel.warmup(x, out, 2, 32, 16, grid=(2,), debug="check")
        kernel[(2, 1, 1)](x, out, 2, 32, 16)
        assert (out[:32] == 2).all()
        with pytest.raises(errors.OutOfBounds, match="reads element 64 of argument `x`"):
            kernel[(2, 1, 1)](x, out, 3, 32, 16)
        out[:] = 0
        kernel[(2, 1, 1)](x.ctypes.data, out, 2, 32, 16)  # of an address no end is known
        assert (out[:32] == 2).all()
    finally:
        driver.reset_active()


@tessera.jit
def descriptor_kernel(x, out, rows, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, N], [N, 1], [M, N])
    target = tl.make_tensor_descriptor(out, [rows, N], [N, 1], [M, N])
    for i in range(0, rows, M):
        block = source.load([i, 0])
        target.store([i, 0], block * 2)


def test_descriptors_that_promise_too_much():
    x, out = np.ones((6, 8), np.float32), np.zeros((6, 8), np.float32)
    descriptor_kernel[(1,)](x, out, 6, 4, 8, debug="check")
    assert (out == 2).all()
    text = both(lambda: descriptor_kernel[(1,)](x, np.zeros((8, 8), np.float32), 7, 4, 8, debug="check"))  # fmt: skip
    assert "reads element 48 of argument `x`, whose storage ends after element 47" in text
    assert "block = source.load([i, 0])" in text
    assert "element (2, 0)" in text
    text = both(lambda: descriptor_kernel[(1,)](np.ones((8, 8), np.float32), out, 8, 4, 8, debug="check"))  # fmt: skip
    assert "writes element 48 of argument `out`" in text


@tessera.jit
def locked_kernel(lock, total, n):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    count = tl.load(total) + 1
    tl.device_assert(count < n, "full")
    tl.store(total, count)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def test_programs_do_not_wait_for_one_that_failed():
    """The program that fails holds the lock for good."""
    driver.set_active("cpu")
    try:
        for threads in (1, 4):
            lock, total = zeros(1, np.int32), zeros(1, np.int32)
            with knobs.runtime.scope():
                knobs.runtime.num_threads = threads
                with pytest.raises(errors.DeviceAssertionError, match="assertion failed: full"):
                    locked_kernel[(64,)](lock, total, 20, debug="check")
            assert total[0] == 19
    finally:
        driver.reset_active()


class Exported:
    """An array of a library that speaks DLPack only."""

    def __init__(self, array: np.ndarray, device: int = 1):
        self.array, self.dtype, self.device = array, array.dtype, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_arrays_of_other_libraries(target: str):
    x, out = Exported(np.ones(64, np.float32)), zeros(64)
    driver.set_active(target)
    try:
        stream_kernel[(2,)](x, out, 2, 32, 16, debug="check")
        assert (out[:32] == 2).all()
        with pytest.raises(errors.OutOfBounds, match="reads element 64 of argument `x`"):
            stream_kernel[(2,)](x, out, 3, 32, 16, debug="check")
        with pytest.raises(errors.LaunchError, match="does not know how to copy a Exported"):
            stream_kernel[(2,)](Exported(x.array, 2), out, 2, 32, 16, debug="check")
    finally:
        driver.reset_active()


@tessera.jit
def swapping_kernel(x, out, n, N: tl.constexpr):
    a, b = x + tl.arange(0, N), out + tl.arange(0, N)
    for _ in range(n):
        tl.store(b, tl.load(a) + 1)
        a, b = b, a


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_pointers_that_a_loop_swaps_are_in_one_of_two_storages(target: str):
    """Neither is known to be the one that an access is checked against."""
    x, out = zeros(16), zeros(16)
    driver.set_active(target)
    try:
        swapping_kernel[(1,)](x, out, 3, 16, debug="check")
    finally:
        driver.reset_active()
    assert (x == 2).all()
    assert (out == 3).all()
