"""benchmarks/counters.py: what explain counts of its kernels, and how ncu's table is read beside it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.backends.compiler import GPUTarget

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
H100 = GPUTarget("cuda", 90, 32)


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TESSERA_STRICT", "1")  # benchmarks set it for good when they are imported
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("counters")


def table(counters: Any, names: list[str], values: list[str]) -> str:
    columns = ["ID", "Kernel Name", *names]
    rows = [columns, ["", "", *("inst" for _ in names)], ["0", "turn", *values]]
    lines = [",".join(f'"{x}"' for x in row) for row in rows]
    return "\n".join(["==PROF== Connected to process 7", *lines, "==PROF== Disconnected"])


def test_a_row_a_launch_without_units_and_lines_of_ncu(counters):
    passes, busy = counters.COUNTERS["passes"], counters.COUNTERS["tensor cores, %"]
    (row,) = counters.parsed(table(counters, [*passes, busy[1]], ["1,024", "1,000", "87.5"]))
    assert row["Kernel Name"] == "turn"
    assert counters.number(row, passes) == 2024
    assert counters.number(row, busy) == 87.5
    assert counters.number(row, counters.COUNTERS["spills"]) is None


def test_launches_that_ncu_did_not_see_end_it(counters):
    row = {"case": "x", "kernel": "turn", "explain": {}}
    with pytest.raises(SystemExit, match="1 launches were explained, ncu has 0"):
        counters.beside([row], [{"ID": "0", "Kernel Name": "another"}])


def test_a_cell_has_both_counts_where_they_differ(counters):
    explained = dict.fromkeys(counters.EQUAL, 8.0)
    seen = {**explained, "passes": 9.0, "spills": None, "tensor cores, %": 50.0, "memory, %": None}
    cells = counters.cells({"case": "x", "kernel": "turn", "explain": explained, "ncu": seen})
    assert cells == ["x", "turn", "8 / 9", "8", "8", "8", "8 / ?", "50.0", ""]


@pytest.mark.parametrize(("kernel", "conflicts"), [("turn", False), ("reorder", True)])
def test_its_kernels_have_passes_with_and_without_conflicts(counters, kernel, conflicts):
    x, out = (np.zeros(1 << 12, np.float16) for _ in range(2))
    size = {"SIZE": 16} if kernel == "reorder" else {"n": 64, "SIZE": 64}
    report = getattr(counters, kernel).explain(x, out, **size, grid=(1,), target=H100)
    counts = counters.told(report, 4)
    assert counts["passes"] > 0
    assert (counts["conflicts"] > 0) is conflicts
    assert counts["requests"] > 0


def test_spills_count_once_a_warp_of_each_program(counters):
    x, out = (np.zeros(1 << 18, np.float32) for _ in range(2))
    options = {"ROWS": 32, "COLUMNS": 128, "num_warps": 1, "maxnreg": 64}
    report = counters.keep_many.explain(x, out, **options, grid=(64,), target=H100)
    spills = sum(line.spills for line in report.lines)
    assert counters.told(report, 1)["spills"] == 64 * spills
    assert spills > 0


@pytest.mark.parametrize(
    ("rows", "columns", "stages", "copies"), [(64, 128, 2, "cp.async"), (64, 64, 3, "TMA")]
)
def test_the_variant_that_a_gpu_ran_is_explained(counters, rows, columns, stages, copies):
    """A launch never takes a variant with tensor maps that leaves room for fewer CTAs than it asked for."""
    forward = counters.sources.example("06").forward_kernel
    x, lse = np.zeros((64, 4096, 64), np.float16), np.zeros((64, 4096), np.float32)
    blocks = {
        "BLOCK_M": rows,
        "BLOCK_N": columns,
        "DIM": 64,
        "GROUP": 16,
        "CAUSAL": True,
        "EVEN": True,
    }
    options = {"num_warps": 4, "num_stages": stages, "grid": (4096 // rows * 64,), "target": H100}
    report = forward.explain(x, x, x, x, lse, 64, 4096, 0.1, **blocks, **options)
    assert [loop.copies for loop in report.schedule.loops] == [copies]
    assert (counters.told(report, 4)["passes"] is None) is (copies == "cp.async")
