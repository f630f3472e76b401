"""The tables in README.md and docs/performance/ are those of the files in benchmarks/results/, and these are sound."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import compare  # noqa: E402
import record  # noqa: E402
import tables  # noqa: E402
from record import Results, Row  # noqa: E402

FILES = sorted(record.RESULTS.glob("*.json"))


def test_texts_have_the_tables_of_the_results() -> None:
    stale = [p for p, text in tables.written().items() if p.read_text("utf-8") != text]
    assert not stale, "run python benchmarks/tables.py"


def test_every_table_is_shown() -> None:
    shown = {m[2] for p in tables.written() for m in tables.MARKED.finditer(p.read_text("utf-8"))}
    assert shown == set(tables.TABLES)


def test_the_summary_names_pages_that_exist() -> None:
    pages = {page for _, _, page in tables.groups()}
    assert all((ROOT / "docs" / "performance" / f"{page}.md").exists() for page in pages)


def test_every_row_of_the_gpu_is_in_one_group_of_the_summary() -> None:
    grouped = [row.key for _, rows, _ in tables.groups() for row in rows]
    # FlashAttention-2 is a second rival of rows that are in the summary beside cuDNN.
    wanted = [row.key for row in tables.results("gpu").rows if "FA2" not in row.name]
    assert sorted(key for key in grouped if key in wanted) == sorted(wanted)


BOUND = re.compile(r"^\| `(\w+)\(.*?` \| (.*?([\d.]+) ulp in fp32.*) \|$", re.M)


def test_errors_on_a_gpu_are_within_the_bounds_that_functions_name() -> None:
    """The simulator's hardware functions are exact; an H200's are not, on far more arguments. Near zeros a bound is
    absolute, which the table of results is not."""
    text = (ROOT / "docs" / "language" / "libdevice.md").read_text("utf-8")
    bounds = {
        name: float(most) for name, says, most in BOUND.findall(text) if "absolute" not in says
    }
    rows = [
        row for row in record.read(record.RESULTS / "special_math.json").rows if row.dtype == "fp32"
    ]
    errors = {row.name: row.deviations["tessera"] for row in rows if row.name in bounds}
    assert len(errors) >= 20
    assert {name: e for name, e in errors.items() if e > bounds[name]} == {}


def test_a_changed_figure_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in FILES:
        (tmp_path / path.name).write_text(path.read_text("utf-8"), encoding="utf-8")
    results = record.read(tmp_path / "launch.json")
    results.rows[0].ratios["triton"] = 0.5
    results.write(tmp_path / "launch.json")
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    tables.results.cache_clear()
    try:
        assert "**0.50**" in "\n".join(tables.launch_table())
        changed = {p.name for p, t in tables.written().items() if p.read_text("utf-8") != t}
    finally:
        tables.results.cache_clear()
    assert changed == {"README.md", "performance.md", "launch-and-compile.md", "ratios.svg"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_was_measured(path: Path) -> None:
    results = record.read(path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", results.date)
    assert re.fullmatch(r"[0-9a-f]{7}\+?", results.commit)
    assert results.machine
    assert results.versions
    keys = [row.key for row in results.rows]
    assert len(keys) == len(set(keys)) > 0
    for row in results.rows:
        assert row.ratios or row.deviations, row.key
        for rival, value in row.ratios.items():
            if rival in row.times:  # a median of ratios is not quite the ratio of medians
                assert row.times[rival] / row.times["tessera"] == pytest.approx(value, rel=0.05)


def test_results_are_written_and_read(tmp_path: Path) -> None:
    rows = [
        Row("a", "2^3", "fp16", "ms", {"tessera": 1.0 / 3}, "GB/s", {"tessera": 5.0}, {"torch": 2.0}),
        Row("failed", times={"torch": 1.0}, ratios={"torch": float("nan")}),
    ]  # fmt: skip
    facts = ("gpu", "command", "2026-01-02", "0123456", {"device": "d"}, {"python": "3"})
    results = Results(*facts, rows, {"threads": 2}, "a note")
    results.write(tmp_path / "r.json")
    found = record.read(tmp_path / "r.json")
    assert found.rows[0].times == {"tessera": 0.333333}
    assert found.rows[1].ratios == {}
    assert dataclasses.replace(found, rows=[]) == dataclasses.replace(results, rows=[])


def test_an_unknown_field_is_an_error(tmp_path: Path) -> None:
    text = FILES[0].read_text("utf-8").replace('"time_unit"', '"time_unitt"')
    (tmp_path / "r.json").write_text(text, encoding="utf-8")
    with pytest.raises(TypeError):
        record.read(tmp_path / "r.json")


def test_a_launch_is_a_row_for_each_kind_of_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_STRICT", "1")  # benchmarks set it for good when they are imported
    launch = importlib.import_module("launch")
    on_gpu = {"tessera": {"5": 2.0}, "own share": {"5": 0.5}, "Triton": {"5": 6.0}}
    assert launch.recorded(on_gpu) == [
        Row("5", time_unit="µs", times={"tessera": 2.0, "own share": 0.5, "triton": 6.0}, ratios={"triton": 3.0})
    ]  # fmt: skip
    on_cpu = {"CPU, NumPy": {"5": 1.0}, "own share, NumPy": {"5": 0.5}}
    assert launch.recorded(on_cpu) == [
        Row("5", "NumPy", time_unit="µs", times={"tessera": 1.0, "own share": 0.5})
    ]


def test_the_working_tree_names_its_commit() -> None:
    assert re.fullmatch(r"[0-9a-f]{7}\+?|unknown", record.head())


def test_runs_are_compared_beside_their_rivals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *rows: Row) -> str:
        facts = ("gpu", "command", "2026-01-02", name * 7, {"device": "d"}, {"python": "3"})
        Results(*facts, list(rows)).write(tmp_path / f"{name}.json")
        return str(tmp_path / f"{name}.json")

    def row(name: str, ms: float, **ratios: float) -> Row:
        return Row(name, times={"tessera": ms}, ratios=ratios)

    # The second machine is half as fast: only the ratios count where there are any.
    old = run("a", row("same", 1.0, torch=1.1, triton=2.0), row("slower", 1.0, torch=1.0))
    new = run("b", row("same", 2.0, torch=1.1, triton=2.0), row("slower", 1.0, torch=0.9))
    assert compare.main([old, old]) == 0
    assert compare.main([old, new]) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.split() for line in said if "SLOWER" in line] == [["slower", "0.900", "SLOWER"]]
    assert "geometric mean of 2 rows: 0.949" in said
    assert compare.main([old, new, "--below", "0.85"]) == 0
    alone = run("c", row("same", 1.0), row("new", 1.0))
    assert compare.main([old, alone]) == 1
    assert compare.changes([row("t", 3.0)], [row("t", 2.0)])[0][0][1] == 1.5
