"""Finds the help line for mistakes whose remedy depends on the place: unknown names, operations called with wrong
arguments, run-time values where a compile-time one is needed."""

from __future__ import annotations

import ast
import inspect
import linecache
from types import ModuleType

from tessera import language
from tessera.errors import CompileTimeAssertionFailure, NotConstexpr, TesseraError, suggestion
from tessera.frontend.flatten import type_text
from tessera.frontend.foreign_names import METHODS_ELSEWHERE, OPERATIONS, PYTHON
from tessera.frontend.frontend import Frame, FrontEnd
from tessera.frontend.semantics.values import describe
from tessera.language import extra, hints
from tessera.language.builtin import Builtin
from tessera.language.callable import JITCallable
from tessera.language.descriptor import tensor_descriptor
from tessera.language.values import (
    DESCRIPTOR_METHODS,
    METHODS,
    BoundMethod,
    constexpr,
    is_runtime,
    tensor,
)

OF_TENSORS = ("to", "dtype", "shape", "type", "numel", "T")  # beside METHODS
UNASSIGNED = "assign it before this line, or make it a parameter of the function"
LONGEST_FIRST_LINE = 120  # characters of a docstring's first sentence that a help line repeats


# --- unknown names ---------------------------------------------------------------------------------------------
def unknown_variable(name: str, known: list[str], frame: Frame) -> str:
    """Return the help line for a name that means nothing in a kernel."""
    if name in PYTHON:
        return PYTHON[name]
    if name in METHODS:
        return f"did you mean `tl.{name}`?"
    for node in ast.walk(frame.source.node):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            line = node.lineno + frame.source.def_line - 1
            return f"its only assignment is on line {line}, which has not run: assign it before"
    return suggestion(name, known) or UNASSIGNED


def unknown_attribute(obj: object, name: str, shown: str, fe: FrontEnd) -> str:
    """Return the help line for an attribute that `obj`, written `shown` in the kernel, lacks."""
    if isinstance(obj, tensor):
        return _unknown_method(name, shown)
    if isinstance(obj, int | float) and shown and (name in METHODS or name in OF_TENSORS):
        made = f"a number known at compile time is no tensor: write `tl.to_tensor({shown}).{name}`"
        at = fe.frame
        if at.is_kernel and shown in at.function.arg_names and shown not in at.constant:
            made += f"; an argument of 1 is one but for `@jit(do_not_specialize=[{shown!r}])`"
        return made
    known = [n for n in dir(obj) if not n.startswith("_")]
    if isinstance(obj, tensor_descriptor):
        known += DESCRIPTOR_METHODS
    near = suggestion(name, known, f"{shown}." if shown else "")
    if not isinstance(obj, ModuleType):
        return near or f"there is {', '.join(known) or 'none'}"
    if not obj.__name__.startswith("tessera.language"):
        return near or f"correct the name: {obj.__name__} does not have it"
    if name in OPERATIONS:
        return OPERATIONS[name]
    if obj is not extra.libdevice and hasattr(extra.libdevice, name):
        return f"it is a function of libdevice: write `tl.extra.libdevice.{name}(...)`"
    return near or "the language reference lists what there is"


def _unknown_method(name: str, shown: str) -> str:
    if name in METHODS_ELSEWHERE:
        return METHODS_ELSEWHERE[name]
    near = suggestion(name, [*METHODS, *OF_TENSORS])
    listed = f"the language reference has the methods of tiles; type and extents: `{shown}.dtype` and `{shown}.shape`"
    return near or listed


def in_tl(name: str) -> str:
    """Return what a function of `math` or NumPy is called in a kernel; "" if there is no such operation."""
    if name in METHODS or isinstance(getattr(language, name, None), Builtin | JITCallable):
        return f"tl.{name}"
    return f"tl.extra.libdevice.{name}" if hasattr(extra.libdevice, name) else ""


# --- calls --------------------------------------------------------------------------------------------------------
def complete(error: TesseraError, node: ast.Call, function: object, frame: Frame) -> None:
    """Add to an error of a call what only the place tells: the variable that is no compile-time value, the condition
    that does not hold, or how the operation is called."""
    if frame.function.is_library:  # its users see the call in their own kernel
        return
    if isinstance(error, NotConstexpr) and error.help == NotConstexpr.help:
        error.help = _runtime_variable(error, node, frame) or error.help
    elif (
        function is hints.static_assert
        and isinstance(error, CompileTimeAssertionFailure)
        and node.args
    ):
        known = {
            n.id: frame.names.get(n.id) for n in ast.walk(node.args[0]) if isinstance(n, ast.Name)
        }
        shown = [f"{name} = {x}" for name, x in known.items() if isinstance(x, constexpr)]
        demand = f"the kernel demands `{ast.unparse(node.args[0])}`"
        error.help = f"{demand}, with {', '.join(shown)}" if shown else demand
    elif not error.help and (call := signature_of(function)):
        error.help = f"the call is {call}"


def _runtime_variable(error: NotConstexpr, node: ast.Call, frame: Frame) -> str | None:
    params = {p.name for p in frame.function.params if not p.is_constexpr}
    for inner in ast.walk(node):
        x = frame.names.get(inner.id) if isinstance(inner, ast.Name) else None
        if not isinstance(inner, ast.Name) or not is_runtime(x):
            continue
        if not error.message.endswith((f"got {describe(x)}", f"got {type_text(x)}")):
            continue
        if inner.id in params:
            where = f"the parameter of {frame.function.__name__}"
            return (
                f"annotate {where}: `{inner.id}: tl.constexpr`; each value is compiled on its own"
            )
        return f"`{inner.id}` is computed when the kernel runs: compute it from `tl.constexpr` values only"
    return None


def signature_of(function: object) -> str:
    """Return the call of an operation or function as its documentation shows it; "" if it has no signature."""
    target = function.function if isinstance(function, BoundMethod) else function
    if not isinstance(target, (Builtin, JITCallable)):
        return ""
    shown = [
        p.name if p.default is p.empty else f"{p.name}={p.default!r}"
        for p in target.signature.parameters.values()
        if p.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    first = " ".join((target.__doc__ or "").strip().split("\n\n")[0].split())
    what = f": {first}" if 0 < len(first) < LONGEST_FIRST_LINE else ""
    return f"{target.__name__}({', '.join(shown)}){what}"


def warn_of_precedence(fe: FrontEnd, node: ast.Compare) -> None:
    """Warn of `i >= 0 & i < n`, which is the chain `i >= (0 & i) < n`."""
    for x in node.comparators[:-1]:
        if not (isinstance(x, ast.BinOp) and isinstance(x.op, ast.BitAnd | ast.BitOr)):
            continue
        at = fe.loc(x)
        if linecache.getline(at.file, at.line)[: at.col].rstrip().endswith("("):
            continue  # meant so
        fe.builder.loc = at
        fe.warn(
            "`&` and `|` bind before comparisons: write `(a) & (b)` with parentheses around each"
        )
