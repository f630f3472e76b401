"""Finds the parts of a kernel that its author has marked for a profiler: `with pl.scope("name"):`, or
`pl.enter_scope("name")` and `pl.exit_scope("name")` of `triton.profiler.language`.

A mark is a range of source lines. Records of a trace have lines, so that they belong to the marks around these,
whatever the order in which the compiler has put what is there; marks themselves cost nothing.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tessera.language.source_text import parse

LANGUAGE = "profiler.language"  # how the name of the module that marks come from ends


class Mark(NamedTuple):
    """A part of a kernel: its name, first and last line."""

    name: str
    first: int
    last: int


def marks_of(function: Callable[..., object] | None) -> tuple[Mark, ...]:
    """Return the marks of a kernel's function, outer ones first; none if its source is not known."""
    try:
        lines, start = inspect.getsourcelines(function)  # type: ignore[arg-type]  None raises TypeError
        tree = parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return ()
    found = _marks(tree, getattr(function, "__globals__", {}), len(lines))
    shifted = [Mark(name, first + start - 1, last + start - 1) for name, first, last in found]
    return tuple(sorted(shifted, key=lambda m: (m.first, -m.last)))


def _marks(tree: ast.AST, names: Mapping[str, object], end: int) -> Iterator[Mark]:
    entered: list[tuple[str, int]] = []
    nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.With, ast.Expr))]
    for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset)):
        if isinstance(node, ast.With):
            for item in node.items:
                if name := _named(item.context_expr, "scope", names):
                    yield Mark(name, node.lineno, node.end_lineno or node.lineno)
        elif name := _named(node.value, "enter_scope", names):
            entered.append((name, node.lineno))
        elif name := _named(node.value, "exit_scope", names):
            opened = next((x for x in reversed(entered) if x[0] == name), None)
            if opened is not None:
                entered.remove(opened)
                yield Mark(name, opened[1], node.lineno)
    for name, line in entered:  # to the end of the kernel
        yield Mark(name, line, end)


def _named(node: ast.expr, called: str, names: Mapping[str, object]) -> str:
    """Return the name that a call of a mark's function gives; "" for anything else."""
    if not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) != 1:
        return ""
    given = node.args[0] if node.args else node.keywords[0].value
    function = _resolved(node.func, names)
    ours = str(getattr(function, "__module__", "")).endswith(LANGUAGE)
    if (
        not ours
        or getattr(function, "__name__", "") != called
        or not isinstance(given, ast.Constant)
    ):
        return ""
    return str(given.value)


def _resolved(node: ast.expr, names: Mapping[str, object]) -> object:
    """Return what a name, or a chain of attributes of one, stands for."""
    if isinstance(node, ast.Attribute):
        return getattr(_resolved(node.value, names), node.attr, None)
    return names.get(node.id) if isinstance(node, ast.Name) else None
