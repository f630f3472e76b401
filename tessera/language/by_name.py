"""Pickles what stands for a function by its name, as functions are."""

from __future__ import annotations

import sys
from typing import Any


class ByName:
    """Base of objects that a decorator puts in the place of a function: they are pickled and copied by name, where
    that finds them; else by value."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        path: str = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        return path if found is self else super().__reduce_ex__(protocol)
