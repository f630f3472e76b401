"""Describes compile-time values as text for the keys of compiled code, such that a changed value has another text.

The text of a function has its code, its default values, and what the code reaches by name: constants, and other
functions. The text of a module or class has the members that the code names.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from tessera.dtypes import block_type, dtype, pointer_type

PLAIN = (int, float, complex, bool, str, bytes, type(None), dtype, pointer_type, block_type, Enum)
# Libraries whose functions are known by their names: their versions do not change between two runs of a program, or
# are part of the keys anyway.
KNOWN = frozenset((*sys.stdlib_module_names, "numpy", "tessera", "torch", "triton"))


Found = list[tuple[Any, str]]  # modules, classes and functions, and the names looked up in them


class _Walk(set[int]):
    """The ids of the objects that a text already covers, and where more were found by name."""

    def __init__(self, found: Found | None):
        self.found: Found = [] if found is None else found


class CompileTimeFunction:
    """A function that runs while a kernel is compiled: its text is that of the Python function `fn`."""

    fn: Callable[..., object]


def fingerprint(value: Any, found: Found | None = None) -> str:
    """Return the text for a value that a kernel is compiled with. `found` collects where the code it reaches finds
    names."""
    return _text(value, _Walk(found))


def is_constant(value: Any) -> bool:
    """Whether `value` is a number, a string, an element type, or a container of such."""
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(map(is_constant, cast("Iterable[Any]", value)))
    if isinstance(value, dict):
        return is_constant(tuple(cast("Any", value).items()))
    return isinstance(value, PLAIN)


def own_function(value: Any) -> bool:
    """Whether `value` is a Python function of the user's."""
    return isinstance(value, FunctionType) and _package(value.__module__) not in KNOWN


def told(value: Any, found: Found | None = None) -> str:
    """Return the text for something that a kernel names; "" if there is none."""
    if isinstance(value, type) or own_function(value) or is_constant(value):
        return fingerprint(value, found)
    if isinstance(value, CompileTimeFunction):
        return fingerprint(value.fn, found)
    key = getattr(value, "cache_key", None)
    if isinstance(key, str):
        return key
    module, name = (getattr(value, x, None) for x in ("__module__", "__qualname__"))
    named = isinstance(module, str) and isinstance(
        name, str
    )  # a C function of ctypes has no qualified name
    return f"{module}.{name}" if named and callable(value) and _package(module) in KNOWN else ""


def of_known_package(x: ModuleType | type) -> bool:
    """Whether a module or a class belongs to a library that does not change while a program runs."""
    return _package(x.__name__ if isinstance(x, ModuleType) else x.__module__) in KNOWN


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _text(value: Any, seen: _Walk) -> str:
    kind = type(cast("object", value))
    if issubclass(kind, (tuple, list, set, frozenset)):
        items = [_text(x, seen) for x in value]
        ordered = sorted(items) if issubclass(kind, (set, frozenset)) else items
        fields: Any = getattr(cast("object", value), "_fields", "")
        return f"{kind.__qualname__}{fields}({', '.join(ordered)})"
    if issubclass(kind, dict):
        return f"dict({_text(tuple(value.items()), seen)})"
    if isinstance(value, CompileTimeFunction):
        value = value.fn
    if own_function(value):
        return _function(value, seen)
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if issubclass(kind, type) and _package(value.__module__) not in KNOWN:
        return _class(value, seen)
    key = getattr(cast("object", value), "cache_key", None)
    if isinstance(key, str):
        return key
    if hasattr(value, "tobytes") and not issubclass(
        kind, type
    ):  # repr of an array omits the middle
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)


_WHERE = (
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__firstlineno__",
    "__static_attributes__",
)


def _class(cls: type, seen: _Walk) -> str:
    """Return the fields, constants and methods of a class and of its base classes."""
    if id(cls) in seen:
        return cls.__qualname__
    seen.add(id(cls))
    parts: list[str] = []
    for base in cls.__mro__:
        if _package(base.__module__) not in KNOWN:
            parts += [base.__qualname__, repr(getattr(base, "__annotations__", ""))]
            found = sorted(item for item in vars(base).items() if item[0] not in _WHERE)
            seen.found += [(base, name) for name, _ in found]
            parts += [_reached(name, member, set(), seen) for name, member in found]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _function(fn: FunctionType, seen: _Walk) -> str:
    if id(fn) in seen:
        return fn.__qualname__
    seen.add(id(fn))
    names: set[str] = set()
    parts = list(_code(fn.__code__, names))
    parts += [_text(fn.__defaults__, seen), _text(fn.__kwdefaults__, seen)]
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        parts.append(_reached(name, value, names, seen))
    scope = fn.__globals__
    reached = sorted(names & scope.keys())
    seen.found += [(fn, name) for name in reached]
    parts += [_reached(name, scope[name], names, seen) for name in reached]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _code(code: CodeType, names: set[str]) -> Iterator[str]:
    """Return the text of a function's code, without its location; add all names that it uses."""
    names.update(code.co_names)
    yield code.co_code.hex()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant, names)
        else:
            yield repr(constant)
    yield repr((code.co_names, code.co_varnames))


def _reached(name: str, value: Any, names: set[str], seen: _Walk) -> str:
    """Return the text of something that code finds by name; for most objects only the name."""
    if isinstance(value, (ModuleType, type)):
        package = _package(value.__name__ if isinstance(value, ModuleType) else value.__module__)
        if package in KNOWN or id(value) in seen:
            return name
        seen.add(id(value))
        found = vars(value)
        reached = sorted(names & found.keys())
        seen.found += [(value, n) for n in reached]
        inner = [_reached(n, found[n], names, seen) for n in reached]
        return f"{name}({', '.join(inner)})"
    if isinstance(value, (staticmethod, classmethod)):
        value = cast("Any", value).__func__
    if isinstance(value, property):
        value = value.fget
    function = isinstance(value, CompileTimeFunction) or own_function(value)
    known = function or is_constant(value) or hasattr(value, "cache_key")
    inner = getattr(value, "value", None)  # of a constexpr
    if not known and is_constant(inner) and inner is not None:
        value, known = inner, True
    return f"{name}={_text(value, seen)}" if known else name
