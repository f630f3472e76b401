"""Processes that take a line of JSON and answer with one: each task in a time limit, and in a process of its own fate.

The program that is started calls `serve`; the one that starts it has a `Pool`.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any


class Pool:
    """`count` processes of `command`. A task that takes longer than `limit` seconds, or whose process ends, is answered
    by {"error": ...}, and the next one gets a new process. `first` seconds are added for a process's first task."""

    def __init__(
        self,
        command: list[str],
        count: int,
        limit: float,
        env: dict[str, str] | None = None,
        answers: queue.Queue[tuple[Any, dict[str, Any]]] | None = None,
        first: float = 60,
    ) -> None:
        self.command, self.limit, self.first = command, limit, first
        self.env = {**os.environ, **(env or {})}
        self.tasks: queue.Queue[Any] = queue.Queue()
        self.answers = queue.Queue() if answers is None else answers
        self.stopped = False
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def submit(self, task: Any) -> None:
        self.tasks.put(task)

    def stop(self) -> None:
        """Finish what is running, and nothing more."""
        self.stopped = True
        for _ in self.threads:
            self.tasks.put(None)

    def _work(self) -> None:
        process: subprocess.Popen[bytes] | None = None
        while (task := self.tasks.get()) is not None and not self.stopped:
            limit = self.limit
            if process is None:
                process = self._start()
                limit += self.first
            answer, lives = self._ask(process, task, limit)
            self.answers.put((task, answer))
            if not lives:
                _end(process)
                process = None
        if process is not None:
            _end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command, bufsize=0, env=self.env,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _ask(
        self, process: subprocess.Popen[bytes], task: Any, limit: float
    ) -> tuple[dict[str, Any], bool]:
        """The answer, and whether the process can take another task."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return {"error": "its process had ended"}, False
        line, end = b"", time.monotonic() + limit
        while not line.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                return {"error": f"longer than {limit:.0f} s"}, False
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                return {"error": f"its process ended: {process.wait()}"}, False
            line += part
        answer = json.loads(line)
        return answer, not answer.get("last", False)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def serve(function: Callable[[Any], dict[str, Any]]) -> None:
    """Answer the tasks on standard input by `function`; what it raises is the answer's "error". Whatever else writes
    to standard output writes to nowhere."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        try:
            answer = function(json.loads(line))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())
            place = f"{os.path.basename(last.filename)}:{last.lineno}"
            answer = {"error": f"{type(error).__name__}: {text[:150]} ... {text[-150:]} ({place})"}
        out.write(json.dumps(answer) + "\n")
        out.flush()
