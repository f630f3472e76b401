"""Pickles what replaces a function by its name, as functions are pickled."""

from __future__ import annotations

import sys
from typing import Any


class ByName:
    """Base of objects by which a decorator replaces a function: they are pickled and copied by name if that name leads
    to them, else by value."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        path: str = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        return path if found is self else super().__reduce_ex__(protocol)
