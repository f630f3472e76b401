"""`tl.extra.cuda`: facts of the launch, NVIDIA's special registers, and `libdevice` under its older name."""

from __future__ import annotations

from typing import Any

from tessera.language.builtin import builtin
from tessera.language.extra import libdevice
from tessera.language.memory import globaltimer


@builtin
def num_warps() -> Any:
    """Warps of this program, as a constexpr."""


@builtin
def num_threads() -> Any:
    """Threads of this program (32 a warp), as a constexpr."""


@builtin
def smid() -> Any:
    """Number of the multiprocessor that this program runs on (int32); on CPUs of the thread, 0 in the interpreter."""


@builtin
def gdc_wait() -> Any:
    """Wait until the grids that this launch depends on are done and their writes visible (launches with
    `launch_pdl=True` on compute capability 9.0 and later; elsewhere they are done already)."""


@builtin
def gdc_launch_dependents() -> Any:
    """Let the next grid start, as far as it does not wait (compute capability 9.0 and later; else nothing)."""


__all__ = [
    "gdc_launch_dependents", "gdc_wait", "globaltimer", "libdevice", "num_threads", "num_warps", "smid",
]  # fmt: skip
