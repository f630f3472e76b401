"""Exports as `tl.standard` the operations that are written in the language itself."""

from __future__ import annotations

from tessera.language import order, reductions
from tessera.language.order import *
from tessera.language.reductions import *

__all__: list[str] = []
__all__ += order.__all__
__all__ += reductions.__all__
