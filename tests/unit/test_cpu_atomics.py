"""Atomics on CPUs: with atomic instructions and without, as the number of threads and other launches allow."""

# pyright: basic
from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.cpu import pool
from tessera.backends.cpu.exclusive import launch_needs
from tessera.config import knobs
from tessera.runtime.driver import driver
from tests.unit.cpu_kit import agree, native

pytestmark = pytest.mark.skipif(not pool.supported(), reason="no thread pool")


@tessera.jit
def scatter_rows(x, places, out, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + at, mask=at < n)
    tl.atomic_add(out + tl.load(places + row) * n + at, v, mask=at < n)


@tessera.jit
def scatter(x, places, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out + tl.load(places + at, at < n), tl.load(x + at, at < n), mask=at < n)


@tessera.jit
def rows_of_a_tile(x, places, out, old, M: tl.constexpr, N: tl.constexpr):
    """Rows of one tile that may be the same row."""
    i, j = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    row = tl.load(places + tl.arange(0, M))[:, None]
    before = tl.atomic_add(out + row * N + j, tl.load(x + i * N + j), mask=i != 2)
    tl.store(old + i * N + j, before)


@tessera.jit
def add_loaded(x, places, n, B: tl.constexpr):
    """Each element adds what its cell had before the whole op to it, so equal cells must all be read first."""
    cell = tl.load(places + tl.arange(0, B))
    tl.atomic_add(x + cell, tl.load(x + cell))


@tessera.jit
def add_of_the_system(x, B: tl.constexpr):
    tl.atomic_add(x + tl.arange(0, B), 1, scope="sys")


@tessera.jit
def wait_and_add(flag, x, B: tl.constexpr):
    while tl.load(flag, volatile=True) == 0:
        pass
    tl.atomic_add(x + tl.arange(0, B), 1)


