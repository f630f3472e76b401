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
def print_rows(x, B: tl.constexpr):
    v = tl.load(x + tl.program_id(0) * B + tl.arange(0, B))
    tl.device_print("v", v)
    tl.device_print("last", tl.program_id(0))


@tessera.jit
def print_in_turn(x, turn):
    """Each program waits for the one before it."""
    p = tl.program_id(0)
    while tl.atomic_add(turn, 0) < p:
        pass
    tl.device_print("turn", p)
    tl.atomic_add(turn, 1)


@tessera.jit(noinline=True)
def turn_of(turn):
    return tl.atomic_add(turn, 0)


@tessera.jit
def print_in_turn_by_calls(turn):
    p = tl.program_id(0)
    while turn_of(turn) < p:
        pass
    tl.device_print("turn", p)


def test_programs_print_in_their_order(capfd):
    """All lines of a program follow each other: its elements in order, statement by statement."""
    x = np.arange(200 * 16, dtype=np.int32)
    print_rows[(200,)](x, B=16)
    print_rows[(200,)](x, B=16)  # a native launch
    expected = [
        line
        for p in range(200)
        for line in [
            *(f"pid ({p}, 0, 0) idx ({i:2})v: {16 * p + i}" for i in range(16)),
            f"pid ({p}, 0, 0) idx ()last: {p}",
        ]
    ]
    assert [" ".join(x.split()) for x in capfd.readouterr().out.splitlines()] == [
        " ".join(x.replace(")v:", ") v:").replace(")last:", ") last:").split())
        for x in expected * 2
    ]


def test_programs_that_wait_for_each_other_keep_their_threads(capfd):
    turn = np.zeros(1, np.int32)
    kernel = print_in_turn[(16,)](turn, turn)
    assert not hasattr(kernel.metadata, "in_order")
    assert not hasattr(print_in_turn_by_calls.warmup(turn, grid=(16,)).metadata, "in_order")
    assert [line.split()[-1] for line in capfd.readouterr().out.splitlines()] == [
        *map(str, range(16))
    ]


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
