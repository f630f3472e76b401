"""Runs a tool so that it never outlives what it is run for: the time it may take, an interrupt, this process.

The tool runs below a shell in a process group of its own, which is killed when time is over or an exception passes. If
this process is killed itself, nobody is left to do that: a second process of the group waits for the end of a pipe that
only this process holds open, and kills the group then. (Linux could send a signal at the parent's death, but of the
*thread* that started the tool, and only by code that runs in a fork of this process.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

# $@: the tool. Standard input: the pipe; the tool does not get it. The shell's exit status is the tool's.
SUPERVISED = """
exec 3<&0 </dev/null
"$@" 3<&- &
tool=$!
{ read -r nothing <&3; kill -KILL 0; } >/dev/null 2>&1 &
watch=$!
wait $tool
status=$?
kill -KILL $watch >/dev/null 2>&1
exit $status
"""
MOST_SIGNALS = 64  # numbers of signals, as Linux has


@dataclass(frozen=True)
class Ended:
    """How a tool ended: its status, negative for the signal that ended it, and all that it wrote."""

    status: int
    stdout: str
    stderr: str


def run_tool(command: Sequence[str], seconds: float | None = None) -> Ended:
    """Run a command to its end. subprocess.TimeoutExpired after `seconds`; no process is left then, nor after any other
    exception, nor if this process is killed."""
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
    code = process.returncode
    signalled = 128 < code <= 128 + MOST_SIGNALS
    return Ended(128 - code if signalled else code, stdout, stderr)


def _kill(process: subprocess.Popen[str]) -> None:
    """End the whole group, and read what it had written so far: the pipes are closed then."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