@tessera.jit
def few_sums(x, out, B: tl.constexpr, C: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    row = tl.sum(tl.reshape(tl.exp(tl.load(x + at)), (B // C, C)), axis=0)
    tl.atomic_add(out + tl.arange(0, C), row)


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 9, shape)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.int64])
@pytest.mark.parametrize("n", [1, 37, 64, 200])
def test_sums_of_rows(n: int, dtype: Any, threads: int):
    x = integers(61, n).astype(dtype)
    places = np.abs(integers(61, seed=1))
    out = np.zeros((9, n), dtype)
    with knobs.runtime.scope():
        knobs.runtime.num_threads = threads
        agree(scatter_rows, (61,), x, places, out, n, B=tessera.next_power_of_2(n))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_sums_of_single_elements(threads: int):
    x, places = integers(1000).astype(np.float32), np.abs(integers(1000, seed=1))
    with knobs.runtime.scope():
        knobs.runtime.num_threads = threads
        agree(scatter, (8,), x, places, np.zeros(9, np.float32), 1000, B=128)


@pytest.mark.parametrize("off", ["", "plain-atomics"])
def test_rows_of_one_tile_may_be_equal(off: str):
    x = integers(8, 32).astype(np.int32)
    places, out, old = (
        np.array([0, 3, 1, 3, 3, 0, 1, 2]),
        np.zeros((4, 32), np.int32),
        np.empty_like(x),
    )
    agree(rows_of_a_tile, (1,), x, places, out, old, M=8, N=32, disable_optimizations=off)


def test_what_a_tile_adds_is_read_before():
    places = np.array([0, 1, 1, 0] * 8)
    x = np.arange(1, 5, dtype=np.int32)
    agree(add_loaded, (1,), x, places, 4, B=32)


def test_plain_forms_are_where_they_may_be():
    def forms(kernel: Any, *args: Any, **constants: Any) -> tuple[bool, bool]:
        text = native(kernel, (1,), *args, **constants).asm["llir"]
        return " atomicrmw " in text, bool(re.search(r"%same, true", text))

    x, flag = np.zeros(16, np.int32), np.ones(1, np.int32)
    assert forms(add_of_the_system, x, B=16) == (True, True)
    assert forms(wait_and_add, flag, x, B=16) == (True, False)
    text = native(wait_and_add, (1,), flag, x, B=16).asm["llir"]
    assert "add <" not in text
    assert (x == 3).all()


def test_one_thread_where_several_are_slower():
    """Sums of rows take one thread even on a pool of several; a kernel that computes more than it adds does not."""
    x, places, out = (
        np.ones((64, 256), np.float32),
        np.zeros(64, np.int64),
        np.zeros((1, 256), np.float32),
    )
    rows = native(scatter_rows, (64,), x, places, out, 256, B=256)
    few = native(few_sums, (64,), np.ones(1 << 16, np.float32), out, B=1024, C=64)
    assert 8 <= launch_needs(rows.metadata) % 64 <= 16
    assert launch_needs(few.metadata) % 64 <= 1


def test_launches_of_several_threads_beside_one_another():
    """Some have a pool of threads, some run in the thread that launches, alone or beside others: no sum is lost."""
    places, rows = np.zeros(2000, np.int64), np.zeros((1, 64))
    x, zeros, single = np.ones((2000, 64)), np.zeros(1 << 16), np.zeros(16000, np.int64)
    started = threading.Barrier(4)
    calls: list[Any] = [
        lambda: scatter_rows[(2000,)](x, places, rows, 64, B=64),
        lambda: few_sums[(64,)](zeros, rows, B=1024, C=64),
        lambda: few_sums[(64,)](zeros, rows, B=1024, C=64),
        lambda: scatter[(125,)](x, single, rows, 16000, B=128),
    ]

    def launches(call: Any) -> None:
        started.wait()
        for _ in range(100):
            call()

    with knobs.runtime.scope():
        knobs.runtime.num_threads = 4
        driver.set_active("cpu")
        try:
            for call in calls:
                call()
            rows[:] = 0
            workers = [threading.Thread(target=launches, args=(call,)) for call in calls]
            for w in workers:
                w.start()
            for w in workers:
                w.join()
        finally:
            driver.reset_active()
    assert (rows[0, 1:] == 100 * (2000 + 2 * 1024)).all()
    assert rows[0, 0] == 100 * (2000 + 2 * 1024 + 16000)


FORKED = """
import os, signal, sys, threading, time
import numpy as np
import tessera
import tessera.language as tl
signal.signal(signal.SIGINT, signal.default_int_handler)

@tessera.jit
def slow(x, n):
    for _ in range(n):
        tl.atomic_add(x + tl.arange(0, 64), 1)

@tessera.jit
def quick(x):
    tl.atomic_add(x + tl.arange(0, 64), 1)

x, y = np.zeros(64, np.int64), np.zeros(64, np.int64)
slow[(1,)](x, 1)
quick[(1,)](y)
worker = threading.Thread(target=slow[(1,)], args=(x, 1 << 26))
way = sys.argv[1]
if way == "fork":
    worker.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        quick[(1,)](y)
        os._exit(int(y[0]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # `_exit` drops what is buffered
    os._exit(0)
def handler(number, frame):
    quick[(1,)](y)  # while the launch that it interrupts goes on afterwards
signal.signal(signal.SIGINT, handler)
threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
slow[(1,)](x, 1 << 25)
time.sleep(0.1)
print(y[0], x[0])
"""


def run(way: str, folder: Path) -> str:
    """Run the program above; in a child, which a deadlock leaves waiting until its time is over."""
    (folder / "program.py").write_text(FORKED)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", folder / "program.py", way], capture_output=True, text=True, timeout=120,
        env={**os.environ, "TESSERA_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_waits_for_nobody(tmp_path: Path):
    assert run("fork", tmp_path) == "2"


def test_a_handler_may_launch_while_a_kernel_excludes_others(tmp_path: Path):
    assert run("handler", tmp_path) == f"2 {(1 << 25) + 1}"
