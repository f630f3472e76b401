"""Compiles in worker processes, since LLVM and Python each let only one thread at a time compile.

`CompileWorkers` is an executor for AsyncCompileMode: the front end runs here, in threads; its output goes as text to a
worker process, which runs the other stages and sends their outputs back. Workers are new processes (a fork would copy
threads and a GPU context; spawn would run the user's main module again). They end when their input closes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import IO, Any

from tessera.backends.compiler import Backend, GPUTarget, Options
from tessera.compiler import TextSource, compile_stages, make_backend
from tessera.config import knobs
from tessera.config.budget import check_budget, remaining_seconds
from tessera.errors import InternalError
from tessera.ir import Module, pack_locations, print_module
from tessera.utilities import PACKAGE

START = "from tessera.runtime.autotuner.compile_workers import main; main()"
LOOK = 0.5  # seconds between checks that the parent is alive
# The first letters of environment variables that a compilation may read.
PREFIXES = (
    "TESSERA_",
    "TRITON_",
    "CUDA_",
    "PATH",
)
StageOutputs = tuple[dict[str, Any], dict[str, Any]]


class WorkerDied(InternalError):
    """A worker process ended before it answered."""


class Worker:
    """One worker process. A message is 8 bytes of length and a pickle, in both directions."""

    def __init__(self) -> None:
        self.busy = False  # with a job whose answer nobody has read
        path = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def ask(self, job: dict[str, Any]) -> StageOutputs:
        """Return the job's outputs, or raise what the job raised; WorkerDied if there is no answer. After any other
        exception (an interrupt) the worker stays `busy`, since its next answer would belong to this job."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        left = remaining_seconds()
        guard = threading.Timer(left, self.process.kill) if left is not None else None
        if guard is not None:
            guard.daemon = True
            guard.start()
        self.busy = True
        try:
            _send(stdin, job)
            good, answer = _receive(stdout)
            self.busy = False
        except (OSError, EOFError) as error:
            check_budget("a kernel in a worker process")
            raise WorkerDied(f"a compile worker ended with code {self.process.poll()}") from error
        finally:
            if guard is not None:
                guard.cancel()
        if good:
            return answer
        raise answer

    def close(self) -> None:
        if self.busy:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self.process.wait()


class CompileWorkers(Executor):
    """Up to `count` worker processes, started when they are needed.

    `shared_limits`: bytes of shared memory by back end. A kernel that needs more is given up (OutOfResources) before
    code is generated for it.
    """

    def __init__(self, count: int, shared_limits: dict[str, int] | None = None) -> None:
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="tessera-compile")
        self.shared_limits = shared_limits or {}
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        # One thread at a time computes captures and cache keys, so that each is computed once.
        self._front_end = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.threads.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.threads.shutdown(wait, cancel_futures=cancel_futures)
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def run_stages(self, src: Any, backend: Backend, options: Options, key: str) -> StageOutputs:
        """Do what compile_stages does, with the stages after the front end in a worker; in this process if that
        dies."""
        limit = self.shared_limits.get(backend.name)
        sent: object = src
        if not isinstance(src, TextSource):
            with self._front_end:
                module = src.make_ir(options)
                if isinstance(module, Module):
                    text, places = print_module(module), pack_locations(module)
                    sent = TextSource(text, src.name, src.fn.src, places)
        if not isinstance(sent, TextSource):
            return compile_stages(src, backend, options, key, limit)
        target = backend.target
        job = {
            "ir": sent.ir, "name": sent.name, "text": sent.text, "locations": sent.locations,
            "target": (target.backend, target.arch, target.warp_size),
            "options": {k: v for k, v in asdict(options).items() if k != "target"}, "key": key, "limit": limit,
            "environment": {k: v for k, v in os.environ.items() if k.startswith(PREFIXES)},
        }  # fmt: skip
        try:
            return self._ask(job)
        except WorkerDied:
            return compile_stages(src, backend, options, key, limit)

    def _ask(self, job: dict[str, Any]) -> StageOutputs:
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = Worker()
        try:
            return worker.ask(job)
        finally:
            if worker.busy:
                worker.close()
            else:
                self._idle.put(worker)


_shared: list[CompileWorkers] = []


def shared_workers(shared_limits: dict[str, int]) -> CompileWorkers | None:
    """Return the workers of this process, as autotuning.processes says (by default none on one core)."""
    count = knobs.autotuning.processes
    if count is None:
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        count = min(cores, 16) if cores > 1 else 0
    if count <= 0:
        return None
    if not _shared:
        _shared.append(CompileWorkers(count))
        atexit.register(_shared[0].shutdown)
    _shared[0].shared_limits = shared_limits
    return _shared[0]


os.register_at_fork(after_in_child=_shared.clear)


# --- the worker's side ---------------------------------------------------------------------------------------------
def _send(pipe: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    pipe.write(len(data).to_bytes(8, "little") + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    size = int.from_bytes(head, "little")
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def _compile(job: dict[str, Any]) -> StageOutputs:
    for name in [n for n in os.environ if n.startswith(PREFIXES)]:
        if name not in job["environment"]:
            del os.environ[name]  # no longer set in the parent
    os.environ.update(job["environment"])
    knobs.refresh()
    backend = make_backend(GPUTarget(*job["target"]))
    source = TextSource(job["ir"], job["name"], job["text"], job["locations"])
    return compile_stages(
        source, backend, Options(**job["options"], target=backend.target), job["key"], job["limit"]
    )


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer jobs until the input ends: (True, outputs) or (False, exception)."""
    while True:
        try:
            job = _receive(source)
        except EOFError:
            return
        try:
            answer: tuple[bool, object] = (True, _compile(job))
        except Exception as error:
            answer = (False, error)
        try:
            _send(sink, answer)
        except (pickle.PicklingError, TypeError, AttributeError):
            _send(sink, (False, InternalError(f"{type(answer[1]).__name__}: {answer[1]}")))


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, whatever it is doing: nobody waits for the answer."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


def main() -> None:
    """Run a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what stages print must not mix with the answers
    serve(sys.stdin.buffer, sink)
