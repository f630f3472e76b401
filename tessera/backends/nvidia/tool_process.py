"""Runs a tool so that it never outlives what it is run for: the time it may take, an interrupt, this process.

The tool runs in a process group that is killed when time is over or an exception passes. If this process is killed
itself, nobody is left to do that: a *supervisor*, another process of the group, waits for the end of a pipe that only
this process holds open, and kills the group then. It takes a millisecond
to start, a thirtieth of a small kernel's compilation, so it stays for the tools to come: a process has as many as it
has run tools at once. (Linux could send a signal at the parent's death, but of the *thread* that started the tool, and
only by code that runs in a fork of this process.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

# The shell ends at once and leaves its child, so that whoever waits for all children of this process does not wait for
# the supervisor. Standard input: the pipe.
SUPERVISOR = "exec 3<&0; { read -r nothing <&3; kill -KILL 0; } &"


@dataclass(frozen=True)
class Ended:
    """How a tool ended: its status, negative for the signal that ended it, and all that it wrote."""

    status: int
    stdout: str
    stderr: str


class _Supervisor:
    """A process group that is killed by `end`, and when this process ends."""

    def __init__(self) -> None:
        theirs, self.pipe = os.pipe()
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", SUPERVISOR], stdin=theirs, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
            self.group = shell.pid
            shell.wait()
        except BaseException:
            os.close(self.pipe)
            raise
        finally:
            os.close(theirs)
        _supervisors.add(self)

    def end(self) -> None:
        _supervisors.discard(self)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        os.close(self.pipe)


_supervisors: set[_Supervisor] = set()
_idle: list[_Supervisor] = []


def _in_child() -> None:
    """A forked child must not hold the pipes open: it starts supervisors of its own."""
    for supervisor in _supervisors:
        os.close(supervisor.pipe)
    _supervisors.clear()
    _idle.clear()


os.register_at_fork(after_in_child=_in_child)


NOT_STARTED = 127  # the status that shells give for a program that they cannot start


def run_tool(command: Sequence[str], seconds: float | None = None) -> Ended:
    """Run a command to its end; its status is NOT_STARTED if it is no program. subprocess.TimeoutExpired after
    `seconds`. No process of the command is left then, nor after any other exception, nor if this process is killed."""
    try:
        with contextlib.suppress(
            IndexError, PermissionError
        ):  # its group was ended, or is of another session
            return _run(command, seconds, _idle.pop())
        return _run(command, seconds, _Supervisor())
    except OSError as error:
        return Ended(NOT_STARTED, "", f"{command[0]}: {error.strerror}\n")


def _run(command: Sequence[str], seconds: float | None, supervisor: _Supervisor) -> Ended:
    process = None
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", process_group=supervisor.group,
        )  # fmt: skip
        stdout, stderr = process.communicate(timeout=seconds)
    except BaseException:
        supervisor.end()
        if process is not None:
            process.communicate()  # reads what it had written so far: the pipes are closed then
        raise
    _idle.append(supervisor)
    return Ended(process.returncode, stdout, stderr)
