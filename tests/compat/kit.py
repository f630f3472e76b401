"""Programs of the drop-in tests run in processes of their own: the tests' process keeps its `triton`."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def start(folder: Path, *command: str, **env: str) -> subprocess.Popen[str]:
    """Start `python COMMAND...` with caches below `folder`."""
    settings = {
        **os.environ, "PYTHONPATH": str(ROOT), "TESSERA_CACHE_DIR": str(folder / "tessera"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "OMP_NUM_THREADS": "1", **env,
    }  # fmt: skip
    for name in ("TRITON_CACHE_DIR", "TRITON_INTERPRET", "TESSERA_INTERPRET"):
        settings.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *command], env=settings, cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], seconds: float = 600) -> str:
    """The program's output; its errors are the test's when it fails."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, f"{out[-3000:]}\n{err[-5000:]}"
    return out


def python(folder: Path, *command: str, **env: str) -> str:
    return finish(start(folder, *command, **env))


def cases_in(file: str) -> list[str]:
    """The names of the functions `case_…` of a script."""
    tree = ast.parse((HERE / file).read_text())
    return [
        node.name.removeprefix("case_") for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
    ]  # fmt: skip


def run_cases(folder: Path, file: str, *names: str, **env: str) -> dict[str, dict[str, Any]]:
    """What the cases of a script reported, by name."""
    return reported(start(folder, str(HERE / file), *names, **env))


def reported(process: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    """What the cases of a script that was started reported, by name."""
    rows = [json.loads(line) for line in finish(process).splitlines() if line.startswith('{"case"')]
    return {row["case"]: row for row in rows}
