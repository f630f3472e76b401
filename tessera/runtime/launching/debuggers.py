"""Tells whether a debugger follows the program, so that kernels on the interpreter are made for it."""

from __future__ import annotations

import sys

from tessera.ops.trace import LINES_MODE


def lines_mode() -> str:
    """Return the `instrumentation_mode` that a debugger needs: "" without one."""
    return LINES_MODE if _attached() else ""


def _attached() -> bool:
    """Whether pdb or another debugger made of bdb is there, pydevd, or one that uses `sys.monitoring`."""
    monitoring = getattr(sys, "monitoring", None)  # of Python 3.12 and newer
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    trace, bdb = sys.gettrace(), sys.modules.get("bdb")
    if bdb is not None and isinstance(getattr(trace, "__self__", None), bdb.Bdb):
        return True
    return "pydevd" in f"{getattr(trace, '__module__', '')} {type(trace).__module__}"
