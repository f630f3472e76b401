"""Ctrl-C while a kernel spins on the CPU: KeyboardInterrupt in the thread that launched, and the pool goes on."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tessera.backends.cpu.pool import supported

pytestmark = pytest.mark.skipif(not supported(), reason=f"no thread pool on {platform.system()}")

PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import tessera
import tessera.language as tl

# What a shell starts in the background ignores interrupts, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@tessera.jit
def spin(flag, out, n):
    pid = tl.program_id(0)
    while tl.atomic_add(flag, 0) == 0:
        pass
    tl.store(out + pid, 1)


@tessera.jit(noinline=True)
def wait(flag):
    seen = tl.atomic_add(flag, 0)
    while seen == 0:
        seen = tl.atomic_add(flag, 0)
    return seen


@tessera.jit
def spin_in_a_function(flag, out, n):
    pid = tl.program_id(0)
    tl.store(out + pid, wait(flag))


@tessera.jit
def spin_last(flag, out, n):
    pid = tl.program_id(0)
    if pid == n - 1:  # the thread that launched runs out of work and waits for another one
        while tl.atomic_add(flag, 0) == 0:
            pass
    tl.store(out + pid, 1)


@tessera.jit
def slow_programs(flag, out, n):
    pid = tl.program_id(0)
    total = 0.0
    for i in range(n * 10):
        total = total * 0.999 + i
    tl.store(out + pid, (total > 0).to(tl.int32))


@tessera.jit
def long_loop(flag, out, n):
    pid = tl.program_id(0)
    rounds = tl.where(tl.load(flag) == 0, 2147483647, 3)
    total = 0.0
    for i in range(rounds):
        total = total * 0.999 + i
    tl.store(out + pid, (total > 0).to(tl.int32))


@tessera.jit
def long_loop_of_loops(flag, out, n):
    pid = tl.program_id(0)
    rounds = tl.where(tl.load(flag) == 0, 2147483647, 3)
    total = 0.0
    for i in range(rounds):
        for j in range(n):
            total = total * 0.999 + i + j
    tl.store(out + pid, (total > 0).to(tl.int32))


@tessera.jit
def long_loop_of_tiles(flag, out, n):
    pid = tl.program_id(0)
    rounds = tl.where(tl.load(flag) == 0, 2147483647, 3)
    total = tl.zeros((256,), tl.float32)
    for i in range(rounds):
        total = total * 0.999 + i
    tl.store(out + pid, (tl.sum(total, 0) > 0).to(tl.int32))


@tessera.jit
def long_loop_of_dots(flag, out, n):
    pid = tl.program_id(0)
    rounds = tl.where(tl.load(flag) == 0, 2147483647, 3)
    at = (tl.arange(0, 32)[:, None] + tl.arange(0, 32)[None, :]) * 0
    total = tl.zeros((32, 32), tl.float32)
    for i in range(rounds):
        ones = (tl.load(flag + at) * 0 + 1).to(tl.float32)
        total = tl.dot(ones, ones, total)
    tl.store(out + pid, (tl.sum(total) > 0).to(tl.int32))


@tessera.jit(noinline=True)
def count(rounds):
    total = 0.0
    for i in range(rounds):
        total = total * 0.999 + i
    return total


@tessera.jit
def long_loop_in_a_function(flag, out, n):
    pid = tl.program_id(0)
    total = count(tl.where(tl.load(flag) == 0, 2147483647, 3))
    tl.store(out + pid, (total > 0).to(tl.int32))


def launch(kernel, programs, expected=None):
    flag, out = np.zeros(1, np.int32), np.zeros(programs, np.int32)
    kernel[(programs,)](flag, out, programs)
    return flag, out


def interrupted(kernel, programs):
    print("running", flush=True)
    start = time.monotonic()
    try:
        launch(kernel, programs)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    else:
        print("ended", flush=True)
    assert time.monotonic() - start < 60


def still_good(kernel, programs):
    for _ in range(4):
        flag, out = np.ones(1, np.int32), np.zeros(programs, np.int32)
        kernel[(programs,)](flag, out, programs)
        assert (out == 1).all(), out


def main(names, programs):
    for name in names.split(","):
        kernel, count = globals()[name], 5 if name == "spin_in_a_function" else programs
        usual = 1 if name == "slow_programs" else count
        still_good(kernel, usual)  # compiled, and native from here on
        for _ in range(2):
            interrupted(kernel, count)
            still_good(kernel, usual)


def handled(name, programs):
    # a handler that raises nothing: the kernel goes on, and ends by what the handler does
    flag, out = np.zeros(1, np.int32), np.zeros(programs, np.int32)
    signal.signal(signal.SIGINT, lambda number, frame: flag.__setitem__(0, 1))
    kernel = globals()[name]
    still_good(kernel, programs)
    print("running", flush=True)
    kernel[(programs,)](flag, out, programs)
    assert (out == 1).all()
    print("handled", flush=True)


CHAINED = '''
@next = global ptr null
@calls = global i32 0
define void @chained(i32 %number, ptr %about, ptr %context) {
  %old = atomicrmw add ptr @calls, i32 1 seq_cst
  %handler = load ptr, ptr @next
  call void %handler(i32 %number, ptr %about, ptr %context)
  ret void
}
'''


def chained(name, programs):
    # a library puts a handler in front of ours that calls ours, and ours goes in front of that
    import ctypes
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(CHAINED)
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    kernel = globals()[name]
    still_good(kernel, programs)
    sigaction = ctypes.CDLL(None).sigaction
    action = (ctypes.c_uint64 * 32)()
    sigaction(int(signal.SIGINT), None, action)
    ctypes.c_uint64.from_address(engine.get_global_value_address("next")).value = action[0]
    action[0] = engine.get_function_address("chained")
    sigaction(int(signal.SIGINT), action, None)
    kernel[(programs,)](np.ones(1, np.int32), np.zeros(programs, np.int32), programs, num_stages=2)  # by way of Python
    now = (ctypes.c_uint64 * 32)()
    sigaction(int(signal.SIGINT), None, now)
    assert now[0] != action[0]
    for _ in range(2):
        interrupted(kernel, programs)
        still_good(kernel, programs)
    assert ctypes.c_int32.from_address(engine.get_global_value_address("calls")).value == 2


def alarmed(name, programs):
    # what a timeout of tests or a service's shutdown raises
    def late(number, frame):
        raise KeyboardInterrupt

    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, late)
    for number in (signal.SIGALRM, signal.SIGTERM):
        threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
        try:
            launch(globals()[name], programs)
        except KeyboardInterrupt:
            print(number.name, flush=True)
        still_good(globals()[name], programs)


def elsewhere(name, programs):
    # launched by another thread: the main thread gets the interrupt, the kernel goes on
    flag, out = np.zeros(1, np.int32), np.zeros(programs, np.int32)
    kernel = globals()[name]
    still_good(kernel, programs)
    thread = threading.Thread(target=lambda: kernel[(programs,)](flag, out, programs))
    thread.start()
    print("running", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    flag[0] = 1
    thread.join()
    assert (out == 1).all()


globals()[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
print("good", flush=True)
"""


