"""`triton.backends.cpu.compiler`."""

from tessera.backends.compiler import Options as CPUOptions
from tessera.backends.cpu.backend import CpuBackend as CPUBackend
from tessera.compat.absent import absent

__all__ = ["CPUBackend", "CPUOptions"]
__getattr__ = absent(__name__)
