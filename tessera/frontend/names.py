"""Resolves names and attributes: locals, then globals that must not change, then builtins."""

from __future__ import annotations

import ast
import builtins
from enum import Enum
from types import ModuleType
from typing import Any

from tessera.config import knobs
from tessera.dtypes import block_type, dtype, pointer_type
from tessera.errors import CompilationError, ForbiddenGlobal, UnknownName
from tessera.frontend.frontend import FrontEnd, handles
from tessera.frontend.remedies import unknown_attribute, unknown_variable
from tessera.language.aggregate import ConstexprFunction, is_aggregate, is_aggregate_value
from tessera.language.builtin import Builtin
from tessera.language.callable import JITCallable, jitted_under
from tessera.language.values import METHODS, BoundMethod, constexpr, tensor, wrap
from tessera.language.values import tuple as tl_tuple

PYTHON_BUILTINS: dict[str, Any] = {
    name: getattr(builtins, name)
    for name in (
        "len", "list", "range", "float", "int", "isinstance", "getattr", "hasattr", "print", "min", "max", "breakpoint"
    )
}  # fmt: skip
_FIXED = "sequences in a kernel do not change; `xs = xs + (x,)` in a `tl.static_range` loop makes a longer one"
_OWN_PACKAGES = ("tessera", "triton")
_FREE_KINDS = (
    ModuleType, JITCallable, Builtin, ConstexprFunction, constexpr, dtype, pointer_type, block_type
)  # fmt: skip


@handles(ast.Name)
def visit_name(fe: FrontEnd, node: ast.Name) -> Any:
    name, frame = node.id, fe.frame
    names = frame.names
    if name in names:
        return names[name]
    if name in frame.lost:
        error = UnknownName(name=name, help="give it a value before: every path must define it")
        raise error.note(frame.lost[name])
    for scope in (frame.closure, frame.globals):
        if name in scope:
            return _global(name, scope[name])
    if name in PYTHON_BUILTINS:
        return PYTHON_BUILTINS[name]
    known = [*names, *frame.closure, *frame.globals, *PYTHON_BUILTINS]
    remedy = unknown_variable(name, known, frame)
    raise UnknownName(name=name, help=remedy)


def _global(name: str, value: object) -> Any:
    """Return a captured global, if a kernel may capture it."""
    if not is_free(value) and not knobs.compilation.allow_non_constexpr_globals:
        if isinstance(value, type):
            remedy = f"put `@tessera.aggregate` on {name}, or make it a NamedTuple"
            if issubclass(value, Enum):
                remedy = f"pass a member as a `tl.constexpr` parameter, or write `X = tl.constexpr({name}.X)` outside"
            what = f"Unsupported function referenced: {name} is an ordinary Python class"
            raise ForbiddenGlobal(what, help=remedy)
        if callable(value):
            raise ForbiddenGlobal(
                f"Unsupported function referenced: {name} is an ordinary Python function",
                help=f"put `@tessera.jit` on {name}, or `@tessera.constexpr_function` to run it at compile time",
            )
        if getattr(value, "shape", ()):  # an array
            raise ForbiddenGlobal(name=name, help=f"pass the array as an argument, `{name}`")
        raise ForbiddenGlobal(name=name)
    return wrap(value)


def is_free(value: object) -> bool:
    """Whether a kernel may capture this global: its meaning cannot change unnoticed."""
    if value is None or isinstance(value, _FREE_KINDS):
        return True
    if isinstance(value, type):
        return is_aggregate(value) or hasattr(value, "_fields") or _is_own(value)
    # Also allowed: an autotuner or other wrapper of a jitted function, functions and enum members of the language.
    if getattr(value, "__triton_builtin__", False):
        return True
    return isinstance(jitted_under(value), JITCallable) or _is_own(value)


def _is_own(value: object) -> bool:
    if isinstance(value, bool | int | float | str | tuple | list | dict | set):
        return False
    module = getattr(value, "__module__", None) or ""
    return module.split(".", 1)[0] in _OWN_PACKAGES


# --- attributes -----------------------------------------------------------------------------------------
@handles(ast.Attribute)
def visit_attribute(fe: FrontEnd, node: ast.Attribute) -> Any:
    return attribute(fe, fe.visit(node.value), node.attr, node.value)


def attribute(fe: FrontEnd, obj: object, name: str, node: ast.expr | None = None) -> Any:
    """Return `obj.name` as a language value. Raises UnknownName if there is none. `node`: the object's expression."""
    if isinstance(obj, constexpr):
        if name == "value":
            return obj
        if name == "type":
            return obj.type
        obj = obj.value
    elif isinstance(obj, tensor) and name == "T":
        return _transposed(fe, obj)
    elif is_aggregate_value(obj):
        member = _aggregate_member(obj, name)
        if member is not None:
            return member
    try:
        return wrap(getattr(obj, name))
    except AttributeError:
        if name == "value":  # of a constexpr parameter that holds a dtype, None or a function
            return obj
        shown = "" if node is None else ast.unparse(node)
        remedy = _FIXED if isinstance(obj, tl_tuple) else unknown_attribute(obj, name, shown, fe)
        raise UnknownName(f"{_what(obj)} has no attribute {name!r}", help=remedy) from None


def _what(obj: object) -> str:
    if isinstance(obj, ModuleType):
        return f"module {obj.__name__}"
    if isinstance(obj, tensor):
        return f"a tensor ({obj})"
    return f"a value of type {type(obj).__name__}"


def _transposed(fe: FrontEnd, x: tensor) -> Any:
    if len(x.dims) != 2:
        raise CompilationError(
            f"only 2-D tensors have `.T`, this one is {x}", help="permute with `tl.permute(x, ...)`"
        )
    return fe.call(METHODS["permute"], [x, constexpr(1), constexpr(0)])


def _aggregate_member(obj: object, name: str) -> BoundMethod | None:
    """Return a method of an aggregate bound to it; None for fields and static members."""
    for cls in type(obj).__mro__:
        member = cls.__dict__.get(name)
        if member is not None:
            return BoundMethod(obj, member) if isinstance(member, (JITCallable, Builtin)) else None
    return None
