# ruff: noqa: E501  rows of tables
"""Writes docs/optimizations.md from the table of optimisations (`pages.py`)."""

from __future__ import annotations

from tessera.config.optimizations import OPTIMIZATIONS, Optimization

INTRODUCTION = """\
# Optimisations

Generated from `tessera/config/optimization_table.py` by `python -m tessera.tools.pages optimizations`.

Each transformation that a right result does not need has a name. `TESSERA_DISABLE=name,...` (`all`: every one) leaves
it out, and so does the option `disable_optimizations="name,..."` of a launch or an autotuner's config. What is not listed
here, such as layouts, barriers, or arithmetic on 8-bit floats in fp32, is needed for correctness.

Each *application* (to an op, a loop, a block or a whole kernel, as the column "unit" says) is asked for, numbered and
remembered in one place, `tessera/ir/applications.py`. `TESSERA_OPT_LIMIT=n` stops after the n-th application in the
process, and prints each; `-1` only prints. Numbers run through all kernels in the order in which they are compiled.

The verifier runs after each pass that applied one. If it finds a fault, if the pass raises an exception, or if a later
stage fails that does not fail without the optimisation, the kernel is compiled without it: with an
`OptimizationWarning` that names the optimisation, the kernel and a reproducer, and a line in `kernel.metadata.remarks`.
`TESSERA_STRICT=1` makes it an error. Mistakes in a kernel are never tried again.

How to find the application that makes a kernel wrong: [debugging.md](debugging.md).
"""

TITLES = {"cpu gpu": "On tile IR, for all targets", "gpu": "For GPUs", "cpu": "For CPUs"}


def row(o: Optimization) -> str:
    cells = (f"`{o.name}`", o.does, o.unit, o.assumes, o.proven_by, o.tests)
    return f"| {' | '.join(cells)} |"


def render() -> str:
    lines = [INTRODUCTION]
    for targets, title in TITLES.items():
        rows = [row(o) for o in OPTIMIZATIONS.values() if o.targets == targets]
        if rows:
            lines += [f"## {title}", ""]
            lines += [
                "| name | what it does | unit | assumes | proven by | tests |",
                "|---|---|---|---|---|---|",
            ]
            lines += [*rows, ""]
    return "\n".join(lines)
