"""Worker processes with a time limit for each device: a kernel that crashes or hangs ends its worker, not the run."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.outcome import CRASH, HANG, Result

ROOT = Path(__file__).resolve().parents[2]
STARTING = 120.0  # seconds that a worker may take until it is ready


class Worker:
    """One process. `start` gives it a kernel; `poll` says what came of it, or None while it runs."""

    def __init__(self, limit: float, log: Path) -> None:
        self.limit, self.log = limit, log
        self.process: subprocess.Popen[bytes] | None = None
        self.task: dict[str, Any] | None = None
        self.at, self.since, self.ready, self.rest = "start", 0.0, False, b""

    def start(self, task: dict[str, Any]) -> None:
        self.task, self.at, self.since = task, "start", time.monotonic()
        if self.process is None or self.process.poll() is not None:
            self.stop()
            self.ready, self.rest = False, b""
            with self.log.open("a") as errors:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "tests.fuzz.worker"], cwd=ROOT, bufsize=0,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                )  # fmt: skip
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task).encode() + b"\n")

    def read(self) -> dict[str, Result] | None:
        """After the process has written something, or has ended."""
        assert self.process is not None and self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 2**16)
        if not data:
            status = self.process.wait()
            return self._ended(CRASH, f"the process ended with status {status} ({self._tail()})")
        self.since = time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        found = [self._told(json.loads(line)) for line in lines]
        return found[-1] if found else None  # "done" comes last

    def _told(self, message: dict[str, Any]) -> dict[str, Result] | None:
        if "done" in message:
            self.task = None
            return {name: tuple(result) for name, result in message["done"].items()}
        self.at, self.ready = message.get("at", self.at), True
        return None

    def overdue(self) -> dict[str, Result] | None:
        if self.task is None or time.monotonic() - self.since < (
            self.limit if self.ready else STARTING
        ):
            return None
        self.stop()
        return self._ended(HANG, f"no answer within {self.limit:.0f} s")

    def _ended(self, state: str, text: str) -> dict[str, Result]:
        self.task = None
        return {self.at: (state, text)}

    def _tail(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-3:])[:300]

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()
            self.process = None


class Pool:
    """`jobs` workers; `run` works through tasks and hands every outcome to `done(task, results)`."""

    def __init__(self, jobs: int, limit: float, out: Path) -> None:
        self.workers = [Worker(limit, out / f"worker-{i}.log") for i in range(jobs)]

    def run(self, tasks: Any, done: Any) -> None:
        """`tasks` is an iterator; it may end early, or go on while `done` adds to it."""
        busy: list[Worker] = []
        for worker in self.workers:
            self._next(worker, tasks, busy)
        while busy:
            with selectors.DefaultSelector() as selector:
                for worker in busy:
                    assert worker.process is not None and worker.process.stdout is not None
                    selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
                ready = [key.data for key, _ in selector.select(timeout=1.0)]
            for worker in list(busy):
                task = worker.task
                results = worker.read() if worker in ready else worker.overdue()
                if results is not None:
                    busy.remove(worker)
                    done(task, results)
                    self._next(worker, tasks, busy)

    def _next(self, worker: Worker, tasks: Any, busy: list[Worker]) -> None:
        task = next(tasks, None)
        if task is not None:
            worker.start(task)
            busy.append(worker)

    def one(self, task: dict[str, Any]) -> dict[str, Result]:
        """A single task, now."""
        found: dict[str, Result] = {}
        self.workers[0].start(task)
        while True:
            worker = self.workers[0]
            assert worker.process is not None and worker.process.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(worker.process.stdout, selectors.EVENT_READ)
                ready = selector.select(timeout=1.0)
            results = worker.read() if ready else worker.overdue()
            if results is not None:
                return {**found, **results}

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()
