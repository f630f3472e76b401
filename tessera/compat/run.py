"""Runs a whole program with tessera in the place of Triton (`python -m tessera run`)."""

from __future__ import annotations

import os
import runpy
import sys

from tessera.compat.install import PATH, install


def run(args: list[str]) -> int:
    """Run a script, or a module after `-m`, as Python would. 2 when nothing is named."""
    if not args or args == ["-m"]:
        return 2
    install()
    rest = [p for p in sys.path if p != str(PATH)]
    if args[0] == "-m":
        sys.argv = args[1:]
        sys.path[:] = [str(PATH), os.getcwd(), *rest]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(args)
        sys.path[:] = [str(PATH), os.path.dirname(os.path.abspath(args[0])), *rest]
        runpy.run_path(args[0], run_name="__main__")
    return 0
