"""Assembles PTX to cubins by ptxas, or by the library nvJitLink if a knob asks for it or there is no ptxas.

nvJitLink needs no process and takes a third to two thirds of the time. But it assembles for linking: it ignores
`setmaxnreg`, so that the warps of all roles keep the registers of their launch, and it orders instructions differently.
Fast code therefore comes from ptxas wherever that is available.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.nvidia import jitlink, ptxas
from tessera.backends.nvidia.ptxas import Assembled
from tessera.config import knobs
from tessera.errors import ToolNotFound


def by_library(arch: str = "") -> bool:
    """Whether nvJitLink assembles for `arch`. Raises ToolNotFound if neither it nor ptxas is available."""
    if knobs.nvidia.use_jitlink:
        return jitlink.available()
    try:
        ptxas.ptxas_for(arch)
    except ToolNotFound:
        if knobs.nvidia.ptxas or not jitlink.available():
            raise
        return True
    return False


def release(arch: str = "") -> str:
    """Return the CUDA release of the assembler."""
    return jitlink.version() if by_library(arch) else ptxas.version(ptxas.ptxas_for(arch))


def identity(arch: str = "") -> str:
    """Return the assembler's name and release, for cache keys."""
    return f"{'nvjitlink' if by_library(arch) else 'ptxas'}-{release(arch)}"


def newest_ptx(arch: str = "") -> int:
    """Return the newest PTX ISA, major * 10 + minor, that the assembler reads."""
    return ptxas.newest_ptx(release(arch))


def assemble(
    ptx: str, arch: str, options: Sequence[str] = (), line_info: bool = False
) -> Assembled:
    """Assemble `ptx` for `arch` (sm_80, sm_90a, …); `options` are ptxas's. Raises PTXASError, ToolNotFound."""
    if by_library(arch):
        return jitlink.assemble(ptx, arch, options, line_info)
    return ptxas.assemble(ptx, arch, options, line_info)
