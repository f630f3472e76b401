"""`triton.runtime.interpreter`."""

from __future__ import annotations

from typing import Any

from tessera.compat.absent import absent
from tessera.errors import InterpreterError
from tessera.runtime.jit import JITFunction


class InterpretedFunction(JITFunction[...]):
    """A jitted function that always runs on the NumPy interpreter."""

    def __init__(self, fn: Any, **options: Any) -> None:
        super().__init__(fn, **options)
        self._interpret = True


__all__ = ["InterpretedFunction", "InterpreterError"]
__getattr__ = absent(__name__)
