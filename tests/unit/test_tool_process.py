"""Tools end when their time is over, when their caller is interrupted, and when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.tool_process import run_tool
from tessera.config import knobs
from tessera.errors import CompilationTimeout

ENDLESS = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0; fi
sleep 1000 &
echo $$ $! > {pids}.new
mv {pids}.new {pids}
wait
"""
KERNEL = """
import signal
import sys
import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia.tool_process import run_tool
from tessera.compiler import ASTSource, compile
from tessera.runtime.autotuner.compile_workers import CompileWorkers


@tessera.jit
def fill(x):
    tl.store(x, 7)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background shells ignore it
    source, target = ASTSource(fill, {"x": "*i32"}), GPUTarget("cuda", 90, 32)
    if sys.argv[1] == "tool":
        run_tool([sys.argv[2]])
    elif sys.argv[1] == "compile":
        tessera.compile(source, target)
    else:
        with CompileWorkers(1) as workers:
            compile(source, target, run_stages=workers.run_stages)


if __name__ == "__main__":
    main()
"""


def endless(folder: Path) -> tuple[Path, Path]:
    """A tool that does not end and has a child, and the file with their numbers."""
    tool, pids = folder / "endless", folder / "pids"
    tool.write_text(ENDLESS.format(pids=pids))
    tool.chmod(0o755)
    return tool, pids


def wait_for(condition: object, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, and not yet waited for by whoever runs these tests


def ended(pids: Path) -> bool:
    numbers = [int(word) for word in pids.read_text().split()]
    assert len(numbers) == 2
    return wait_for(lambda: not any(map(alive, numbers)))


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -SEGV $$", -11)]
)
def test_how_a_tool_ended(script: str, status: int):
    found = run_tool(["/bin/sh", "-c", f"cat; echo out; echo err >&2; {script}"])
    assert (found.status, found.stdout) == (status, "out\n")  # nothing on its standard input
    assert found.stderr.startswith("err\n")


def test_arguments_are_not_read_by_the_shell():
    odd = ["a b", "$HOME", "`id`", "*", "'", ""]
    assert run_tool(["/usr/bin/env", "printf", "%s|", *odd]).stdout == "|".join(odd) + "|"


def test_a_tool_that_is_not_there():
    assert run_tool(["/no/such/tool"]).status == 127


def test_descriptors_are_not_left():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run_tool(["true"])
        with pytest.raises(subprocess.TimeoutExpired):
            run_tool(["sleep", "100"], 0.05)
    assert len(os.listdir("/proc/self/fd")) == before


def test_time_is_over(tmp_path: Path):
    tool, pids = endless(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        run_tool([str(tool)], 2)
    assert ended(pids)


def test_the_budget_of_ptxas(tmp_path: Path):
    tool, pids = endless(tmp_path)
    with knobs.scope():
        knobs.nvidia.ptxas, knobs.nvidia.ptxas_budget = str(tool), 2
        with pytest.raises(CompilationTimeout, match="more than 2 s, at ptxas") as caught:
            ptxas.assemble(".version 8.0\n", "sm_90a")
    text = str(caught.value)
    assert "TESSERA_PTXAS_BUDGET" in text and "repeat with: " in text
    saved = Path(text.split("the PTX is in ")[1].split()[0])
    assert saved.read_text() == ".version 8.0\n"
    saved.unlink()
    assert ended(pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("way", ["tool", "compile", "worker"])
def test_the_caller_ends(way: str, how: signal.Signals, tmp_path: Path):
    tool, pids = endless(tmp_path)
    (tmp_path / "program.py").write_text(KERNEL)
    environment = {
        **os.environ, "TESSERA_PTXAS": str(tool), "TESSERA_CACHE_DIR": str(tmp_path / "cache"),
        "TESSERA_DEFAULT_BACKEND": "",
    }  # fmt: skip
    program = subprocess.Popen(
        [sys.executable, tmp_path / "program.py", way, tool],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        if not wait_for(lambda: pids.exists() or program.poll() is not None) or not pids.exists():
            pytest.fail(f"ptxas was not started: {program.poll()}")
        program.send_signal(how)
        assert wait_for(lambda: program.poll() is not None)
        assert ended(pids)
    finally:
        program.kill()
        program.wait()
