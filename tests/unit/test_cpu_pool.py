"""Thread pool: every program runs once, ranges and contexts are right, locks, concurrency, fork, errors."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from tessera.backends.cpu import pool
from tessera.backends.llvm.binding import LoadedObject, host, link_object, optimise
from tessera.config import knobs

TEXT = """
; count[pid] += 1, thread[pid] = thread index, size[pid] = size of its range; slots: count, thread, size
define void @mark(ptr %args, i64 %begin, i64 %end, ptr %ctx) {
entry:
  %count = load ptr, ptr %args
  %a1 = getelementptr i64, ptr %args, i64 1
  %thread = load ptr, ptr %a1
  %a2 = getelementptr i64, ptr %args, i64 2
  %size = load ptr, ptr %a2
  %ta = getelementptr i8, ptr %ctx, i64 12
  %t = load i32, ptr %ta
  %n = sub i64 %end, %begin
  %n32 = trunc i64 %n to i32
  br label %loop
loop:
  %i = phi i64 [%begin, %entry], [%i1, %loop]
  %c = getelementptr i32, ptr %count, i64 %i
  %v = load i32, ptr %c
  %v1 = add i32 %v, 1
  store i32 %v1, ptr %c
  %th = getelementptr i32, ptr %thread, i64 %i
  store i32 %t, ptr %th
  %s = getelementptr i32, ptr %size, i64 %i
  store i32 %n32, ptr %s
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}

