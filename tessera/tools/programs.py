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


def output_file(text: str) -> Path:
    """Return the path of a file to write, for argparse: before the program runs is the time to refuse it."""
    place = Path(text)
    if place.is_dir() or not place.parent.is_dir():
        what = "a folder" if place.is_dir() else f"in {place.parent}, which does not exist"
        raise argparse.ArgumentTypeError(f"{text} is {what}")
    return place
