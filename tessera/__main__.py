"""`python -m tessera COMMAND ...`: the commands and what they do."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tessera.compat.run import run

USAGE = """\
usage: python -m tessera run SCRIPT [ARGS...]
       python -m tessera run -m MODULE [ARGS...]

run   runs a program in which `import triton` means tessera
"""

COMMANDS: dict[str, Callable[[list[str]], int]] = {"run": run}


def main(args: list[str]) -> int:
    """Run a command; 2 for a command line that makes no sense."""
    status = COMMANDS[args[0]](args[1:]) if args and args[0] in COMMANDS else 2
    if status == 2:
        sys.stderr.write(USAGE)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
