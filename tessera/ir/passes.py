"""Passes and the manager that runs a list of them: valid IR in, valid IR out; verify, time and print between.

A pass is a function `fn(module, **options) -> None` registered with `@pass_("name")`; its docstring says what it
assumes and establishes. A pipeline is a list of passes with bound options, or the text `"canonicalize,licm{a=1}"`.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tessera.config.budget import check_budget
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
    """Runs passes in order. `timings` gets (pass name, seconds); `after` is called after each pass.

    With `verify` the module is checked before the first pass and after each; errors say which pass broke it.
    """

    passes: list[Pass]
    verify: bool = False
    print_after: str = ""  # a pass name, or "all"
    after: Callable[[str, Module], None] | None = None
    timings: list[tuple[str, float]] = field(default_factory=lambda: [])

    def run(self, module: Module) -> Module:
        self._check(module, "before the first pass")
        for p in self.passes:
            check_budget(f"pass {p.name!r}")
            start = time.perf_counter()
            try:
                p(module)
            except Exception as e:
                e.add_note(f"in pass {p.name!r}")
                raise
            self.timings.append((p.name, time.perf_counter() - start))
            self._check(module, f"after pass {p.name!r}")
            if self.print_after in (p.name, "all"):
                print(f"// after {p.name}\n{print_module(module)}", file=sys.stderr)
            if self.after is not None:
                self.after(p.name, module)
        return module

    def _check(self, module: Module, when: str) -> None:
        if not self.verify:
            return
        try:
            verify(module)
        except Exception as e:
            e.add_note(f"found {when}")
            raise


_ITEM = re.compile(r"\s*([\w-]+)\s*(?:\{([^}]*)\})?\s*(,|$)")


def parse_pipeline(text: str) -> list[Pass]:
    """`"a,b{x=1,y='t'}"` → passes with options (Python literals) bound.

    KeyError for an unknown name, ValueError for text that is no pipeline.
    """
    found: list[Pass] = []
    at, more = 0, bool(text.strip())
    while more:
        item = _ITEM.match(text, at)
        if item is None:
            raise ValueError(f"not a pipeline at {text[at:]!r}: write `pass,pass{{option=1}}`")
        name, options, comma = item.groups()
        if name not in PASSES:
            raise KeyError(f"no pass {name!r}; there are: {', '.join(sorted(PASSES))}")
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
