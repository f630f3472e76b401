"""Implements the command `profile`: runs a program and shows the time of its launches (docs/profiling.md)."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from tessera.config import knobs
from tessera.ops.trace import TRACE_MODE
from tessera.profiler import profile
from tessera.tools.programs import add_program, output_file, program_of, status_of


def command(args: list[str], program: Callable[[list[str]], int]) -> int:
    """`profile [--trace FILE] [--counts] [--timeline FILE [--kernel NAME]] SCRIPT [ARGS...] | -m MODULE [ARGS...]`;
    `program` runs it here."""
    parser = argparse.ArgumentParser("tessera profile", description="time of a program's launches")
    parser.add_argument(
        "--trace",
        type=output_file,
        metavar="FILE",
        help="write a trace for ui.perfetto.dev (or FILE.hatchet)",
    )
    parser.add_argument(
        "--counts", action="store_true", help="bytes and operations of kernels, by explain"
    )
    parser.add_argument(
        "--timeline",
        type=output_file,
        metavar="FILE",
        help="trace inside of kernels: write the last launch's timeline (FILE.html, FILE.json or FILE.txt)",
    )
    parser.add_argument("--kernel", metavar="NAME", help="the kernel of the timeline")
    add_program(parser)
    given = parser.parse_args(args)
    words = program_of(given)
    if not words:
        return 2
    if given.timeline is None and given.kernel is not None:
        parser.error("--kernel names the kernel of a timeline: give --timeline FILE, too")
    if given.timeline is not None and (given.counts or given.trace is not None):
        parser.error("--timeline runs traced builds, which --trace and --counts would not time")
    if given.timeline is not None:
        return _timeline(given.timeline, given.kernel, lambda: status_of(program, words))
    with profile(counts=given.counts) as p:
        status = status_of(program, words)
    print(p)
    if given.trace is not None:
        p.save(given.trace)
    return status


def _timeline(file: Path, name: str | None, program: Callable[[], int]) -> int:
    """Run the program with traced builds, and write what the last launch recorded."""
    tracing = importlib.import_module(
        "tessera.profiler.tracing"
    )  # needs NumPy, which is slow to import
    with knobs.compilation.scope(), tracing.traces() as found:
        knobs.compilation.instrumentation_mode = TRACE_MODE
        status = program()
    if not found.last or (name is not None and name not in found.last):
        known = ", ".join(found.last) or "none"
        print(f"no launch of {name or 'a kernel'} was traced; traced: {known}", file=sys.stderr)
        return status or 1
    trace = tracing.Trace(found.last[name or list(found.last)[-1]])
    print(trace)
    trace.save(file)
    return status
