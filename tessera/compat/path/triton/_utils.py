"""`triton._utils`: walks over nested tuples by index path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tessera.compat.absent import absent

Path = tuple[int, ...]


def get_iterable_path(values: Any, path: Path) -> Any:
    """The element at an index path: `values[1][0]` for (1, 0)."""
    for i in path:
        values = values[i]
    return values


def find_paths_if(values: object, wanted: Callable[[Path, Any], bool]) -> list[Path]:
    """Index paths of the leaves for which `wanted(path, leaf)` holds."""
    found: list[Path] = []

    def walk(x: object, path: Path) -> None:
        if isinstance(x, (tuple, list)):
            for i, y in enumerate(cast("tuple[Any, ...]", x)):
                walk(y, (*path, i))
        elif wanted(path, x):
            found.append(path)

    leaves = cast("tuple[object, ...]", values) if isinstance(values, (tuple, list)) else (values,)
    walk(leaves, ())
    return found


__getattr__ = absent(__name__)
