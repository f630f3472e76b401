"""Grids whose programs wait for each other: few threads, several launches at once, Ctrl-C, programs that fail."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.cpu.pool import get_pool
from tessera.config import knobs
from tessera.errors import TesseraError
from tessera.runtime.driver import driver

PROGRAMS = 12


@tessera.jit
def meet(arrived, awaited, out):
    tl.atomic_add(arrived, 1)
    while tl.load(arrived, volatile=True) < awaited:
        pass
    tl.store(out + tl.program_id(0), 1)


@tessera.jit
def fail(arrived):
    p = tl.program_id(0)
    if p == 7:
        tl.device_assert(p != 7, "seven")
    else:
        while tl.load(arrived, volatile=True) == 0:
            pass


@pytest.fixture(params=["cpu", "interpreter"])
def host(request):
    driver.set_active(request.param)
    yield request.param
    driver.reset_active()


def launch() -> None:
    out = np.zeros(PROGRAMS, np.int32)
    meet[(PROGRAMS,)](np.zeros(1, np.int32), PROGRAMS, out)
    assert out.all()


@pytest.mark.parametrize("threads", [1, 2])
def test_few_threads(host, threads):
    with knobs.runtime.scope():
        knobs.runtime.num_threads = threads
        launch()
        launch()


def test_several_launches_at_once(host):
    failed: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(5):
                launch()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)


def test_a_wait_for_programs_that_there_are_not_ends_by_ctrl_c(host):
    launch()
    out = np.zeros(PROGRAMS, np.int32)
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    # What a shell starts in the background ignores interrupts.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    get_pool()  # puts the pool's handler in front of that one
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            meet[(PROGRAMS,)](np.zeros(1, np.int32), PROGRAMS + 1, out)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, handler)
    assert not out.any()
    launch()


def test_a_program_that_fails_ends_the_others():
    driver.set_active("interpreter")
    try:
        with pytest.raises((TesseraError, AssertionError), match="seven"):
            fail[(PROGRAMS,)](np.zeros(1, np.int32), debug=True)
        launch()
    finally:
        driver.reset_active()
