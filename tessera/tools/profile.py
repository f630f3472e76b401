"""Implements the command `profile`: runs a program and shows the time of its launches (docs/profiling.md)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from tessera.profiler import profile


def command(args: list[str], program: Callable[[list[str]], int]) -> int:
    """`profile [--trace FILE] [--counts] SCRIPT [ARGS...] | -m MODULE [ARGS...]`; `program` runs it here."""
    parser = argparse.ArgumentParser("tessera profile", description="time of a program's launches")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write a trace for ui.perfetto.dev (or FILE.hatchet)",
    )
    parser.add_argument(
        "--counts", action="store_true", help="bytes and operations of kernels, by explain"
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, help="SCRIPT ARGS..., or -m MODULE ARGS..."
    )
    given = parser.parse_args(args)
    if not given.program:
        return 2
    with profile(counts=given.counts) as p:
        try:
            status = program(given.program)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    print(p)
    if given.trace is not None:
        p.save(given.trace)
    return status
