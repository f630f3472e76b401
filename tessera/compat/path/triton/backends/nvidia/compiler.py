"""`triton.backends.nvidia.compiler`."""

from tessera.backends.compiler import Options as CUDAOptions
from tessera.backends.nvidia.backend import NvidiaBackend as CUDABackend
from tessera.compat.absent import absent

__all__ = ["CUDABackend", "CUDAOptions"]
__getattr__ = absent(__name__)
