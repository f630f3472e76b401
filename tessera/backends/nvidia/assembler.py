"""What makes cubins of PTX: ptxas, or the library nvJitLink where that is asked for or there is no ptxas.

nvJitLink needs no process and takes a third to two thirds of the time. But it assembles for linking: `setmaxnreg` is
ignored, so that teams of warps keep the registers of their launch, and its instructions come in another order. Code
made for speed is therefore ptxas's wherever it is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.nvidia import jitlink, ptxas
from tessera.backends.nvidia.ptxas import Assembled
from tessera.config import knobs
from tessera.errors import ToolNotFound


def by_library() -> bool:
    """Whether nvJitLink assembles; ToolNotFound where neither it nor ptxas is there."""
    if knobs.nvidia.use_jitlink:
        return jitlink.available()
    try:
        ptxas.find_tool("ptxas")
    except ToolNotFound:
        if knobs.nvidia.ptxas or not jitlink.available():
            raise
        return True
    return False


def release() -> str:
    """The CUDA release of the assembler."""
    return jitlink.version() if by_library() else ptxas.version()


def identity() -> str:
    """For cache keys."""
    return f"{'nvjitlink' if by_library() else 'ptxas'}-{release()}"


def newest_ptx() -> int:
    """The newest PTX ISA, major * 10 + minor, that the assembler reads."""
    return ptxas.newest_ptx(release())


def assemble(
    ptx: str, arch: str, options: Sequence[str] = (), line_info: bool = False
) -> Assembled:
    """Assemble `ptx` for `arch` (sm_80, sm_90a, …); `options` are ptxas's. PTXASError, ToolNotFound."""
    if by_library():
        return jitlink.assemble(ptx, arch, options, line_info)
    return ptxas.assemble(ptx, arch, options, line_info)
