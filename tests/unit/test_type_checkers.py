"""What pyright and mypy say to users' programs: nothing to good ones, and each marked line of a bad one."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.language.tensor_methods import DescriptorMethods, TensorMethods
from tessera.language.values import DESCRIPTOR_METHODS, METHODS

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/typing"


def pyright(*files: Path) -> dict[str, set[int]]:
    """Return the lines with errors by file."""
    command = [
        sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable,
        "--project", str(PROGRAMS),
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    found: dict[str, set[int]] = {file.name: set() for file in files}
    for x in json.loads(ran.stdout)["generalDiagnostics"]:
        if x["severity"] == "error":
            found[Path(x["file"]).name].add(x["range"]["start"]["line"] + 1)
    return found


def mypy(*files: Path) -> dict[str, set[int]]:
    """Return the lines with errors by file; the package itself is not judged."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--follow-imports=silent",
        "--check-untyped-defs",
        *map(str, files),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    found: dict[str, set[int]] = {file.name: set() for file in files}
    for name, line in re.findall(r"([\w.]+):(\d+): error", ran.stdout):
        found[name].add(int(line))
    return found


def marked(file: Path) -> set[int]:
    lines = file.read_text("utf-8").splitlines()
    return {n for n, line in enumerate(lines, 1) if line.endswith("# refused")}


@pytest.mark.slow
@pytest.mark.parametrize("checker", [pyright, mypy], ids=["pyright", "mypy"])
def test_good_and_bad_programs(checker):
    if importlib.util.find_spec(checker.__name__) is None:
        pytest.skip(f"{checker.__name__} is not installed")
    good, strict, bad = (PROGRAMS / name for name in ("good.py", "strict.py", "bad.py"))
    found = checker(good, strict, bad)
    assert found["good.py"] == found["strict.py"] == set()
    assert found["bad.py"] == marked(bad)
    assert len(marked(bad)) == 36


def test_checkers_know_the_methods_that_the_front_end_knows():
    typed = {k: v for k, v in vars(TensorMethods).items() if not k.startswith("_") and k != "T"}
    assert typed == METHODS
    typed = {k: v for k, v in vars(DescriptorMethods).items() if not k.startswith("_")}
    assert typed == DESCRIPTOR_METHODS


def test_the_package_says_that_it_has_types():
    assert (ROOT / "tessera/py.typed").is_file()
