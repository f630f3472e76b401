"""Defines passes and the manager that runs a list of them. A pass turns valid IR into valid IR; the manager verifies,
times and prints in between.

A pass is a function `fn(module, **options) -> None` registered with `@pass_("name")`; its docstring says what it
assumes and establishes. A pipeline is a list of passes with bound options, or the text `"canonicalize,licm{a=1}"`.
A pass that is not needed for correctness is an *optimization* (ir/applications.py): it can be switched off, and the
module is verified after each applied one, so that a fault is found where it was made.
"""

from __future__ import annotations

import ast
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tessera.config import knobs
from tessera.config.budget import check_budget
from tessera.config.optimizations import OPTIMIZATIONS
from tessera.errors import suggestion
from tessera.ir.applications import apply, current, may_apply, refuse
from tessera.ir.core import Module
from tessera.ir.fields import clock
from tessera.ir.text import print_module
from tessera.ir.verify import verify

PassFn = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Pass:
    """A named transformation; `bind` fixes options. `optimization`: the name by which it is switched off; `counts`:
    it asks for each application itself; otherwise one run over a module is one application."""

    name: str
    fn: PassFn
    optimization: str = ""
    counts: bool = False

    def __call__(self, module: Module) -> None:
        if self._is_wanted(module):
            self.fn(module)

    def _is_wanted(self, module: Module) -> bool:
        if not self.optimization:
            return True
        if not self.counts:
            return apply(self.optimization, module)
        return may_apply(self.optimization) or refuse(self.optimization)

    def bind(self, **options: object) -> Pass:
        return replace(self, fn=partial(self.fn, **options))


PASSES: dict[str, Pass] = {}
FORMER_NAMES = {
    "count-loops": "while-to-for",
    "join-loads": "multicast-loads",
    "keep-whole": "descriptor-to-pointer",
    "overlap-products": "async-mma",
    "pipeline": "schedule-loops",
    "prefetch": "schedule-streams",
    "software-pipeline": "schedule-loops",
    "specialize": "schedule-roles",
    "warp-specialize": "schedule-roles",
}
"""Former names of passes. They still work, with a warning, as do names with underscores for hyphens."""
PASS_NAMES = (
    "accelerate", "aligned-extents", "allocate-shared", "assign-layouts", "async-mma", "barriers", "canonicalize",
    "check-resources", "checks", "coalesce", "cse", "descriptor-to-pointer", "exchange-partners", "expand-loops",
    "graph-add-biases", "graph-canonicalize",
    "graph-channels-last", "graph-cse", "graph-drop-roundings", "graph-expand-scatters", "graph-expand-sorts",
    "graph-fuse", "graph-narrow-results", "graph-place-parts", "graph-recompute-expanded", "graph-reduce-scatters",
    "graph-sink-scalars", "insert-trace",
    "known-comparisons", "licm", "lower-descriptor-rows", "lower-descriptors", "multicast-loads",
    "narrow-accumulators", "narrow-division", "narrow-tiles", "number-tensor-maps", "partition-cluster", "peel-first",
    "persist", "pointer-to-tma", "repeated-loads",
    "scalarise-inductions", "scan-positions", "schedule-loops", "schedule-roles", "schedule-streams",
    "select-tensor-maps", "split-loops", "synchronized",
    "transpose-buffers", "unroll", "while-to-for", "wide-index", "widen-float8",
)  # fmt: skip
"""All passes of tessera; PASSES has only those whose modules this process has imported."""


def current_name(name: str) -> str:
    """Return the current name of a pass, or an unknown name unchanged. DeprecationWarning for a former name."""
    hyphened = name.replace("_", "-")
    now = FORMER_NAMES.get(hyphened, hyphened)
    if name == now or name in PASSES or now not in (*PASSES, *PASS_NAMES):
        return name
    warnings.warn(f"the pass {name} is called {now} now", DeprecationWarning, stacklevel=3)
    return now


def _no_pass(name: str) -> str:
    """Return the error message for a name that no pass has."""
    known = sorted({*PASSES, *PASS_NAMES})
    near = suggestion(name.replace("_", "-"), known)
    return f"no pass {name!r}; {near or 'there are: ' + ', '.join(known)}"