; out[pid] = {gridx, gridy, gridz, scratch & 63, scratch_bytes}; fills the scratch; slots: out
define void @context(ptr %args, i64 %begin, i64 %end, ptr %ctx) {
entry:
  %out = load ptr, ptr %args
  %gx = load i32, ptr %ctx
  %ya = getelementptr i8, ptr %ctx, i64 4
  %gy = load i32, ptr %ya
  %za = getelementptr i8, ptr %ctx, i64 8
  %gz = load i32, ptr %za
  %sa = getelementptr i8, ptr %ctx, i64 16
  %s = load ptr, ptr %sa
  %si = ptrtoint ptr %s to i64
  %low = and i64 %si, 63
  %low32 = trunc i64 %low to i32
  %ba = getelementptr i8, ptr %ctx, i64 24
  %b = load i64, ptr %ba
  %b32 = trunc i64 %b to i32
  call void @llvm.memset.p0.i64(ptr %s, i8 -1, i64 %b, i1 false)
  br label %loop
loop:
  %i = phi i64 [%begin, %entry], [%i1, %loop]
  %o = getelementptr [5 x i32], ptr %out, i64 %i
  store i32 %gx, ptr %o
  %o1 = getelementptr i32, ptr %o, i64 1
  store i32 %gy, ptr %o1
  %o2 = getelementptr i32, ptr %o, i64 2
  store i32 %gz, ptr %o2
  %o3 = getelementptr i32, ptr %o, i64 3
  store i32 %low32, ptr %o3
  %o4 = getelementptr i32, ptr %o, i64 4
  store i32 %b32, ptr %o4
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; a chain: program i waits until flag == i, then stores i + 1; slots: flag
define void @chain(ptr %args, i64 %begin, i64 %end, ptr %ctx) {
entry:
  %flag = load ptr, ptr %args
  br label %loop
loop:
  %i = phi i64 [%begin, %entry], [%i1, %mine]
  br label %wait
wait:
  %f = load atomic i64, ptr %flag acquire, align 8
  %ok = icmp eq i64 %f, %i
  br i1 %ok, label %mine, label %wait
mine:
  %i1 = add i64 %i, 1
  store atomic i64 %i1, ptr %flag release, align 8
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}

; program 5 reports status 77
define void @report(ptr %args, i64 %begin, i64 %end, ptr %ctx) {
  %sa = getelementptr i8, ptr %ctx, i64 32
  %s = load ptr, ptr %sa
  %a = icmp sle i64 %begin, 5
  %b = icmp sgt i64 %end, 5
  %hit = and i1 %a, %b
  br i1 %hit, label %store, label %out
store:
  store atomic i32 77, ptr %s monotonic, align 4
  br label %out
out:
  ret void
}

; sleeps args[0] microseconds per program
define void @nap(ptr %args, i64 %begin, i64 %end, ptr %ctx) {
  %us = load i32, ptr %args
  %n = sub i64 %end, %begin
  %n32 = trunc i64 %n to i32
  %t = mul i32 %us, %n32
  %r = call i32 @usleep(i32 %t)
  ret void
}
declare i32 @usleep(i32)

; a range waits for 20 s at most until two have begun, and counts those that saw that; slots: begun, seen
define void @rendezvous(ptr %args, i64 %begin, i64 %end, ptr %ctx) {
entry:
  %begun = load ptr, ptr %args
  %a1 = getelementptr i64, ptr %args, i64 1
  %seen = load ptr, ptr %a1
  %before = atomicrmw add ptr %begun, i64 1 seq_cst
  br label %wait
wait:
  %i = phi i32 [0, %entry], [%i1, %again]
  %now = load atomic i64, ptr %begun acquire, align 8
  %all = icmp eq i64 %now, 2
  br i1 %all, label %met, label %again
again:
  %r = call i32 @usleep(i32 100)
  %i1 = add i32 %i, 1
  %more = icmp slt i32 %i1, 200000
  br i1 %more, label %wait, label %out
met:
  %s = atomicrmw add ptr %seen, i64 1 seq_cst
  br label %out
out:
  ret void
}
"""
NAMES = ("mark", "context", "chain", "report", "nap", "rendezvous")


@cache
def kernels() -> LoadedObject:
    return link_object(optimise(TEXT, host()).to_object(), NAMES)


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    with knobs.scope():
        yield


def slots(*values: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def run_mark(grid: tuple[int, int, int], threads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = grid[0] * grid[1] * grid[2]
    count, thread, size = (np.zeros(max(n, 1), np.int32) for _ in range(3))
    args = slots(count.ctypes.data, thread.ctypes.data, size.ctypes.data)
    assert pool.launch(kernels()["mark"], ctypes.addressof(args), grid, threads) == 0
    return count, thread, size


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 1), (17, 1, 1), (5, 7, 3), (1000, 3, 1)])
def test_every_program_runs_once(grid: tuple[int, int, int], threads: int):
    for _ in range(20):
        count, thread, _ = run_mark(grid, threads)
        assert (count == 1).all()
        assert ((thread >= 0) & (thread < threads)).all()


def test_empty_grid_runs_nothing():
    count, _, _ = run_mark((0, 4, 1), 2)
    assert (count == 0).all()


def test_one_program_and_one_thread_run_here():
    assert run_mark((1, 1, 1), 4)[1][0] == 0
    _, thread, size = run_mark((100, 1, 1), 1)
    assert (thread == 0).all()
    assert (size == 100).all()


def test_chunks_are_small_enough_to_balance():
    _, _, size = run_mark((1600, 1, 1), 2)
    assert (size == 100).all()


def test_sleeping_workers_take_part():
    """Two programs that wait for each other end only where two threads run them, on however busy a machine."""
    get = pool.get_pool(2)
    begun, seen = slots(0), slots(0)
    args = slots(ctypes.addressof(begun), ctypes.addressof(seen))
    for launches in range(1, 4):
        time.sleep(0.02)  # longer than workers look for work before they sleep
        begun[0] = 0
        get.launch(kernels()["rendezvous"], ctypes.addressof(args), (2, 1, 1))
        assert seen[0] == 2 * launches


def test_context_and_scratch():
    out = np.zeros((24, 5), np.int32)
    args = slots(out.ctypes.data)
    for scratch in (0, 100, 100_000, 5000):
        status = pool.launch(kernels()["context"], ctypes.addressof(args), (4, 3, 2), 2, scratch)
        assert status == 0
        assert (out[:, :3] == (4, 3, 2)).all()
        assert (out[:, 3] == 0).all()
        assert (out[:, 4] >= scratch).all()


def test_programs_may_wait_for_lower_ones():
    for _ in range(20):
        flag = slots(0)
        args = slots(ctypes.addressof(flag))
        pool.launch(kernels()["chain"], ctypes.addressof(args), (64, 1, 1), 2)
        assert flag[0] == 64


def test_status_is_returned_and_reset():
    assert pool.launch(kernels()["report"], 0, (40, 1, 1), 2) == 77
    assert pool.launch(kernels()["report"], 0, (5, 1, 1), 2) == 0
    assert pool.launch(kernels()["report"], 0, (40, 1, 1), 1) == 77


def test_launches_of_several_threads_at_once():
    kernels()  # threads that all come first would each load them, and all but one unload them again
    failures: list[str] = []

    def run() -> None:
        for _ in range(200):
            count, _, _ = run_mark((33, 1, 1), 2)
            if not (count == 1).all():
                failures.append(str(count))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_python_lock_is_released():
    args = slots(2000)
    seen: list[float] = []
    thread = threading.Thread(target=lambda: seen.append(time.perf_counter()))
    start = time.perf_counter()
    timer = threading.Timer(0.01, thread.start)
    timer.start()
    pool.launch(kernels()["nap"], ctypes.addressof(args), (50, 1, 1), 1)
    stop = time.perf_counter()
    timer.join()
    thread.join()
    assert start < seen[0] < stop


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # Python 3.12 warns of fork beside threads
def test_a_forked_child_gets_its_own_pool():
    run_mark((64, 1, 1), 2)
    parent = pool.get_pool(2).handle
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ok = all((run_mark((64, 1, 1), 2)[0] == 1).all() for _ in range(20))
            code = 0 if ok and pool.get_pool(2).handle != parent else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pool.get_pool(2).handle == parent


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch):
    knobs.runtime.num_threads = 3
    assert pool.get_pool().threads == 3
    knobs.runtime.num_threads = None
    assert 1 <= pool.default_threads() <= len(os.sched_getaffinity(0))
    with pytest.raises(ValueError, match="must be in 1 … 1024, got 0"):
        pool.get_pool(0)
    with pytest.raises(MemoryError, match="bytes of scratch"):
        pool.launch(kernels()["report"], 0, (4, 1, 1), 2, 1 << 60)
    assert pool.launch(kernels()["report"], 0, (4, 1, 1), 2) == 0
