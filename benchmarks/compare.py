"""Compares the results of two commits, row by row: python benchmarks/compare.py OLD.json NEW.json [--below 0.99]

A row's change is how much faster tessera has become beside its rivals, in the geometric mean of those that both runs
have: on another machine or on a busy one that says more than times do. Without a rival it is the ratio of the times.
Rows whose change is below the limit are marked, and rows of one run only are named; both give exit status 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import record
from record import Row
from tables import geomean

from tessera.testing import print_table


def change(old: Row, new: Row) -> float:
    """Above 1: the new run is faster."""
    rivals = old.ratios.keys() & new.ratios.keys()
    if rivals:
        return geomean(new.ratios[rival] / old.ratios[rival] for rival in rivals)
    return old.times["tessera"] / new.times["tessera"]


def changes(old: list[Row], new: list[Row]) -> tuple[list[tuple[Row, float]], list[Row]]:
    """The rows of both runs with their changes, the slowest first, and the rows of one run only."""
    before = {row.key: row for row in old}
    after = {row.key: row for row in new}
    both = [(row, change(before[key], row)) for key, row in after.items() if key in before]
    alone = [row for row in (*old, *new) if (row.key in before) != (row.key in after)]
    return sorted(both, key=lambda entry: entry[1]), alone


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--below", type=float, default=0.99, help="a smaller change is marked")
    options = parser.parse_args(arguments)
    old, new = record.read(options.old), record.read(options.new)
    both, alone = changes(old.rows, new.rows)
    rows = [
        [*row.key, f"{value:.3f}", "SLOWER" if value < options.below else ""] for row, value in both
    ]
    print_table(f"{old.commit} to {new.commit}", ["", "shape", "dtype", "change", ""], rows)
    print(f"geometric mean of {len(both)} rows: {geomean(value for _, value in both):.3f}")
    for row in alone:
        print("only in one run:", *row.key)
    return int(bool(alone) or any(value < options.below for _, value in both))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
