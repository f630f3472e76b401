"""Lines of the tables of docs/performance/untuned.md, from the rows of untuned.json."""

from __future__ import annotations

from statistics import geometric_mean

from record import Row

BELOW = 0.97  # rows under this ratio count as slower
SUMMARY = ("what", "rows", "vs Triton", f"of these below {BELOW}", "vs library")
ALL = ("kernel", "shape", "ms", "tessera", "vs Triton", "vs library")
FAMILIES = {
    "attention backward": "attention, backward", "attention": "attention, forward", "matmul": "matrix products",
    "linear attention": "linear attention, state spaces", "state space": "linear attention, state spaces",
    "delta rule": "linear attention, state spaces",
}  # fmt: skip


def family(row: Row) -> str:
    """Which line of the summary a row belongs to."""
    found = (title for start, title in FAMILIES.items() if row.name.startswith(start))
    return next(found, "norms, softmax, cross entropy by loops")


def library(row: Row) -> str:
    """The rival besides Triton, if the row has one."""
    return next((who for who in row.ratios if who != "triton"), "")


def summary_lines(rows: list[Row]) -> list[list[str]]:
    lines: list[list[str]] = []
    for title in dict.fromkeys(map(family, rows)):
        mine = [row for row in rows if family(row) == title]
        triton = [row.ratios["triton"] for row in mine if "triton" in row.ratios]
        beside = [row.ratios[library(row)] for row in mine if library(row)]
        slow = sum(value < BELOW for value in triton)
        lines.append([title, str(len(mine)), _spread(triton), str(slow), _spread(beside)])
    return lines


def all_lines(rows: list[Row]) -> list[list[str]]:
    """The slowest beside any rival first."""
    ordered = sorted(rows, key=lambda row: min(row.ratios.values(), default=1.0))
    return [
        [
            row.name, f"{row.shape} {row.dtype}", f"{row.times['tessera']:.4f}",
            f"{row.rates['tessera']:.0f} {row.unit}", _ratio(row, "triton"),
            f"{_ratio(row, library(row))} {library(row)}" if library(row) else "",
        ]
        for row in ordered
    ]  # fmt: skip


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{geometric_mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _ratio(row: Row, rival: str) -> str:
    """In two digits, bold where tessera is slower."""
    if rival not in row.ratios:
        return ""
    text = f"{row.ratios[rival]:.2f}"
    return f"**{text}**" if float(text) < 1 else text
