"""Passes and the manager that runs a list of them: valid IR in, valid IR out; verify, time and print between.

A pass is a function `fn(module, **options) -> None` registered with `@pass_("name")`; its docstring says what it
assumes and establishes. A pipeline is a list of passes with bound options, or the text `"canonicalize,licm{a=1}"`.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tessera.ir.core import Module
from tessera.ir.text import print_module
from tessera.ir.verify import verify

PassFn = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Pass:
    """A named transformation; `bind` fixes options."""

    name: str
    fn: PassFn

    def __call__(self, module: Module) -> None:
        self.fn(module)

    def bind(self, **options: Any) -> Pass:
        return Pass(self.name, partial(self.fn, **options))


PASSES: dict[str, Pass] = {}


def pass_(name: str) -> Callable[[PassFn], Pass]:
    """Register a pass under the name that pipelines and dumps use."""

    def register(fn: PassFn) -> Pass:
        if name in PASSES:
            raise TypeError(f"pass {name!r} is defined twice")
        PASSES[name] = Pass(name, fn)
        return PASSES[name]

    return register


@dataclass(slots=True)
class PassManager:
    """Runs passes in order. `timings` gets (pass name, seconds); `after` is called after each pass."""

    passes: list[Pass]
    verify: bool = False
    print_after: str = ""  # a pass name, or "all"
    after: Callable[[str, Module], None] | None = None
    timings: list[tuple[str, float]] = field(default_factory=lambda: [])

    def run(self, module: Module) -> Module:
        for p in self.passes:
            start = time.perf_counter()
            p(module)
            self.timings.append((p.name, time.perf_counter() - start))
            if self.verify:
                try:
                    verify(module)
                except Exception as e:
                    e.add_note(f"found after pass {p.name!r}")
                    raise
            if self.print_after in (p.name, "all"):
                print(f"// after {p.name}\n{print_module(module)}", file=sys.stderr)
            if self.after is not None:
                self.after(p.name, module)
        return module


_ITEM = re.compile(r"\s*([\w-]+)(?:\{([^}]*)\})?\s*(?:,|$)")


def parse_pipeline(text: str) -> list[Pass]:
    """`"a,b{x=1,y='t'}"` → passes with options bound. KeyError for an unknown name."""
    found: list[Pass] = []
    for name, options in _ITEM.findall(text):
        pairs: Iterable[list[str]] = (o.split("=", 1) for o in options.split(",") if o)
        found.append(
            PASSES[name].bind(**{k.strip(): ast.literal_eval(v.strip()) for k, v in pairs})
        )
    return found