def run(folder: Path, way: str, kernel: str, programs: int, threads: int) -> list[str]:
    """What the program prints; it gets an interrupt a moment after each "running"."""
    (folder / "program.py").write_text(PROGRAM)
    environment = {
        **os.environ, "TESSERA_NUM_THREADS": str(threads),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", folder / "program.py", way, kernel, str(programs)], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines: list[str] = []
    watch = threading.Timer(300, process.kill)  # what does not see its interrupt runs for ever
    watch.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == "running":
                time.sleep(0.3)
                process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors[-3000:]
    finally:
        watch.cancel()
        process.kill()
        process.wait()
    return lines


@pytest.mark.parametrize(("threads", "programs"), [(1, 1), (2, 64), (4, 64)])
def test_kernels_that_spin(programs: int, threads: int, tmp_path: Path):
    kernels = ["spin", "spin_in_a_function", "spin_last"]
    found = run(tmp_path, "main", ",".join(kernels), programs, threads)
    assert found == ["running", "interrupted"] * 2 * len(kernels) + ["good"]


def test_for_loops_that_are_long(tmp_path: Path):
    """Each would take seconds to hours."""
    kernels = ["long_loop", "long_loop_of_loops", "long_loop_of_tiles", "long_loop_of_dots"]
    kernels.append("long_loop_in_a_function")
    found = run(tmp_path, "main", ",".join(kernels), 2, 2)
    assert found == ["running", "interrupted"] * 2 * len(kernels) + ["good"]


def test_between_programs(tmp_path: Path):
    """Kernels whose programs end are left after one of them."""
    expected = ["running", "interrupted"] * 2 + ["good"]
    assert run(tmp_path, "main", "slow_programs", 100000, 2) == expected


@pytest.mark.parametrize("programs", [1, 16])
def test_a_handler_that_does_not_raise(programs: int, tmp_path: Path):
    assert run(tmp_path, "handled", "spin", programs, 2) == ["running", "handled", "good"]


def test_other_signals_whose_handlers_raise(tmp_path: Path):
    assert run(tmp_path, "alarmed", "spin", 4, 2) == ["SIGALRM", "SIGTERM", "good"]


def test_handlers_of_libraries_that_call_ours(tmp_path: Path):
    expected = ["running", "interrupted"] * 2 + ["good"]
    assert run(tmp_path, "chained", "spin", 4, 2) == expected


def test_launches_of_other_threads(tmp_path: Path):
    assert run(tmp_path, "elsewhere", "spin", 16, 2) == ["running", "interrupted", "good"]
