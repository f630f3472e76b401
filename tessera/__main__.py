"""Dispatches `python -m tessera COMMAND ...`: the commands and what they do."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tessera.compat.run import run
from tessera.tools import explain, profile, widths
from tessera.tools.bisect import bisect
from tessera.tools.cli import cache, tune
from tessera.tools.opt import opt

USAGE = """\
usage: python -m tessera run SCRIPT [ARGS...]
       python -m tessera run -m MODULE [ARGS...]
       python -m tessera cache info | clear [--older DAYS] | export FILE | import FILE
       python -m tessera bisect [--repeat N] [--timeout S] SCRIPT [ARGS...]
       python -m tessera tune --show | --export FILE | --import FILE
       python -m tessera explain [--target sm_90] [--json FILE] [--html FILE] SCRIPT[:KERNEL] [ARGS...]
       python -m tessera profile [--trace FILE] [--counts] SCRIPT [ARGS...]
       python -m tessera widths [--target sm_90] SCRIPT [ARGS...]
       python -m tessera opt [--passes NAMES] [--target sm_90] [--disable NAMES] FILE

run    runs a program in which `import triton` means tessera
cache  compiled kernels on disk: size, removal, transfer to other machines
bisect finds the application of an optimisation that makes a program wrong
explain tells for each line of a program's kernels what it moves, computes and costs, and what bounds them
profile shows the time of each kernel and scope of a program
widths tells how wide each load and store of a program's kernels is, and why it is no wider
tune   autotuning results: the best configs, a lockfile to share
opt    runs passes on IR (.tir, .gir) and prints the result
"""

HELP = ("-h", "--help", "help")
COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": run, "cache": cache, "tune": tune, "bisect": lambda args: bisect(args, run),
    "explain": lambda args: explain.command(args, run),
    "profile": lambda args: profile.command(args, run),
    "opt": opt, "widths": lambda args: widths.command(args, run),
}  # fmt: skip


def main(args: list[str]) -> int:
    """Run a command; return 2 for a malformed command line, 0 if it asks for help."""
    if args and args[0] in HELP:
        sys.stdout.write(USAGE)
        return 0
    status = COMMANDS[args[0]](args[1:]) if args and args[0] in COMMANDS else 2
    if status == 2:
        sys.stderr.write(USAGE)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
