"""Forks while other threads compile and launch: the child launches, too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tessera.backends.process_singleton import process_singleton
from tessera.config import forking
from tessera.config.forking import undivided
from tessera.errors import NoDeviceError
from tessera.runtime.cuda import driver_api

KERNEL = """
import tessera
import tessera.language as tl


@tessera.jit
def fill(x, n, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) * 0 + VALUE, i < n)
"""
PROGRAM = """
import faulthandler, os, sys, threading, time
import numpy as np
from kernel_module import fill

compiles = sys.argv[1] == "compile"


def work(number):
    x, count = np.zeros(4096, np.float32), 0
    while True:
        count += compiles
        fill[(16,)](x, 4096, number * 1000 + count, BLOCK=256)


for number in range(8):
    threading.Thread(target=work, args=(number,), daemon=True).start()
for turn in range(4):
    time.sleep(0.1 * turn)
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        x = np.zeros(4096, np.float32)
        for value in (100000 + turn, 0, 0, 0):  # compiled, known to the parent, natively
            fill[(16,)](x, 4096, value, BLOCK=256)
            assert (x == value).all()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("good")
os._exit(0)
"""


@pytest.mark.parametrize("threads", ["compile", "launch"])
def test_children_launch(threads: str, tmp_path: Path):
    """From the first moment on, when the threads still import what compiles."""
    (tmp_path / "kernel_module.py").write_text(KERNEL)
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", tmp_path / "program.py", threads], capture_output=True, text=True,
        check=False, timeout=300, env={**os.environ, "TESSERA_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]


def fork_and_exit() -> int:
    child = os.fork()
    if child == 0:
        with undivided():  # nothing is left of the parent's threads
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_waits_for_who_is_inside():
    entered, forked = threading.Event(), threading.Event()
    seen: list[bool] = []

    def work() -> None:
        with undivided():
            entered.set()
            time.sleep(0.3)
            with undivided():  # a thread inside goes on, also when a fork waits for it
                seen.append(forked.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    assert fork_and_exit() == 7
    forked.set()
    thread.join()
    assert seen == [False]


def test_the_thread_that_forks_may_be_inside():
    with undivided(), undivided():
        assert fork_and_exit() == 7
        with undivided():
            pass
    assert fork_and_exit() == 7


def test_patience_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forking, "PATIENCE", 0.1)
    entered, done = threading.Event(), threading.Event()

    def work() -> None:
        with undivided():
            entered.set()
            done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    assert fork_and_exit() == 7
    done.set()
    thread.join()
    assert fork_and_exit() == 7


def test_a_fork_holds_the_locks_of_finalisers(monkeypatch: pytest.MonkeyPatch):
    """They run in any thread, when it is in no section that forks wait for."""
    lock, taken = threading.RLock(), threading.Event()
    monkeypatch.setattr(forking, "locks", [lock])

    def dispose() -> None:
        with lock:
            taken.set()
            time.sleep(0.3)

    thread = threading.Thread(target=dispose)
    thread.start()
    assert taken.wait(10)
    child = os.fork()
    if child == 0:
        other = threading.Thread(target=lambda: os._exit(7 if lock.acquire(timeout=5) else 1))
        other.start()
        other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    thread.join()
    assert lock.acquire(timeout=5)


def test_what_exists_once_is_given_without_a_lock():
    """Launches ask for it: neither a fork nor the making of another thing holds them up."""
    made: list[int] = []
    get = process_singleton(lambda n: made.append(n) or n)
    assert get(1) == 1
    held, release = threading.Event(), threading.Event()
    slow = process_singleton(lambda: (held.set(), release.wait(10)))
    maker = threading.Thread(target=slow)
    maker.start()
    assert held.wait(10)
    asked = threading.Thread(target=get, args=(1,), daemon=True)
    asked.start()
    asked.join(5)
    waiting = asked.is_alive()
    release.set()
    maker.join()
    assert not waiting
    assert made == [1]


def test_a_fork_waits_for_the_start_of_cuda(monkeypatch: pytest.MonkeyPatch):
    """Its locks would stay locked in the child, which asks for the driver at its first launch."""
    starts, started = threading.Event(), threading.Event()

    class Library:
        def cuInit(self, flags: int) -> int:
            starts.set()
            time.sleep(0.3)
            started.set()
            return 100  # no device

        def cuGetErrorName(self, result: int, text: object) -> int:
            return 0

        cuGetErrorString = cuGetErrorName

    monkeypatch.setattr(driver_api, "load_library", Library)
    start = driver_api.driver.__wrapped__

    def work() -> None:
        with pytest.raises(NoDeviceError):
            start()

    thread = threading.Thread(target=work)
    thread.start()
    starts.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if started.is_set() else 7)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
