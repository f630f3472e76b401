"""Measures other values of a fitted constant: `python -m tools.fit effects.STREAM_BYTES [VALUE ...]`.

The benchmark of the constant's row in `constants.py` runs once for each value, in a process of its own with an empty
cache of kernels. The table has a line for each row of the benchmark, a column for each value, and in it the time
relative to that with the value of today; the last line is the geometric mean. `--list` shows what is there.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from tools.fit.constants import FITS, Fit

ROOT = Path(__file__).resolve().parents[2]
Times = dict[str, float]  # seconds, or any unit, by row of the benchmark


def find(name: str) -> Fit:
    """The row whose key ends with `name`; SystemExit if there is none, or more than one."""
    found = [fit for fit in FITS if f".{fit.key}".endswith(f".{name}")]
    if len(found) != 1:
        sys.exit(f"{len(found)} constants are called {name}: --list shows all")
    return found[0]


def measured(fit: Fit, value: float, extra: list[str]) -> Times:
    """The times of the benchmark's rows with this value."""
    with tempfile.TemporaryDirectory(prefix="tessera-fit-") as folder:
        result = Path(folder) / "result.json"
        script, *arguments = fit.command
        command = [
            sys.executable,
            "-m",
            "tools.fit.with_value",
            fit.module,
            fit.name,
            repr(value),
            script,
        ]
        command += [*arguments, "--only", fit.rows, "--json", str(result), *extra]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "TESSERA_CACHE_DIR": folder, "PYTHONPATH": paths}
        subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=sys.stderr)
        rows = json.loads(result.read_text("utf-8"))["rows"]
    return {
        " ".join(row.get(k, "") for k in ("name", "shape", "dtype")): time_of(row) for row in rows
    }


def time_of(row: dict[str, dict[str, float]]) -> float:
    """Our time as a multiple of a rival's, which ran in turn with us, so that other programs on the machine slow both;
    without a rival, our time."""
    if row.get("ratios"):
        return 1 / next(iter(row["ratios"].values()))
    return row["times"]["tessera"] if "times" in row else 1 / row["rates"]["tessera"]


def table(columns: dict[float, Times], today: float) -> list[list[str]]:
    """Head, a line for each row of the benchmark that all columns have, and the geometric means."""
    names = [n for n in columns[today] if all(n in times for times in columns.values())]
    ratios = {v: [times[n] / columns[today][n] for n in names] for v, times in columns.items()}
    lines = [[n, *(f"{ratios[v][i]:.3f}" for v in columns)] for i, n in enumerate(names)]
    means = [f"{math.exp(sum(map(math.log, r)) / len(r)):.3f}" for r in ratios.values()]
    head = ["time, relative", *(f"{v:g}{' (today)' if v == today else ''}" for v in columns)]
    return [head, *lines, ["geometric mean", *means]]


def main(given: list[str]) -> None:
    parser = argparse.ArgumentParser("tools.fit", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("constant", nargs="?", help="as effects.STREAM_BYTES")
    parser.add_argument(
        "values", nargs="*", type=ast.literal_eval, help="default: those of the table"
    )
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--rep", default="", help="ms for timing each function, as the benchmark takes it"
    )
    options = parser.parse_args(given)
    if options.list or not options.constant:
        for fit in FITS:
            print(
                f"{fit.key}: {', '.join(f'{v:g}' for v in fit.values)}; on {fit.needs}: {fit.rows}"
            )
        return
    fit = find(options.constant)
    today = float(getattr(import_module(fit.module), fit.name))
    extra = ["--rep", options.rep] if options.rep else []
    values = dict.fromkeys(
        [*(options.values or fit.values), getattr(import_module(fit.module), fit.name)]
    )
    lines = table({float(v): measured(fit, v, extra) for v in sorted(values)}, today)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    main(sys.argv[1:])
