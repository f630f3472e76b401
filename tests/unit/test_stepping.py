"""Stepping through a kernel's lines on the interpreter, by pdb's commands."""

# pyright: basic
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """\
import numpy as np, tessera, tessera.language as tl
@tessera.jit
def helper(v):
    w = v + 1
    return w * 2
@tessera.jit
def kernel(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    breakpoint()
    v = tl.load(x + at, at < n)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(2):
        total += v * (i + 1)
    u = helper(v)
    tl.store(x + at, u + total, at < n)
x = np.arange(4).astype(np.float32)
kernel[(1,)](x, 4, BLOCK=4)
print(x)
"""


def stepped(tmp_path: Path, *commands: str) -> tuple[list[int], str]:
    """The lines at which the debugger stopped, and all that was printed."""
    script = tmp_path / "prog.py"
    script.write_text(PROGRAM)
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "TESSERA_INTERPRET": "1", "PYTHONPATH": root}
    env.pop("PYTHONBREAKPOINT", None)
    done = subprocess.run(
        [sys.executable, str(script)], input="\n".join(commands) + "\n", capture_output=True, text=True, env=env,
        timeout=120, check=False,
    )  # fmt: skip
    return [
        int(n) for n in re.findall(r"> .*prog\.py\((\d+)\)", done.stdout)
    ], done.stdout + done.stderr


def test_next_passes_by_functions_and_stops_in_each_iteration(tmp_path: Path):
    lines, said = stepped(tmp_path, *["n"] * 7, "p u", "c")
    assert lines == [9, 10, 12, 13, 13, 14, 15]
    assert "[ 2.  7. 12. 17.]" in said


def test_step_goes_into_functions_and_return_out(tmp_path: Path):
    lines, said = stepped(tmp_path, "unt 14", "s", "s", "p v, w", "r", "p u", "c")
    assert lines[:4] == [9, 14, 4, 5]
    assert lines[4] == 15
    assert "array([1., 2., 3., 4.], dtype=float32)" in said
    assert "array([2., 4., 6., 8.], dtype=float32)" in said


def test_breakpoints_at_lines_and_quit(tmp_path: Path):
    lines, said = stepped(tmp_path, "b 13", "c", "p total", "c", "p total", "p BLOCK, i", "q")
    assert lines == [9, 13, 13]
    assert "array([0., 0., 0., 0.]" in said
    assert "array([0., 1., 2., 3.]" in said
    assert "(4, array(1" in said
    assert "BdbQuit" in said


@pytest.mark.parametrize("command", ["c", "cont"])
def test_continue_ends_the_kernel(tmp_path: Path, command: str):
    lines, said = stepped(tmp_path, command)
    assert lines == [9]
    assert "[ 2.  7. 12. 17.]" in said
