"""Runs the commands `python -m tessera.tools.replay compare BASE [HEAD]` and `... record DIR PROGRAM [ARGS...]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tessera.tools.replay.compare import Comparison, Recording, summary, write_diffs
from tessera.tools.replay.inputs import record_program
from tessera.tools.replay.trees import NoCommit, ReplayError, Settings, recording_of

QUICK = "sm_90,avx2"


def compare(given: argparse.Namespace) -> int:
    """Print the differences; return 1 if a kernel's code differs, unless allowed."""
    inputs = os.path.abspath(given.inputs) if given.inputs else ""
    targets = given.targets or ("" if given.full else QUICK if given.quick else "")
    settings = Settings(targets, given.only, inputs, given.full, given.jobs)
    before = Recording(recording_of(given.base, settings))
    after = Recording(recording_of(given.head, settings))
    found = Comparison(before, after)
    print(summary(found))
    if found.changed or found.renamed_ir:
        folder = Path(given.diffs or tempfile.mkdtemp(prefix="tessera-replay-"))
        print(f"{write_diffs(found, folder)} diffs in {folder}")
    different = found.changed or found.only_before
    return 1 if different and not given.allow else 0


def _record(given: argparse.Namespace) -> int:
    """Run the program, which may end the process itself."""
    if given.program in ([], ["-m"]):
        raise ReplayError("record needs a program: FILE ARGS, or -m MODULE ARGS")
    record_program(Path(given.folder), given.program)
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        "tessera replay", description="which kernels' code differs between two commits"
    )
    commands = found.add_subparsers(required=True)
    one = commands.add_parser("compare", help="compile everything on two commits and compare")
    one.add_argument("base", help="a commit")
    one.add_argument("head", nargs="?", help="a commit; default: the working tree")
    mode = one.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help=f"only {QUICK}, without machine code")
    mode.add_argument("--full", action="store_true", help="machine code, registers, spills, too")
    one.add_argument("--targets", default="", help="sm_90,sm_80,generic,avx2,avx512,amx")
    one.add_argument("--only", default="", help="part of a kernel's name, as in the summary")
    one.add_argument("--inputs", default="", help="folder of kernels that `record` wrote")
    one.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    one.add_argument("--diffs", default="", help="folder for the diffs; default: a new one")
    one.add_argument(
        "--allow", action="store_true", help="exit status 0 where code differs or BASE is missing"
    )
    one.set_defaults(run=compare)
    two = commands.add_parser("record", help="write the tile IR of what a program compiles")
    two.add_argument("folder")
    two.add_argument("program", nargs=argparse.REMAINDER, help="FILE ARGS, or -m MODULE ARGS")
    two.set_defaults(run=_record)
    return found


def main(arguments: list[str]) -> int:
    given = parser().parse_args(arguments)
    try:
        return given.run(given)
    except NoCommit as error:
        print(f"tessera replay: nothing is compared: {error}", file=sys.stderr)
        return 0 if given.allow else 2
    except ReplayError as error:
        print(f"tessera replay: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
