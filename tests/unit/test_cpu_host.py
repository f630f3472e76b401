"""Print and assert on the CPU back end."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import DeviceAssertionError
from tests.unit.cpu_kit import native


@tessera.jit
def print_kernel(x, n, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.device_print("v ", v)
    tl.device_print("n ", n, hex=True)


def test_print(capfd):
    native(print_kernel, (1,), np.array([0.5, -2.0], np.float32), 255, B=2)
    lines = capfd.readouterr().out.splitlines()
    assert "pid (0, 0, 0) idx (0) v" in lines[0]
    assert lines[0].endswith("0.500000")
    assert lines[1].endswith("-2.000000")
    assert lines[2].endswith("0x000000ff")


@tessera.jit
def assert_kernel(x, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at)
    tl.device_assert(v < 3.0, "v is too large")
    tl.store(x + at, v + 1)


def test_assert_stops_the_program(capfd):
    x = np.array([0, 1, 2, 3], np.float32)
    with pytest.raises(DeviceAssertionError, match="v is too large"):
        native(assert_kernel, (1,), x, B=4, debug=True)
    assert "assertion failed: v is too large" in capfd.readouterr().out
    np.testing.assert_array_equal(x, [0, 1, 2, 3])


def test_assert_is_off_by_default():
    x = np.array([0, 1, 2, 3], np.float32)
    native(assert_kernel, (1,), x, B=4)
    np.testing.assert_array_equal(x, [1, 2, 3, 4])
