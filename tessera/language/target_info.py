"""Tells a kernel what it is being compiled for, as compile-time values (`tl.target_info`)."""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.language.builtin import builtin

if TYPE_CHECKING:
    from tessera.language.operand_types import IntLike
    from tessera.language.values import constexpr


@builtin
def current_target() -> constexpr:
    """The `GPUTarget` of this compilation, as a compile-time value with `backend`, `arch` and `warp_size`.

    Example:
        >>> tl.target_info.current_target().backend == "cuda"
        int1: 0
    """


@builtin
def is_cuda() -> constexpr:
    """Whether the target is an NVIDIA GPU, as a compile-time bool.

    Example:
        >>> tl.target_info.is_cuda()
        int1: 0
    """


@builtin
def is_hip() -> constexpr:
    """Whether the target is an AMD GPU, as a compile-time bool.

    Example:
        >>> tl.target_info.is_hip()
        int1: 0
    """


@builtin
def is_hip_cdna3() -> constexpr:
    """Whether the target is an AMD GPU of the CDNA 3 family, as a compile-time bool.

    Example:
        >>> tl.target_info.is_hip_cdna3()
        int1: 0
    """


@builtin
def is_hip_cdna4() -> constexpr:
    """Whether the target is an AMD GPU of the CDNA 4 family, as a compile-time bool.

    Example:
        >>> tl.target_info.is_hip_cdna4()
        int1: 0
    """


@builtin
def is_hip_gfx1250() -> constexpr:
    """Whether the target is an AMD GPU of the family gfx1250, as a compile-time bool.

    Example:
        >>> tl.target_info.is_hip_gfx1250()
        int1: 0
    """


@builtin
def cuda_capability_geq(major: IntLike, minor: IntLike = 0) -> constexpr:
    """Whether the target is an NVIDIA GPU of at least the compute capability `major`.`minor`, as a compile-time bool.

    Raises:
        not-constexpr: a number is known at run time only: `tl.target_info.cuda_capability_geq(tl.num_programs(0))`.

    Example:
        >>> tl.target_info.cuda_capability_geq(9, 0)
        int1: 0
    """
