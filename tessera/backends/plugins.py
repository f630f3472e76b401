"""Finds back ends of other distributions: entry points of the group `tessera.backends` (see docs/backends.md)."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from tessera.backends.compiler import Backend
from tessera.errors import PluginError

GROUP = "tessera.backends"


def _points(**selection: str) -> Any:
    """Return the group's entry points. The module that reads them takes 30 ms to import, so it is imported lazily."""
    return import_module("importlib.metadata").entry_points(group=GROUP, **selection)


def plugin_names() -> list[str]:
    """Return the names of targets that installed plug-ins offer, without importing them."""
    return sorted({point.name for point in _points()})


@cache
def plugin(name: str) -> Any:
    """Return the object of entry point `name`, with `compiler` (a Backend) and `driver` (a Driver); None without one.

    Raises PluginError if it cannot be imported or is not of that kind.
    """
    points = _points(name=name)
    if not points:
        return None
    point = next(iter(points))
    try:
        found: object = point.load()
    except Exception as error:
        raise PluginError(name=name, why=f"{type(error).__name__}: {error}") from error
    compiler = getattr(found, "compiler", None)
    if not (isinstance(compiler, type) and issubclass(compiler, Backend)):
        raise PluginError(
            name=name, why=f"{point.value} has no class `compiler` derived from Backend"
        )
    if not callable(getattr(found, "driver", None)):
        raise PluginError(name=name, why=f"{point.value} has no `driver`")
    if compiler.name != name:
        raise PluginError(name=name, why=f"its compiler calls itself {compiler.name!r}")
    return found
