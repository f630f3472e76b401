"""Finds optimisations by name: the rows of optimization_table.py.

`TESSERA_DISABLE=name,...` disables optimisations, and `TESSERA_OPT_LIMIT=n` stops after the n-th application;
`tessera/ir/applications.py` decides, counts and records.
"""

from __future__ import annotations

import difflib
import warnings

from tessera.config.optimization_table import CPU, GPU, GRAPHS, TILE_IR, Optimization
from tessera.config.types import Group, StrKnob
from tessera.errors import UnknownOptimization

ALL = "all"  # in a list of names: every one

OPTIMIZATIONS: dict[str, Optimization] = {row.name: row for row in (*TILE_IR, *GRAPHS, *GPU, *CPU)}

FORMER_NAMES = {
    "cluster-spread": "cluster-partition",
    "count-loops": "while-to-for",
    "deferred-sums": "prepack-k",
    "k-unroll": "prepack-k",
    "mma-rotate": "transpose-buffers",
    "turned-tiles": "transposed-tiles",
    "scaled-sums": "scaled-accumulators",
    "side-buffers": "memo-buffers",
    "turning-team": "transpose-role",
}
"""Former names of optimisations, which still work, with a warning."""


def names_in(text: str) -> frozenset[str]:
    """Return the optimisations in a list with commas; `all` is every one. A former name is accepted, with a
    DeprecationWarning. Raises UnknownOptimization for any other name.

    >>> sorted(names_in("licm, cse"))
    ['cse', 'licm']
    """
    found = [_current(name.strip()) for name in text.split(",")]
    if ALL in found:
        return frozenset(OPTIMIZATIONS)
    for name in found:
        if name and name not in OPTIMIZATIONS:
            near = difflib.get_close_matches(name, OPTIMIZATIONS, n=3, cutoff=0.5)
            near += [n for n in OPTIMIZATIONS if name in n and n not in near]
            raise UnknownOptimization(name=name, near=", ".join(near or OPTIMIZATIONS))
    return frozenset(filter(None, found))


def _current(name: str) -> str:
    """Return the current name of an optimisation."""
    now = FORMER_NAMES.get(name)
    if now is None:
        return name
    warnings.warn(f"the optimisation {name} is called {now} now", DeprecationWarning, stacklevel=3)
    return now


class OptimizationWarning(UserWarning):
    """A kernel was compiled without an optimisation that failed; the text names both, and a reproducer."""


class OptimizationsKnob(StrKnob):
    """Names of optimisations separated by commas."""

    kind = "names of optimisations with commas in between, or None"

    def parse(self, name: str, text: str) -> str:
        names_in(text)
        return text

    def check(self, group: Group, value: str | None) -> str | None:
        names_in(super().check(group, value) or "")
        return value
