"""Lets what the `triton` package hands on say that it is from there.

Programs that write programs go by it: TorchInductor imports what a user's kernel names from its `__module__`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def adopt(module: str, *names: str) -> None:
    """Set `__module__` of tessera's functions and classes that stand under their own names in a module of `triton`, of
    all or of those named."""
    scope = vars(sys.modules[module])
    for x in [scope[name] for name in names or tuple[Any](scope)]:
        origin = getattr(x, "__module__", None)
        known_here = scope.get(getattr(x, "__qualname__", "")) is x
        if not isinstance(x, ModuleType) and known_here and str(origin).startswith("tessera."):
            x.__module__ = module
