"""Resolves the types of the native subset (`subset`) from annotations, and lays out its structures as C does."""

from __future__ import annotations

import ast
import ctypes
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tessera.backends.llvm import subset
from tessera.backends.llvm.subset import Pointer, Scalar, Struct
from tessera.errors import InternalError
from tessera.language.source_text import parse

BOOL, I64 = Scalar("bool", "i1", 1, False), Scalar("i64", "i64", 8)
F64 = Scalar("f64", "double", 8, None)


class PointerTo(NamedTuple):
    """The address of an `elem`; None: of any kind, like `object` and `bytes`."""

    elem: Type | None


class ArrayOf(NamedTuple):
    """`length` elements in place."""

    elem: Type
    length: int


class Function(NamedTuple):
    """The address of a function. `variadic`: more arguments of any type may follow."""

    params: tuple[Type, ...]
    result: Type | None
    variadic: bool = False


Type: TypeAlias = "Scalar | PointerTo | ArrayOf | Function | type[Struct]"
ANY = PointerTo(None)
_PLAIN: dict[Any, Type] = {bool: BOOL, object: ANY, bytes: ANY}


class Value(NamedTuple):
    """An operand of LLVM IR."""

    type: Type | None
    text: str


class Constant(NamedTuple):
    """A number, None or a string of Python, which has no type until it is combined with a typed operand."""

    value: Any


Operand: TypeAlias = Value | Constant


class SubsetError(InternalError):
    """A function is not in the native subset, or its types do not match."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")


def llvm_name(t: Type | None) -> str:
    """Return the LLVM IR type of a value; `void` for no value."""
    if t is None:
        return "void"
    return t.llvm if isinstance(t, Scalar) else "ptr"


def name_of(t: Type | None) -> str:
    if isinstance(t, PointerTo):
        return "object" if t.elem is None else f"Pointer[{name_of(t.elem)}]"
    if isinstance(t, Function):
        return f"Callable[[{', '.join(map(name_of, t.params))}], {name_of(t.result)}]"
    if isinstance(t, ArrayOf):
        return f"array of {t.length} {name_of(t.elem)}"
    return "None" if t is None else t.name if isinstance(t, Scalar) else t.__name__


def accepts(wanted: Type | None, given: Type | None) -> bool:
    """Whether a value of type `given` is accepted where `wanted` is expected."""
    if wanted == given or (wanted == ANY and llvm_name(given) == "ptr"):
        return True
    return isinstance(wanted, type) and isinstance(given, type) and issubclass(given, wanted)


# --- annotations -----------------------------------------------------------------------------------------------------
def type_of(node: ast.expr | None, names: Mapping[str, object], place: str) -> Type | None:
    """Return the type that an annotation names; `names`: those of its module."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        (statement,) = parse(node.value).body
        assert isinstance(statement, ast.Expr)
        node = statement.value
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return None
    found = as_type(evaluate(node, names))
    if found is None:
        raise SubsetError(place, f"{ast.unparse(node)} is no type of the native subset")
    return found


def as_type(named: object) -> Type | None:
    """Return the type that a Python object stands for; None for no type."""
    kind, of = typing.get_origin(named), typing.get_args(named)
    if kind in (typing.Union, types.UnionType):
        return as_type(of[0])
    if kind is Pointer:
        return PointerTo(as_type(of[0]))
    if kind is Callable:
        params = [p for p in map(as_type, of[0]) if p is not None]
        return Function(tuple(params), as_type(of[1])) if len(params) == len(of[0]) else None
    if kind is typing.Annotated:
        pointer = as_type(of[0])
        elem = pointer.elem if isinstance(pointer, PointerTo) else None
        return None if elem is None else ArrayOf(elem, of[1])
    if isinstance(named, Scalar) or (isinstance(named, type) and issubclass(named, Struct)):
        return named
    return _PLAIN.get(named)


def required(t: Type | None, place: str) -> Type:
    if t is None:
        raise SubsetError(place, "a value has a type of the native subset")
    return t


def evaluate(node: ast.expr, names: Mapping[str, object]) -> Any:
    """Return the Python value of an expression of the module's constants; None if it has none."""
    try:
        return eval(compile(ast.Expression(node), "<constant>", "eval"), dict(names))
    except (NameError, AttributeError, TypeError, LookupError):
        return None


def signature(node: ast.FunctionDef, names: Mapping[str, object], place: str) -> Function:
    params = [required(type_of(a.annotation, names, place), place) for a in node.args.args]
    result = type_of(node.returns, names, place)
    return Function(tuple(params), result, node.args.vararg is not None)


# --- structures ------------------------------------------------------------------------------------------------------
class Layout(NamedTuple):
    """Field → (offset in bytes, type); size in bytes of the whole."""

    fields: dict[str, tuple[int, Type]]
    size: int


@lru_cache(maxsize=256)
def layout(struct: type[Struct]) -> Layout:
    """Lay out fields in order, those of the base class first, each at a multiple of its alignment; pad the size,
    too."""
    fields: dict[str, tuple[int, Type]] = {}
    at, most = 0, 1
    for base in reversed(struct.__mro__):
        if base is Struct or not issubclass(base, Struct):
            continue
        names = vars(sys.modules[base.__module__])
        for name, text in inspect.get_annotations(base).items():
            t = required(as_type(eval(text, names)), f"{base.__name__}.{name}")
            alignment = alignment_of(t)
            at = -(-at // alignment) * alignment
            fields[name] = (at, t)
            at, most = at + size_of(t), max(most, alignment)
    return Layout(fields, -(-at // most) * most)


def size_of(t: Type) -> int:
    """Return the bytes of a value in memory: for a structure, those of its address."""
    if isinstance(t, ArrayOf):
        return t.length * size_of(t.elem)
    return t.bytes if isinstance(t, Scalar) else 8


def alignment_of(t: Type) -> int:
    return alignment_of(t.elem) if isinstance(t, ArrayOf) else size_of(t)


def offset_of(struct: type[Struct], field: str) -> int:
    """Return the offset in bytes of a structure's field."""
    return layout(struct).fields[field][0]


# --- sources ---------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=64)
def _definitions(module: str) -> dict[int, ast.FunctionDef]:
    """First line, that of the first decorator, → function of a module."""
    tree = parse(inspect.getsource(sys.modules[module]))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return {min([n.lineno, *(d.lineno for d in n.decorator_list)]): n for n in found}


def definition(function: Any) -> ast.FunctionDef:
    return _definitions(function.__module__)[function.__code__.co_firstlineno]


def place_of(function: Any, node: Any) -> str:
    return f"{Path(function.__code__.co_filename).name}:{node.lineno}"


def linkage(value: object) -> subset.Linkage | None:
    """Return how LLVM knows a function; None for anything else."""
    return subset.LINKAGE.get(value) if inspect.isfunction(value) else None


def words_of(struct: type[Struct], values: Mapping[str, int]) -> Any:
    """Return a ctypes array for a structure of 8-byte words with these values. Raises KeyError if one is missing."""
    names = layout(struct).fields
    return (ctypes.c_uint64 * len(names))(*(values[n] & (1 << 64) - 1 for n in names))
