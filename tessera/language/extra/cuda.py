"""`tl.extra.cuda`: facts of the launch, and `libdevice` under its older name."""

from __future__ import annotations

from typing import Any

from tessera.language.builtin import builtin
from tessera.language.extra import libdevice


@builtin
def num_warps() -> Any:
    """Warps of this program, as a constexpr."""


@builtin
def num_threads() -> Any:
    """Threads of this program (32 a warp), as a constexpr."""


__all__ = ["libdevice", "num_threads", "num_warps"]
