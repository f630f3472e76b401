"""`tl.target_info`: what a kernel is being compiled for, as compile-time values."""

from __future__ import annotations

from typing import Any

from tessera.language.builtin import builtin


@builtin
def current_target() -> Any:
    """The `GPUTarget` of this compilation (backend, arch, warp_size)."""


@builtin
def is_cuda() -> Any:
    """Whether the target is an NVIDIA GPU."""


@builtin
def is_hip() -> Any:
    """Whether the target is an AMD GPU."""


@builtin
def is_hip_cdna3() -> Any:
    """Whether the target is an AMD GPU of the CDNA 3 family."""


@builtin
def is_hip_cdna4() -> Any:
    """Whether the target is an AMD GPU of the CDNA 4 family."""


@builtin
def is_hip_gfx1250() -> Any:
    """Whether the target is an AMD GPU of the family gfx1250."""


@builtin
def cuda_capability_geq(major: Any, minor: Any = 0) -> Any:
    """Whether the target is an NVIDIA GPU of at least this compute capability."""
