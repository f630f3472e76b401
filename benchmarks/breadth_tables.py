"""Tables of runs with many rows: how their ratios are spread, and the slowest, by name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import geometric_mean, median

from record import Results, Row

LISTED = 0.8  # names with a row under this ratio are listed


def spread_of(label: str, rows: Sequence[Row], rival: str) -> list[str]:
    """A line of `SPREAD`: number, geometric mean, the slowest 1 % and 5 %, median, how many are below 0.97."""
    ratios = sorted(row.ratios[rival] for row in rows)

    def slowest(percent: float) -> str:
        return f"{ratios[min(len(ratios) - 1, int(len(ratios) * percent / 100))]:.2f}"

    return [
        label, str(len(ratios)), f"{geometric_mean(ratios):.2f}", f"{ratios[0]:.2f}", slowest(1), slowest(5),
        f"{median(ratios):.2f}", str(sum(r < 0.97 for r in ratios)),
    ]  # fmt: skip


SPREAD = [
    "kernels",
    "number",
    "geometric mean",
    "least",
    "1 % below",
    "5 % below",
    "median",
    "below 0.97",
]


def breadth_lines(found: Results) -> list[list[str]]:
    kinds = ("float32", "bfloat16")
    lines = [spread_of("all", found.rows, "triton")]
    lines += [
        spread_of(kind, [r for r in found.rows if r.dtype == kind], "triton") for kind in kinds
    ]
    reductions = [r for r in found.rows if re.match(r"triton_(red|per)", r.shape)]
    lines.append(spread_of("that reduce or scan", reductions, "triton"))
    return lines


def library_lines(found: Results) -> list[list[str]]:
    """All rows, those of each dtype, and those of each library, whose name begins its rows' names."""
    lines = [spread_of("all", found.rows, "triton")]
    for kind in sorted({row.dtype for row in found.rows}):
        lines.append(spread_of(kind, [r for r in found.rows if r.dtype == kind], "triton"))
    for library in sorted({row.name.split()[0] for row in found.rows}):
        rows = [row for row in found.rows if row.name.split()[0] == library]
        lines.append(spread_of(library, rows, "triton"))
    return lines


def slow_lines(found: Results, rival: str) -> list[list[str]]:
    """Names with a row below `LISTED`: their least ratio, the time of Triton there in µs, the slow rows of all."""
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in found.rows:
        by_name[row.name.removesuffix(", training")].append(row)
    lines: list[tuple[float, list[str]]] = []
    for name, rows in by_name.items():
        least = min(rows, key=lambda row: row.ratios[rival])
        ratio, slow = least.ratios[rival], sum(row.ratios[rival] < 0.97 for row in rows)
        if ratio < LISTED:
            lines.append(
                (
                    ratio,
                    [name, f"{ratio:.2f}", f"{least.times[rival]:.1f}", f"{slow} of {len(rows)}"],
                )
            )
    return [line for _, line in sorted(lines)]


def plain_lines(runs: Sequence[Results]) -> list[list[str]]:
    """For each group of plain kernels, and each number of threads: geometric mean and least ratio beside torch."""
    groups: dict[str, list[list[Row]]] = defaultdict(lambda: [[] for _ in runs])
    for k, run in enumerate(runs):
        for row in run.rows:
            function = re.match(r"2\^", row.shape) and row.name not in (
                "histogram",
                "convolution of 9",
            )
            groups["functions of 2^8 to 2^23 elements" if function else row.name][k].append(row)
    lines: list[list[str]] = []
    for name, columns in groups.items():
        cells = [[row.ratios["torch"] for row in rows] for rows in columns]
        lines.append(
            [name, str(len(cells[0])), *(f"{geometric_mean(c):.2f} ({min(c):.2f})" for c in cells)]
        )
    return lines


def product_lines(runs: Sequence[Results]) -> list[list[str]]:
    """For each kind and type of products: geometric mean and least ratio beside torch, in each of the runs."""
    kinds = dict.fromkeys((row.name, row.dtype) for run in runs for row in run.rows)
    lines: list[list[str]] = []
    for kind in kinds:
        columns = [
            [r.ratios["torch"] for r in run.rows if (r.name, r.dtype) == kind] for run in runs
        ]
        cells = [f"{geometric_mean(c):.2f} ({min(c):.2f})" if c else "" for c in columns]
        lines.append([*kind, str(len(columns[0])), *cells])
    return lines


NEAR_A_COPY = 0.95  # of its rate


def special_lines(found: Results) -> list[list[str]]:
    """For each dtype: how many functions there are, beside a copy and beside Triton."""
    lines: list[list[str]] = []
    for dtype in dict.fromkeys(row.dtype for row in found.rows):
        rows = [row for row in found.rows if row.dtype == dtype and not row.name.startswith("copy")]
        copy, triton = ([row.ratios[rival] for row in rows] for rival in ("copy", "triton"))
        fast, behind = sum(r >= NEAR_A_COPY for r in copy), sum(r < 0.97 for r in triton)
        lines.append([
            dtype, str(len(rows)), str(fast), f"{min(copy):.2f}", f"{geometric_mean(triton):.2f}", f"{min(triton):.2f}",
            str(behind),
        ])  # fmt: skip
    return lines


SPECIAL = [
    "dtype", "functions", "as fast as a copy", "least beside a copy", "beside Triton", "least", "below 0.97",
]  # fmt: skip


def slow_special_lines(found: Results) -> list[list[str]]:
    """Functions of floats that are slower than a copy in a dtype: beside a copy and Triton, and errors in ulp."""
    by_name: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in found.rows:
        by_name[row.name][row.dtype] = row
    lines: list[tuple[float, list[str]]] = []
    for name, rows in by_name.items():
        if set(rows) != {"fp32", "bf16"}:
            continue
        least = min(row.ratios["copy"] for row in rows.values())
        if least < NEAR_A_COPY and not name.startswith("copy"):
            ratios = [
                rows[t].ratios[rival] for t in ("fp32", "bf16") for rival in ("copy", "triton")
            ]
            cells = [f"{ratio:.2f}" for ratio in ratios]
            errors = rows["fp32"].deviations
            both = (
                len(errors) > 1 and max(errors.values()) < 100
            )  # else absolute, or beyond every bound
            cells += [f"{errors[side]:.1f}" for side in ("tessera", "triton")] if both else ["", ""]
            lines.append((least, [name, *cells]))
    return [line for _, line in sorted(lines)]


SLOW_SPECIAL = [
    "function", "fp32, of a copy", "of Triton", "bf16, of a copy", "of Triton", "error, ulp", "Triton's",
]  # fmt: skip
