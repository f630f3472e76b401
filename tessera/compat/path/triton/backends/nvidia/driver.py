"""`triton.backends.nvidia.driver`."""

from tessera.compat.absent import absent
from tessera.runtime.driver import CudaDriver

__all__ = ["CudaDriver"]
__getattr__ = absent(__name__)
