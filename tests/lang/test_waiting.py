"""Programs that wait for others of their grid, whichever come first."""

from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl


@tessera.jit
def neighbours(out, arrived, steps, N: tl.constexpr):
    """In each step a program adds the number of the program behind it, all having met at a barrier of the grid."""
    p, programs, at = tl.program_id(0), tl.num_programs(0), tl.arange(0, N)
    number = tl.full((N,), 1, tl.int32) * p
    for step in range(steps):
        row = out + step * programs * N
        tl.store(row + p * N + at, number)
        tl.debug_barrier()
        tl.atomic_add(arrived + step, 1, sem="release")
        while tl.atomic_add(arrived + step, 0, sem="acquire") < programs:
            pass
        tl.debug_barrier()
        number += tl.load(row + (p + 1) % programs * N + at, volatile=True)


@pytest.mark.parametrize("programs", [2, 24])
def test_a_barrier_of_the_grid(device, programs):
    steps = 3
    out, arrived = device.zeros((steps, programs, 32), "i32"), device.zeros(steps, "i32")
    neighbours[(programs,)](out, arrived, steps, N=32)
    want = [np.arange(programs)]
    for _ in range(steps - 1):
        want.append(want[-1] + np.roll(want[-1], -1))
    np.testing.assert_array_equal(device.numpy(out), np.repeat(np.stack(want)[..., None], 32, 2))


@tessera.jit
def look(flag):
    return tl.load(flag, volatile=True)


@tessera.jit
def last_first(total, done, CALL: tl.constexpr):
    """Programs take turns from the last to the first."""
    p, programs = tl.program_id(0), tl.num_programs(0)
    if CALL:
        while look(done) != programs - 1 - p:
            pass
    else:
        while tl.load(done, volatile=True) != programs - 1 - p:
            pass
    tl.store(total, tl.load(total, volatile=True) * 2 + p)
    tl.debug_barrier()
    tl.atomic_add(done, 1)


@pytest.mark.parametrize("call", [False, True])
def test_programs_wait_for_those_with_a_higher_number(device, call):
    total, done = device.zeros(1, "i32"), device.zeros(1, "i32")
    last_first[(20,)](total, done, CALL=call)
    want = 0
    for p in reversed(range(20)):
        want = want * 2 + p
    assert device.numpy(total)[0] == want
