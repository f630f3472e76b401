"""Printing and asserting from kernels, hints, and compile-time helpers."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import DeviceAssertionError


@tessera.jit
def print_kernel(x, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.device_print("value", tl.load(x + i))
    print("pair: ", i, n)
    tl.device_print(" bits", i + 10, hex=True)
    tl.device_print(" done")


def test_print(device, capfd):
    print_kernel[(1,)](device.array([5, -6], "i32"), 7, N=2)
    device.synchronize()
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == ["pid (0, 0, 0) idx (0) value: 5", "pid (0, 0, 0) idx (1) value: -6"]
    assert "pid (0, 0, 0) idx (1) pair: (operand 0) 1" in lines
    assert "pid (0, 0, 0) idx () pair: (operand 1) 7" in lines
    assert [line.rsplit(": 0x")[1].lstrip("0") for line in lines if " bits" in line] == ["a", "b"]
    assert lines[-1] == "pid (0, 0, 0) done"


@tessera.jit
def assert_kernel(x, out, limit, n, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.device_assert(a < limit, "too large", mask=i < n)
    tl.store(out + i, a)


@pytest.mark.parametrize(("limit", "n", "debug"), [(4, 4, True), (3, 3, True), (0, 4, False)])
def test_assertions_that_hold_or_are_off(device, limit, n, debug):
    out = device.zeros(4)
    assert_kernel[(1,)](device.array(np.arange(4.0), "fp32"), out, limit, n, N=4, debug=debug)
    assert device.numpy(out).tolist() == [0, 1, 2, 3]


def test_assertions_that_fail(device):
    if device.is_cuda:
        pytest.skip("a failed assertion ends the CUDA context")
    with pytest.raises(DeviceAssertionError, match="too large"):
        assert_kernel[(1,)](
            device.array(np.arange(4.0), "fp32"), device.zeros(4), 3, 4, N=4, debug=True
        )


@tessera.jit
def overflow_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, a + a)


def test_overflow_checks(device):
    x = device.array([1, 2, 100, 4], "i8")
    out = device.zeros(4, "i8")
    overflow_kernel[(1,)](x, out, N=4)
    assert device.numpy(out).tolist() == [2, 4, -56, 8]
    if device.is_cuda:
        pytest.skip("a failed assertion ends the CUDA context")
    with pytest.raises(DeviceAssertionError, match="int8 overflow detected for operation add"):
        overflow_kernel[(1,)](x, out, N=4, debug=True)
    overflow_kernel[(1,)](x, out, N=4, debug=True, sanitize_overflow=False)


@tessera.jit
def hint_kernel(x, out, n, N: tl.constexpr):
    tl.assume(n > 0)
    n = tl.multiple_of(n, 16)
    i = tl.max_contiguous(tl.multiple_of(tl.arange(0, N), 16), 16)
    a = tl.load(x + i, mask=tl.max_constancy(i < n, 16))
    tl.debug_barrier()
    tl.store(out + i, a)


def test_hints_change_no_value(device):
    x = np.arange(64, dtype=np.float32)
    out = device.zeros(64)
    hint_kernel[(1,)](device.array(x), out, 48, N=64)
    np.testing.assert_array_equal(device.numpy(out), np.where(x < 48, x, 0))


@tessera.jit
def static_kernel(out, N: tl.constexpr):
    tl.static_print("N is", N, sep=" ... ")
    tl.static_assert(N == 3, "three")
    tl.store(out, tl.extra.cuda.num_warps() * 100 + tl.extra.cuda.num_threads())


def test_compile_time_helpers(device, capfd):
    out = device.zeros(1, "i32")
    static_kernel[(1,)](out, N=3, num_warps=2)
    assert "N is ... 3" in capfd.readouterr().out
    assert device.numpy(out)[0] == 264
