"""Assertions and overflow checks of debug builds on every device; without `debug` they cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import DeviceAssertionError


@tessera.jit
def guarded_kernel(x, out, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + i)
    tl.device_assert(v < n, "too large", mask=i < 40)
    assert tl.sum(v, 0) >= 0, "a negative sum"
    tl.store(out + i, v)


@tessera.jit(noinline=True)
def checked_half(v):
    assert v % 2 == 0, "odd"
    return v // 2


@tessera.jit
def calling_kernel(x, out):
    pid = tl.program_id(0)
    tl.store(out + pid, checked_half(tl.load(x + pid)))


@tessera.jit
def product_kernel(x, out, factor, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * factor)


@tessera.jit
def strided_sum(out, n, step):
    total = 0
    for k in range(0, n, step):
        total += k
    for k in range(0, n, step):
        if k > 9:
            break
        total += k
    tl.store(out, total)


def fails(device: Any) -> Any:
    if device.is_cuda:
        pytest.skip("a failed assertion ends the CUDA context: see tests/gpu")
    return pytest.raises(DeviceAssertionError)


def test_assertions_that_hold(device: Any):
    x, out = device.array(np.arange(64, dtype=np.int32)), device.zeros(64, "i32")
    guarded_kernel[(4,)](x, out, 40, 16, debug=True)  # what is beyond 40 is masked
    np.testing.assert_array_equal(device.numpy(out), np.arange(64))
    calling_kernel[(4,)](device.array(np.arange(0, 8, 2, dtype=np.int32)), out, debug=True)
    assert device.numpy(out)[:4].tolist() == [0, 1, 2, 3]
    product_kernel[(1,)](x, out, (1 << 25) - 1, 64, debug=True)


def test_a_range_counts_down_by_compile_time_steps_only(device: Any):
    out = device.zeros(1, "i32")
    strided_sum[(1,)](out, 10, 4, debug=True)
    assert device.numpy(out)[0] == 2 * (0 + 4 + 8)
    with fails(device) as caught:
        strided_sum[(1,)](out, -10, -4, debug=True)
    assert "must be positive unless it is known at compile time" in str(caught.value)


def test_failing_assertions_name_the_message(device: Any):
    x, out = device.array(np.arange(64, dtype=np.int32)), device.zeros(64, "i32")
    guarded_kernel[(4,)](x, out, 3, 16)  # no debug, no check
    with fails(device) as caught:
        guarded_kernel[(4,)](x, out, 39, 16, debug=True)
    assert "too large" in str(caught.value)
    with fails(device) as caught:
        guarded_kernel[(4,)](device.array(np.full(64, -1, np.int32)), out, 3, 16, debug=True)
    assert "a negative sum" in str(caught.value)


def test_assertion_in_a_called_function(device: Any):
    x, out = device.array(np.array([2, 4, 5, 6], np.int32)), device.zeros(4, "i32")
    calling_kernel[(4,)](x, out)
    with fails(device) as caught:
        calling_kernel[(4,)](x, out, debug=True)
    assert "odd" in str(caught.value)


def test_overflow_is_found_in_debug_builds(device: Any):
    x, out = device.array(np.arange(64, dtype=np.int32)), device.zeros(64, "i32")
    product_kernel[(1,)](x, out, 1 << 26, 64)
    product_kernel[(1,)](x, out, 1 << 26, 64, debug=True, sanitize_overflow=False)
    with fails(device) as caught:
        product_kernel[(1,)](x, out, 1 << 26, 64, debug=True)
    assert "int32 overflow detected for operation mul" in str(caught.value)
