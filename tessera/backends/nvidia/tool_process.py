"""Runs a tool that ends with its time limit, with an exception in this process, or with this process.

The tool runs in a process group of its own, which is killed at its time limit or if an exception is raised. If this
process itself is killed, it cannot do that: a second process of the group waits for the end of a pipe that only this
process holds open, and then kills the group, of which it is the only member if the tool has ended. (Linux can send a
signal at the parent's death, but at that of the *thread* that started the tool, and only by code that runs in a fork
of this process.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

# $@: the tool, which replaces the shell. Standard input is the pipe, which the tool does not get.
SUPERVISED = """
exec 3<&0 </dev/null
{ read -r nothing <&3; kill -KILL 0; } >/dev/null 2>&1 &
exec "$@" 3<&-
"""


@dataclass(frozen=True)
class Ended:
    """How a tool ended: its status, negative for the signal that ended it, and all that it wrote."""

    status: int
    stdout: str
    stderr: str


def run_tool(command: Sequence[str], seconds: float | None = None) -> Ended:
    """Run a command to its end. Raises subprocess.TimeoutExpired after `seconds`. No process is left then, nor after
    any other exception, nor if this process is killed."""
    ours, theirs = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", SUPERVISED, "sh", *command], stdin=ours, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", process_group=0,
        )  # fmt: skip
    except BaseException:
        os.close(theirs)
        raise
    finally:
        os.close(ours)
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except BaseException:
        _kill(process)
        raise
    finally:
        os.close(theirs)
    return Ended(process.returncode, stdout, stderr)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the whole group, and read what it had written: the pipes are closed by then."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
