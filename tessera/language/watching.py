"""Detects changes in what code was compiled from: keeps where each value was found, and its value at that time.

A kernel depends on its text and on the values of its names when it was compiled. Names are kept in dictionaries (of
modules and classes) and in cells (of enclosing functions). A launch compares their present values; the native path
compares identities, so that a constant replaced by an equal object costs one launch through Python.
"""

from __future__ import annotations

import copy
import gc
from types import CellType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast

from tessera.language.captures import fingerprint, is_constant, of_known_package
from tessera.language.values import constexpr

GONE: Any = object()  # the value of a name that is no longer defined


class Place(NamedTuple):
    """Where something was found, a dictionary and the name in it, or a cell (name None); and its value then."""

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
    """Return the place of a name of a module, a class or a function's module; None for names of libraries, which do not
    change."""
    if isinstance(owner, FunctionType):
        return place_in(owner.__globals__, name)
    for x in owner.__mro__ if isinstance(owner, type) else (owner,):
        names = dictionary_of(x)
        if name in names:
            return None if of_known_package(x) else place_in(names, name)
    return None


def dictionary_of(x: ModuleType | type) -> dict[str, Any]:
    """Return the dictionary of a module's or class's names itself: a class only shows a proxy of its own."""
    if isinstance(x, ModuleType):
        return vars(x)
    return cast("dict[str, Any]", gc.get_referents(vars(x))[0])


def frozen(x: Any) -> Any:
    """Return `x` as it is now: a copy of a constant that can change in place, so that the change is noticed."""
    inner = x.value if isinstance(x, constexpr) else x
    return copy.deepcopy(x) if is_constant(inner) and _can_change(inner) else x


def _can_change(x: Any) -> bool:
    if isinstance(x, tuple):
        return any(map(_can_change, cast("tuple[Any, ...]", x)))
    return isinstance(x, (list, dict, set))


def same(a: Any, b: Any) -> bool:
    """Whether code compiled for `a` is valid for `b`: the same object, or equal constants (1, 1.0 and True differ)."""
    if a is b:
        return True
    if isinstance(a, constexpr) and isinstance(b, constexpr):
        a, b = a.value, b.value
    if not (is_constant(a) and is_constant(b)):
        return False
    return fingerprint(a) == fingerprint(b)
