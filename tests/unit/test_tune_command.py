"""`tessera tune SCRIPT`: progress, with rich and without, the table and the plot."""

from __future__ import annotations

import io
import json
import re
import sys
from importlib import import_module
from math import inf
from pathlib import Path
from types import ModuleType

import pytest

from tessera.__main__ import main
from tessera.config import knobs
from tessera.runtime.autotuner import progress
from tessera.runtime.autotuner.progress import Progress
from tessera.tools import tuning
from tessera.tools.tuning import Result

pytestmark = pytest.mark.usefixtures("without_triton")
SCRIPT = """
import numpy as np
import tessera
import tessera.language as tl

@tessera.autotune(configs=[tessera.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])
@tessera.jit
def twice(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, at < n), at < n)

x = np.ones(64, np.float32)
twice[lambda meta: (tessera.cdiv(64, meta["BLOCK"]),)](x, 64)
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Not a fixture: pytest replaces the streams between set-up and test."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setenv("COLUMNS", "80")
    return found


def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> ModuleType:
        if name.startswith("rich"):
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(progress, "import_module", load)
    monkeypatch.setattr(tuning, "import_module", load)


def test_a_program_is_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script, plot = tmp_path / "script.py", tmp_path / "times.html"
    script.write_text(SCRIPT)
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        assert main(["tune", "--plot", str(plot), str(script)]) == 0
        shown = capsys.readouterr().out
        kept_for = "twice for 64, float32(, cpu)?: "  # beside a GPU, the place counts
        assert re.search(kept_for + "tuned in", shown)
        assert "BLOCK: 32, num_warps: 4, num_ctas: 1, num_stages: 3\n" in shown
        assert [line.split()[1] for line in shown.splitlines()[2:3]] == ["1.00"]
        assert main(["tune", str(script)]) == 0
        assert re.search(kept_for + "times from disk", capsys.readouterr().out)
        assert main(["tune", "--show"]) == 0
        assert "num_stages: 3 (" in capsys.readouterr().out
        (kept,) = (tmp_path / "cache").rglob("*.json")
        kept.write_text(json.dumps({"timings": {"BLOCK: 32": [0.0]}}))
        assert main(["tune", "--again", str(script)]) == 0
        assert "tuned in" in capsys.readouterr().out
        assert len(json.loads(kept.read_text())["timings"]) == 2
    page = plot.read_text()
    assert page.count("<i style=") == 2
    assert "http" not in page


def test_a_forgotten_file_does_not_cost_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with pytest.raises(SystemExit, match="2"):
        main(["tune", "--plot", str(script), "argument"])
    assert "the file to write comes first, then the program" in capsys.readouterr().err
    assert script.read_text() == SCRIPT


def test_a_program_without_tuning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(3)\n")
    assert main(["tune", str(script)]) == 3
    assert "no kernel of the program was tuned" in capsys.readouterr().out
    assert main(["tune"]) == 2


def test_a_config_that_did_not_run():
    result = Result("k", (1,), [("BLOCK: 64", 0.5), ("BLOCK: 32", 1.0), ("BLOCK: 9", inf)], None)
    assert result.rows() == [("0.5000", "1.00", 1.0), ("1.0000", "2.00", 0.5), ("not run", "", 0.0)]
    assert "k for 1: times from disk" in tuning.text(result)
    assert "not run" in tuning.page([result])


def test_a_plain_bar(monkeypatch: pytest.MonkeyPatch):
    out = terminal(monkeypatch)
    without_rich(monkeypatch)
    with Progress("tuning k", 4) as bar:
        bar.step(2.0, "BLOCK: 32")
        bar.step(1.5, "BLOCK: 64" + ", num_warps: 4" * 9)
    said = out.getvalue()
    assert "tuning k [############............] 2/4, best 1.5000 ms by BLOCK: 64" in said
    assert all(len(line) < 80 + len("\x1b[K") for line in said.split("\r"))
    assert said.endswith("\r\x1b[K")


def test_a_bar_of_rich(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("rich")
    out = terminal(monkeypatch)
    with Progress("tuning k", 2) as bar:
        bar.step(2.0, "BLOCK: 32")
        assert bar.bar is not None
        (task,) = bar.bar.tasks
        bar.step(1.5, "BLOCK: 64")
        assert (task.completed, task.total) == (2, 2)
        assert task.fields["said"] == "best 1.5000 ms by BLOCK: 64"
    assert "tuning k" in out.getvalue()


def test_a_bar_beside_a_long_config(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("rich")
    out = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "60")
    with Progress("tuning k", 2) as bar:
        bar.step(2.0, "BLOCK: 32" + ", num_warps: 4" * 9)
        assert bar.bar is not None
        bar.bar.refresh()
    assert "1/2" in out.getvalue()
    assert "best 2.0000" in out.getvalue()


def test_tables_of_rich_and_without(monkeypatch: pytest.MonkeyPatch):
    result = Result("k", (1,), [("BLOCK: 64", 0.5), ("BLOCK: 32", 1.0)], 0.25)
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "80")
    if pytest.importorskip("rich"):
        tuning.show(result)
        assert "BLOCK: 64" in out.getvalue()
        assert "█" in out.getvalue()
    without_rich(monkeypatch)
    tuning.show(result)
    assert out.getvalue().endswith(tuning.text(result) + "\n")


def test_nothing_is_shown_where_nobody_looks(monkeypatch: pytest.MonkeyPatch):
    quiet = io.StringIO()
    monkeypatch.setattr(sys, "stderr", quiet)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    with Progress("tuning k", 1) as bar:
        bar.step(1.0, "BLOCK: 32")
    assert quiet.getvalue() == ""