def passes_to_print(names: str) -> set[str]:
    """Return the passes of `"a,b"` by their current names. UserWarning for an unknown name."""
    shown = {current_name(x) for name in names.split(",") if (x := name.strip())}
    for name in sorted(shown - {"all"}):
        if name not in PASSES and name not in PASS_NAMES:
            warnings.warn(f"TESSERA_PRINT_AFTER: {_no_pass(name)}", UserWarning, stacklevel=3)
    return shown


def pass_(name: str, optimization: str = "", counts: bool = False) -> Callable[[PassFn], Pass]:
    """Register a pass by the name that pipelines and dumps use."""

    def register(fn: PassFn) -> Pass:
        if name in PASSES:
            raise TypeError(f"pass {name!r} is defined twice")
        if optimization and optimization not in OPTIMIZATIONS:
            raise TypeError(f"pass {name!r}: no optimisation {optimization!r}")
        PASSES[name] = Pass(name, fn, optimization, counts)
        return PASSES[name]

    return register


@dataclass(slots=True)
class PassManager:
    """Runs passes in order. `timings` collects (pass name, seconds); `after` is called after each pass.

    With `verify`, the module is checked before the first pass and after each one; otherwise only changes by passes that
    applied an optimisation are. Errors name the pass at fault. `print_after`: names of passes separated by commas, or
    "all"; by default those of TESSERA_PRINT_AFTER.
    """

    passes: list[Pass]
    verify: bool = False
    print_after: str | None = None
    after: Callable[[str, Module], None] | None = None
    timings: list[tuple[str, float]] = field(default_factory=lambda: [])

    def run(self, module: Module) -> Module:
        if self.verify:
            self._check(module, "before the first pass")
        wanted = knobs.compilation.print_after if self.print_after is None else self.print_after
        shown = passes_to_print(wanted or "")
        for p in self.passes:
            check_budget(f"pass {p.name!r}")
            start = time.perf_counter()
            self._run(p, module)
            self.timings.append((p.name, time.perf_counter() - start))
            if not shown.isdisjoint((p.name, "all")):
                print(f"// after {p.name}\n{print_module(module)}", file=sys.stderr)
            if self.after is not None:
                self.after(p.name, module)
        return module

    def _run(self, p: Pass, module: Module) -> None:
        """Run one pass. If it fails, its last application is suspected; if the verifier rejects its result, all of its
        applications are."""
        session, start = current(), clock.tick()
        before = len(session.applied) if session is not None else 0
        try:
            p(module)
        except Exception as e:
            e.add_note(f"in pass {p.name!r}")
            if session is not None:
                if p.optimization and len(session.applied) == before:
                    session.note(
                        p.optimization, "pass", None
                    )  # it failed before its first application
                session.suspects = session.applied[before:][-1:]
            raise
        applied = session.applied[before:] if session is not None else []
        if self.verify or applied:
            try:
                self._check(module, f"after pass {p.name!r}", 0 if self.verify else start)
            except Exception:
                if session is not None:
                    session.suspects = applied
                raise

    def _check(self, module: Module, when: str, since: int = 0) -> None:
        try:
            verify(module, since)
        except Exception as e:
            e.add_note(f"found {when}")
            raise


_ITEM = re.compile(r"\s*([\w-]+)\s*(?:\{([^}]*)\})?\s*(,|$)")


def parse_pipeline(text: str) -> list[Pass]:
    """Return the passes of `"a,b{x=1,y='t'}"`, with options (Python literals) bound.

    Raises KeyError for an unknown name, ValueError for text that is no pipeline.
    """
    found: list[Pass] = []
    at, more = 0, bool(text.strip())
    while more:
        item = _ITEM.match(text, at)
        if item is None:
            raise ValueError(f"not a pipeline at {text[at:]!r}: write `pass,pass{{option=1}}`")
        name, options, comma = item.groups()
        name = current_name(name)
        if name not in PASSES:
            raise KeyError(_no_pass(name))
        found.append(PASSES[name].bind(**_options(options or "")))
        at, more = item.end(), bool(comma)
    return found


def _options(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        return {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg is not None}
    except (SyntaxError, AssertionError) as e:
        raise ValueError(f"{{{text}}} are no options: write `option=1,other='x'`") from e
