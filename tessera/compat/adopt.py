"""Makes objects that the `triton` package exports name it as their module.

Programs that generate programs rely on that: TorchInductor imports names in a user's kernel from their `__module__`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def adopt(module: str, *names: str) -> None:
    """Set `__module__` of tessera's functions and classes that a module of `triton` exports under their own names: of
    all, or of those named."""
    scope = vars(sys.modules[module])
    for x in [scope[name] for name in names or tuple[Any](scope)]:
        origin = getattr(x, "__module__", None)
        known_here = scope.get(getattr(x, "__qualname__", "")) is x
        if not isinstance(x, ModuleType) and known_here and str(origin).startswith("tessera."):
            x.__module__ = module
