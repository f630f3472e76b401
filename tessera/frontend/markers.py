"""Marks the lines of a kernel for debuggers: where control is, and which variables have which values there.

Kernels for the interpreter are marked in front of each statement if they call `breakpoint()` or a debugger is there.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tessera.frontend.flatten import flatten
from tessera.ir import Value
from tessera.language.values import tensor, unwrap
from tessera.ops import BreakpointOp

if TYPE_CHECKING:
    from tessera.frontend.frontend import FrontEnd


def mark(fe: FrontEnd, *, stops: bool) -> None:
    """Note the variables of the function at the builder's place; `stops`: a debugger stops here by itself."""
    names: list[str] = []
    values: list[Value] = []
    constants: list[tuple[str, object]] = []
    for name, x in fe.frame.names.items():
        if not name.isidentifier():
            continue
        inner = flatten(x)
        values += inner
        names += [name] if isinstance(x, tensor) else [f"{name}_{i}" for i in range(len(inner))]
        if not inner and isinstance(unwrap(x), bool | int | float | str):
            constants.append((name, unwrap(x)))
    fe.stops |= stops
    op = BreakpointOp(values, labels=tuple(names), constants=tuple(constants), stops=stops)
    fe.builder.insert(op)


def mark_line(fe: FrontEnd, node: ast.stmt | ast.expr) -> None:
    """Note that control reaches the line of a statement. Lines of the library are none of the user's."""
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if not fe.marks_lines or fe.combining or fe.frame.function.is_library or docstring:
        return
    saved, fe.builder.loc = fe.builder.loc, fe.loc(node)
    mark(fe, stops=False)
    fe.builder.loc = saved
