"""Declares facts of the launch, NVIDIA's special registers, and `libdevice` under its older name (`tl.extra.cuda`)."""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.language.atomics import globaltimer
from tessera.language.builtin import builtin
from tessera.language.extra import libdevice

if TYPE_CHECKING:
    from tessera.language.values import constexpr, tensor


@builtin
def num_warps() -> constexpr:
    """Warps of this program, as a compile-time int.

    Example:
        >>> tl.extra.cuda.num_warps()
        int32: 4
    """


@builtin
def num_threads() -> constexpr:
    """Threads of this program, 32 for each warp, as a compile-time int.

    Example:
        >>> tl.extra.cuda.num_threads() // tl.extra.cuda.num_warps()
        int32: 32
    """


@builtin
def smid() -> tensor:
    """Number of the SM that this program runs on: an int32 scalar. On CPUs it is the thread's, in the interpreter 0.

    Source: PTX ISA, special register `%smid`.

    Example:
        >>> tl.extra.cuda.smid() >= 0
        int1: 1
    """


@builtin
def gdc_wait() -> None:
    """Wait until the grids that this launch depends on are done and their writes visible.

    This needs a launch with `launch_pdl=True` on compute capability 9.0 or later; elsewhere they are done already.

    Source: PTX ISA, `griddepcontrol.wait`.

    Example:
        >>> tl.extra.cuda.gdc_wait()
        >>> tl.load(X + i)
        fp32[8]: -2, -1, -0.5, 0, 0.5, 1, 2, 3
    """


@builtin
def gdc_launch_dependents() -> None:
    """Let the next grid start, as far as it does not wait (compute capability 9.0 or later; else nothing).

    Source: PTX ISA, `griddepcontrol.launch_dependents`.

    Example:
        >>> tl.extra.cuda.gdc_launch_dependents()
        >>> tl.load(X + i)
        fp32[8]: -2, -1, -0.5, 0, 0.5, 1, 2, 3
    """


__all__ = [
    "gdc_launch_dependents", "gdc_wait", "globaltimer", "libdevice", "num_threads", "num_warps", "smid",
]  # fmt: skip
