"""What stands around a loop of products on the CPU: persistent programs, and what becomes of the sum.

Each kernel is just inside or just outside of what one of the strategies assumes; numbers are whole, results exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.unit.cpu_kit import agree


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@tessera.jit
def total(a, b, acc, T, N: tl.constexpr, K: tl.constexpr, FACTOR: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, K)
    for i in range(T):
        ks = i * K + k
        right = tl.load(b + ks[:, None] * N + n[None, :]) * FACTOR
        acc = tl.dot(
            tl.load(a + n[:, None] * (K * T) + ks[None, :]), right, acc, input_precision="ieee"
        )
    return acc


@tessera.jit
def ended(a, b, c, d, T, N: tl.constexpr, K: tl.constexpr, END: tl.constexpr):
    n = tl.arange(0, N)
    at = n[:, None] * N + n[None, :]
    acc = total(a, b, tl.zeros((N, N), tl.float32), T, N, K, 1)
    if END == "reduced before":
        tl.store(c + at, acc - tl.sum(acc, 1)[:, None])
    elif END == "a loop between":
        x = tl.load(d + at)
        for j in range(T):
            x += tl.load(d + at) * j
        tl.store(c + at, acc + x)
    elif END == "stores in branches":
        if T > 1:
            tl.store(c + at, acc * 2)
        else:
            tl.store(c + at, acc)
    elif END == "turned":
        tl.store(c + at, tl.trans(acc))
    elif END == "stored twice":
        tl.store(c + at, acc)
        tl.store(d + at, acc * 2)
    elif END == "a write between":
        x = tl.load(d + at)
        tl.store(d + at, x + 1)
        tl.store(c + at, acc + x)
    elif END == "added atomically":
        tl.atomic_add(c + at, acc)
    elif END == "used twice":
        tl.store(c + at, tl.where(tl.load(d + at) > 0, acc, acc * acc))
    elif END == "its own mask":
        tl.store(c + at, acc, mask=acc > 0)
    elif END == "column-major":
        tl.store(c + n[:, None] + n[None, :] * N, acc.to(tl.float16).to(tl.float32))
    elif END == "a second loop goes on":
        tl.store(c + at, total(a, b, acc, T, N, K, 2))
    elif END == "a second loop beside":
        e = total(a, b, tl.zeros((N, N), tl.float32), T, N, K, 2)
        tl.store(c + at, e - acc)
        tl.store(d + at, e)
    elif END == "multiplied":
        tl.store(c + at, acc + tl.dot(acc, acc * 0.5, input_precision="ieee"))
    elif END == "read back":
        tl.store(c + at, acc)
        tl.store(d + at, tl.load(c + at) * 3)
    elif END == "long":
        for u in tl.static_range(150):
            acc = tl.where(acc > u % 7, acc - 1, acc + u % 5)
        tl.store(c + at, acc)
    else:
        tl.store(c + at, tl.cumsum(acc, 1))


ENDS = ["reduced before", "a loop between", "stores in branches", "turned", "stored twice", "a write between",
        "added atomically", "used twice", "its own mask", "column-major", "a second loop goes on",
        "a second loop beside", "multiplied", "read back", "long", "scanned"]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("steps", [1, 3])
def test_what_becomes_of_a_sum(end, steps):
    n, k = 32, 16
    a, b, c, d = (
        numbers(*s, seed=i) for i, s in enumerate(((n, k * steps), (k * steps, n), (n, n), (n, n)))
    )
    if end == "multiplied":
        a, b = np.sign(a), np.sign(b)
    agree(ended, (1,), a, b, c, d, steps, N=n, K=k, END=end)


@tessera.jit
def persistent(a, b, c, r, TILES, T, ROWS, N: tl.constexpr, K: tl.constexpr, HOW: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, K)
    for tile in range(tl.program_id(0), TILES, tl.num_programs(0)):
        row, column = (tile % ROWS) * N + n, (tile // ROWS) * N + n
        acc = tl.zeros((N, N), tl.float32)
        for i in range(T):
            ks = i * K + k
            right = tl.load(b + ks[:, None] * (N * 2) + column[None, :])
            if HOW == "rows scaled":
                right *= (tl.load(r + ks) * 2)[:, None]
            elif HOW == "columns scaled":
                right *= tl.load(r + column).to(tl.float16)[None, :].to(tl.float32)
            left = tl.load(a + row[:, None] * (K * T) + ks[None, :])
            acc = tl.dot(left, right, acc, input_precision="ieee")
        out = c + row[:, None] * (N * 2) + column[None, :]
        if HOW == "added to":
            acc += tl.load(out)
        tl.store(out, acc)


@pytest.mark.parametrize("how", ["plain", "rows scaled", "columns scaled", "added to"])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("programs", [1, 2, 3])
def test_persistent_programs(how, steps, programs):
    n, k = 32, 16
    a, b, c = (
        numbers(3 * n, k * steps),
        numbers(k * steps, 2 * n, seed=1),
        numbers(3 * n, 2 * n, seed=2),
    )
    r = np.abs(numbers(max(k * steps, 2 * n), seed=3)) + 1
    agree(persistent, (programs,), a, b, c, r, 6, steps, 3, N=n, K=k, HOW=how)


@tessera.jit
def stepped(a, b, c, start, end, by, N: tl.constexpr, K: tl.constexpr, STEP: tl.constexpr):
    n, k = tl.arange(0, N), tl.arange(0, K)
    acc = tl.zeros((N, N), tl.float32)
    for i in range(start, end, STEP if STEP != 0 else by):
        ks = i * K + k
        left = tl.load(a + n[:, None] * (K * 16) + ks[None, :])
        acc += tl.dot(left, tl.load(b + ks[:, None] * N + n[None, :]))
    tl.store(c + n[:, None] * N + n[None, :], acc)


@pytest.mark.parametrize("n", [16, 32])
@pytest.mark.parametrize(
    ("start", "end", "by", "known"),
    [(9, 0, -1, 1), (9, -1, -1, 1), (9, 0, -2, 1), (0, 9, -1, 1), (1, 12, 3, 1), (9, 0, 3, 1),
     (0, 9, 1, 0), (1, 12, 3, 0), (3, 3, 1, 0)],
)  # fmt: skip
def test_steps_of_loops_of_products(n, start, end, by, known):
    """Up and down, known when compiled or not, also loops that do not run."""
    a, b, c = numbers(n, 256), numbers(256, n, seed=1), np.full((n, n), 7, np.float32)
    agree(stepped, (1,), a, b, c, start, end, by, N=n, K=16, STEP=by if known else 0)
