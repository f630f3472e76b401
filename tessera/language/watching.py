"""Notices when what code was compiled from has changed: keeps where it was found, and what it was then.

A kernel stands for its text and for what its names stood for when it was compiled. Names live in dictionaries (of
modules and classes) and in cells (of enclosing functions). A launch compares what is there now; the native path by
identity, so that a constant that is a new but equal object costs one launch through Python.
"""

from __future__ import annotations

import copy
import gc
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast

from tessera.language.captures import fingerprint, is_constant, of_known_package
from tessera.language.values import constexpr

GONE: Any = object()  # what a name stands for that nobody defines any more


class Place(NamedTuple):
    """Where something was found: a dictionary and the name in it, or a cell (name None); and what it was."""

    scope: Any
    name: str | None
    seen: Any

    def now(self) -> Any:
        if self.name is not None:
            return self.scope.get(self.name, GONE)
        try:
            return self.scope.cell_contents
        except ValueError:
            return GONE

    @property
    def key(self) -> tuple[str, int]:
        return (self.name or "", id(self.scope))


def place_in(scope: dict[str, Any], name: str) -> Place:
    return Place(scope, name, frozen(scope[name]))


def place_of_cell(cell: CellType) -> Place:
    return Place(cell, None, frozen(cell.cell_contents))


def place_of_name(owner: Any, name: str) -> Place | None:
    """Where a name of a module, a class or a function's module is kept; None for those of libraries, which do not
    change."""
    if isinstance(owner, FunctionType):
        return place_in(owner.__globals__, name)
    for x in owner.__mro__ if isinstance(owner, type) else (owner,):
        names = dictionary_of(x)
        if name in names:
            return None if of_known_package(x) else place_in(names, name)
    return None


def dictionary_of(x: ModuleType | type) -> dict[str, Any]:
    """The names of a module or a class, themselves: a class shows its own through a proxy only."""
    if isinstance(x, ModuleType):
        return vars(x)
    return cast("dict[str, Any]", gc.get_referents(vars(x))[0])


def frozen(x: Any) -> Any:
    """`x` as it is now: a copy of a constant that can change in place, so that such a change is noticed."""
    inner = x.value if isinstance(x, constexpr) else x
    return copy.deepcopy(x) if is_constant(inner) and _can_change(inner) else x


def _can_change(x: Any) -> bool:
    if isinstance(x, tuple):
        return any(map(_can_change, cast("tuple[Any, ...]", x)))
    return isinstance(x, (list, dict, set))


def same(a: Any, b: Any) -> bool:
    """Whether code compiled for `a` is right for `b`: the same object, or equal constants (1, 1.0 and True differ)."""
    if a is b:
        return True
    if isinstance(a, constexpr) and isinstance(b, constexpr):
        a, b = a.value, b.value
    if not (is_constant(a) and is_constant(b)):
        return False
    return fingerprint(a) == fingerprint(b)
