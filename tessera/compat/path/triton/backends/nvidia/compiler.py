"""`triton.backends.nvidia.compiler`."""

from typing import NamedTuple

from tessera.backends.compiler import GPUTarget
from tessera.backends.compiler import Options as CUDAOptions
from tessera.backends.nvidia import ptxas as _tools
from tessera.backends.nvidia.backend import NvidiaBackend as CUDABackend
from tessera.compat.absent import absent


class NvidiaTool(NamedTuple):
    path: str
    version: str


def get_ptxas(arch: int = 80) -> NvidiaTool:
    """The assembler for compute capability `arch`."""
    path = _tools.ptxas_for(f"sm_{arch}")
    return NvidiaTool(path, _tools.version(path))


def get_ptxas_version(arch: int = 80) -> str:
    """What that assembler says of itself."""
    return _tools.run_tool([get_ptxas(arch).path, "--version"]).stdout


__all__ = ["CUDABackend", "CUDAOptions", "GPUTarget", "get_ptxas", "get_ptxas_version"]
__getattr__ = absent(__name__)
