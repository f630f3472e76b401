"""Control flow on every device: the functions that the front end's tests compare with Python, and tiles in loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.unit import jumping_functions as jumps
from tests.unit import structured_functions as structured
from tests.unit.structured_functions import NUMBERS, host_callees

FUNCTIONS = [*structured.FUNCTIONS, *jumps.FUNCTIONS]


@tessera.jit
def store_result(p, n, f: tl.constexpr):
    tl.store(p, f(n))


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_same_as_python(device: Any, f: Any, request: pytest.FixtureRequest):
    out = device.array(np.zeros(1, np.int32))
    found = []
    for n in NUMBERS:
        store_result[(1,)](out, n, f)
        found.append(int(device.numpy(out)[0]))
    request.getfixturevalue("host_callees")
    assert found == [f.fn(n) for n in NUMBERS]


__all__ = ["host_callees"]


@tessera.jit
def sum_until(x, out, rows, limit, N: tl.constexpr):
    """Sum of the rows up to the first whose maximum exceeds `limit`; odd row numbers are skipped."""
    pid = tl.program_id(0)
    offs = tl.arange(0, N)
    acc = tl.zeros([N], tl.float32)
    for i in range(rows):
        row = tl.load(x + (pid * rows + i) * N + offs)
        if tl.max(row, 0) > limit:
            break
        if i % 2 == 1:
            continue
        acc += row
    tl.store(out + pid * N + offs, acc)


@tessera.jit
def first_above(x, out, rows, limit, N: tl.constexpr):
    pid = tl.program_id(0)
    offs = tl.arange(0, N)
    for i in range(rows):
        row = tl.load(x + (pid * rows + i) * N + offs)
        if tl.max(row, 0) > limit:
            tl.store(out + pid * N + offs, row)
            return
    tl.store(out + pid * N + offs, offs.to(tl.float32))


@pytest.mark.parametrize("N", [16, 256])
def test_tiles_in_loops_that_end_early(device: Any, N: int):
    rng = np.random.default_rng(5)
    programs, rows, limit = 6, 9, 2.5
    x = rng.uniform(0, 2.4, (programs, rows, N)).astype(np.float32)
    for p, r in ((0, 0), (1, 3), (2, 8), (3, 4)):
        x[p, r, N // 3] = 3.0 + p
    sums, rows_found = (
        device.array(np.zeros((programs, N), np.float32)),
        device.array(np.zeros((programs, N), np.float32)),
    )
    given = device.array(x)
    sum_until[(programs,)](given, sums, rows, limit, N)
    first_above[(programs,)](given, rows_found, rows, limit, N)
    for p in range(programs):
        above = np.flatnonzero(x[p].max(1) > limit)
        end = int(above[0]) if len(above) else rows
        np.testing.assert_allclose(device.numpy(sums)[p], x[p, :end:2].sum(0), rtol=1e-6)
        want = x[p, end] if end < rows else np.arange(N)
        np.testing.assert_array_equal(device.numpy(rows_found)[p], want)


@tessera.jit
def dots_until(a, b, out, rounds, limit, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    acc = tl.zeros([N, N], tl.float32)
    k = 0
    while True:
        acc = tl.dot(tl.load(a + k * N * N + at), tl.load(b + at), acc, input_precision="ieee")
        k += 1
        if k == rounds or tl.max(tl.max(acc, 1), 0) > limit:
            break
    tl.store(out + at, acc)


def test_products_in_a_loop_that_ends_early(device: Any):
    rng = np.random.default_rng(3)
    N, rounds = 32, 5
    a = rng.uniform(0, 1, (rounds, N, N)).astype(np.float32)
    b = rng.uniform(0, 1, (N, N)).astype(np.float32)
    out = device.zeros((N, N))
    for limit in (1e9, 25.0):
        dots_until[(1,)](device.array(a), device.array(b), out, rounds, limit, N)
        want = np.zeros((N, N))
        for k in range(rounds):
            want += a[k].astype(np.float64) @ b
            if want.max() > limit:
                break
        np.testing.assert_allclose(device.numpy(out), want, rtol=1e-5)


@tessera.jit
def marked(out, n, LAST: tl.constexpr):
    if LAST:
        mark = 7
    for i in range(n):
        if i == n - 1 and LAST:  # decides without `mark` where nothing is marked
            tl.store(out + i, mark)
    i = 0
    while i < n and LAST:
        i += 1
    tl.store(out + 4, i)
    tl.store(out + 5, 1 if n > 5 or LAST or i > n else 2)
    rows = tl.arange(0, 2)
    tl.store(out + 6 + rows, rows + 3, (rows < n) and True)


@pytest.mark.parametrize(
    ("last", "result"), [(True, [0, 0, 0, 7, 4, 1, 3, 4]), (False, [0, 0, 0, 0, 0, 2, 3, 4])]
)
def test_flags_decide_behind_run_time_operands(device: Any, last: bool, result: list[int]):
    out = device.array(np.zeros(8, np.int32))
    marked[(1,)](out, 4, last)
    assert device.numpy(out).tolist() == result
