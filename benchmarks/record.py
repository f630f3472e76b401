"""Results of a benchmark as a JSON file: where, when and on which commit they were measured, and a row for each case.

benchmarks/results/ holds the files from which `tables.py` makes the tables of docs/performance.md. The unit of a time
is its row's `time_unit`. Every ratio is a rival's time divided by ours, so that above 1 tessera is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
PACKAGES = ("numpy", "llvmlite", "torch", "triton", "numba")


@dataclass
class Row:
    """One case. `times`: by program ("tessera" and its rivals); `rates`: the same as work for a unit of time, in
    `unit`; `ratios`: by rival, its time divided by ours; `deviations`: by program, the largest error of its result
    relative to the largest element. What was not measured is absent."""

    name: str
    shape: str = ""
    dtype: str = ""
    time_unit: str = "ms"
    times: dict[str, float] = field(default_factory=dict)
    unit: str = ""
    rates: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    deviations: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.shape, self.dtype


@dataclass
class Results:
    """The rows of one run. `settings` are facts that the same machine can have otherwise, such as `threads`."""

    benchmark: str
    command: str
    date: str
    commit: str
    machine: dict[str, str]
    versions: dict[str, str]
    rows: list[Row]
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def write(self, path: Path) -> None:
        """One line for each row, so that two files compare well."""
        facts = dataclasses.asdict(self)
        del facts["rows"]
        head = json.dumps(facts, indent=1, ensure_ascii=False).removesuffix("\n}")
        rows = ",\n  ".join(json.dumps(_stored(row), ensure_ascii=False) for row in self.rows)
        path.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


def _stored(row: Row) -> dict[str, Any]:
    """The fields that are set; figures in six digits."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: float(f"{v:.6g}") for k, v in value.items() if v == v}  # no NaN
        return value

    return {k: rounded(v) for k, v in dataclasses.asdict(row).items() if v or k == "name"}


def read(path: Path) -> Results:
    """The results of a file; raises TypeError for a field that no class above has."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    return Results(**{**facts, "rows": [Row(**row) for row in facts["rows"]]})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--json and --commit, which every benchmark has."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--commit", help="what is measured, where git does not know it")


def write(
    arguments: argparse.Namespace,
    benchmark: str,
    rows: list[Row],
    device: str = "",
    **settings: Any,
) -> None:
    """Write the rows to the file that the command line names, if it names one."""
    if arguments.json is None:
        return
    results = Results(
        benchmark, f"python benchmarks/{benchmark}.py", datetime.date.today().isoformat(),
        arguments.commit or head(), machine(device), versions(), rows, settings,
    )  # fmt: skip
    results.write(arguments.json)


def head() -> str:
    """The commit of this tree, with "+" where files differ from it; "unknown" outside of a repository."""

    def git(*words: str) -> str:
        run = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return run.stdout.strip() if run.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=7", "HEAD")
        return commit + "+" * bool(git("status", "--porcelain", "-uno")) if commit else "unknown"
    except FileNotFoundError:
        return "unknown"


def machine(device: str = "") -> dict[str, str]:
    """Processor, cores that this process may use, and the accelerator."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    found = {"processor": names[0] if names else platform.machine()}
    found["cores"] = str(len(os.sched_getaffinity(0)))
    return {**found, "device": device} if device else found


def versions() -> dict[str, str]:
    """Of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
