"""`python -m tessera bisect` finds a fault that is planted in a pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tessera.tools import bisect as tool
from tessera.tools.bisect import Bisection, Run
from tessera.tools.compared import Comparison, Difference, arrays_in
from tests.unit import planted_fault

PROGRAM = str(Path(planted_fault.__file__))
ROOT = Path(__file__).parents[2]


def bisected(*args: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tessera", "bisect", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_wrong_numbers_are_traced_to_op_and_line():
    status, told = bisected(PROGRAM, "wrong")
    assert status == 0
    assert re.search(
        r"the first application .*: \(\d+\) cse on differences: sub at .*planted_fault", told
    )
    assert "tl.store(out + i, (a - b) * (b - a))" in told
    assert (
        "kernel differences: argument 'out' differs from the interpreter in 63 of 64 elements"
        in told
    )
    assert "first in [0]: 9.0 for -9.0" in told
    assert "meanwhile: TESSERA_DISABLE=cse" in told
    (folder,) = re.findall(r"reproducer: (\S+)", told)
    command = (Path(folder) / "command.txt").read_text()
    assert re.search(
        r"TESSERA_OPT_LIMIT=\d+ TESSERA_STRICT=1 .* run .*planted_fault.py wrong", command
    )
    places = [path.relative_to(folder).parts for path in Path(folder).rglob("differences.tir")]
    assert sorted(where for where, *_ in places) == ["with", "without"]
    assert len({tuple(rest) for _, *rest in places}) == 1  # diff -r finds what it did


def test_crashes_are_traced():
    status, told = bisected(PROGRAM, "crash")
    assert status == 0
    assert re.search(r"the first application .*: \(\d+\) cse on differences", told)
    assert "RuntimeError: planted" in told


def test_a_fault_of_the_program_is_none_of_an_optimization():
    status, told = bisected(PROGRAM, "everywhere")
    assert status == 1
    assert "wrong without optimisations, too" in told
    assert "a fault of the program's own" in told


def test_nothing_wrong():
    status, told = bisected(PROGRAM, "none")
    assert status == 0
    assert re.match(r"right with all \d+ applications", told)


def test_a_command_line_without_a_program(capsys: pytest.CaptureFixture[str]):
    def never(args: list[str]) -> int:
        raise AssertionError(args)

    assert tool.bisect([], never) == 2
    assert tool.bisect(["--repeat", "3"], never) == 2
    with pytest.raises(SystemExit):
        tool.bisect(["--nonsense"], never)


def test_options_and_program_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    Path("a.py").touch()
    seen: list[Any] = []

    def search(self: Bisection) -> int:
        seen.append((self.program, self.repeat, self.timeout))
        return 0

    monkeypatch.setattr(Bisection, "search", search)
    for args in (
        ["a.py", "--repeat", "9"], ["--repeat", "3", "a.py"], ["--timeout=2", "-m", "m", "x"]
    ):  # fmt: skip
        tool.bisect(args, lambda _: 0)
    assert seen == [
        (["a.py", "--repeat", "9"], 1, None), (["a.py"], 3, None), (["-m", "m", "x"], 1, 2.0)
    ]  # fmt: skip


@pytest.mark.parametrize("first", [1, 2, 7, 31, 32])
def test_halving_finds_the_first(first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Of 32 applications."""
    limits: list[int] = []

    def run(self: Bisection, limit: int, dump: str = "") -> Run:
        limits.append(limit)
        made = {n: f"cse on k: op{n}" for n in range(1, 33) if limit in (-1, *range(n, 33))}
        return Run("wrong" if limit < 0 or limit >= first else "", made)

    told: list[int] = []
    monkeypatch.setattr(Bisection, "run", run)
    monkeypatch.setattr(Bisection, "tell", lambda self, number, bad: told.append(number))
    assert Bisection(["x"]).search() == 0
    assert told == [first]
    assert len(limits) <= 2 + 5


# --- comparing launches ------------------------------------------------------------------------------------------
def launch_of(change: float) -> Any:
    """A launch that adds 1, or something else where it is not the interpreter's."""

    def launch(fn: Any, key: Any, grid: Any, args: Any, kwargs: Any, warmup: bool = False) -> None:
        args[0][...] += 1 if "disable_optimizations" in kwargs else change

    return launch


def test_arrays_hold_the_launch_s_results_afterwards():
    x = np.zeros(4, np.float32)
    comparison: Any = Comparison()
    comparison.launch = launch_of(1)
    for _ in range(3):
        comparison.compared(SimpleNamespace(__name__="k", arg_names=["x"]), (1,), (x,), {})
    assert x.tolist() == [3] * 4
    comparison.launch = launch_of(2)
    with pytest.raises(Difference) as caught:
        comparison.compared(SimpleNamespace(__name__="k", arg_names=["x"]), (1,), (x,), {})
    assert "launch 4" in caught.value.text
    assert "4 of 4 elements, first in [0]: 5.0 for 4.0" in caught.value.text


def test_kernels_that_the_interpreter_refuses_are_not_compared(capsys: pytest.CaptureFixture[str]):
    def launch(fn: Any, key: Any, grid: Any, args: Any, kwargs: Any, warmup: bool = False) -> None:
        args[0][...] = 7
        if "disable_optimizations" in kwargs:
            raise NotImplementedError("no such op")

    x = np.zeros(4, np.float32)
    comparison: Any = Comparison()
    comparison.launch = launch
    comparison.compared(SimpleNamespace(__name__="k", arg_names=["x"]), (1,), (x,), {})
    assert x.tolist() == [7] * 4
    assert "k is not compared: no such op" in capsys.readouterr().err


def test_arrays_are_found_in_tuples_and_descriptors():
    x, y = np.zeros(3), np.zeros(4)
    described = SimpleNamespace(base=y, block_shape=[4])
    found = list(arrays_in([1, (x, 2.0), described, np.float32(3), None]))
    assert [a.array is b for a, b in zip(found, (x, y), strict=True)] == [True, True]
