"""Runs users' programs for the commands, and checks where these will write."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def status_of(program: Callable[[list[str]], int], args: list[str]) -> int:
    """Run the program; return the status with which it ends, also by `sys.exit`."""
    try:
        return program(args)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def add_program(parser: argparse.ArgumentParser, form: str = "SCRIPT ARGS...") -> None:
    """Let the command line end with a program: a script, or a module after `-m`, and its arguments."""
    parser.add_argument("program", nargs=argparse.REMAINDER, help=f"{form}, or -m MODULE ARGS...")
    parser.add_argument("-m", nargs=argparse.REMAINDER, dest="module", help=argparse.SUPPRESS)


def program_of(given: argparse.Namespace) -> list[str]:
    """Return the program of `add_program` as `tessera run` takes it; [] if there is none."""
    return given.program or (["-m", *given.module] if given.module else [])


def reason_of(error: BaseException) -> str:
    """Return what is wrong; of a file, as other commands say it."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def output_file(text: str) -> Path:
    """Return the path of a file to write, for argparse: before the program runs is the time to refuse it."""
    place = Path(text)
    if place.is_dir() or not place.parent.is_dir():
        what = "a folder" if place.is_dir() else f"in {place.parent}, which does not exist"
        raise argparse.ArgumentTypeError(f"{text} is {what}")
    if place.suffix == ".py":
        raise argparse.ArgumentTypeError(
            f"{text} is a program, and would be overwritten; the file to write comes first, then the program"
        )
    return place
