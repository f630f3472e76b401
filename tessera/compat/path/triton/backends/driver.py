"""`triton.backends.driver`."""

from tessera.compat.absent import absent
from tessera.runtime.driver import Driver as DriverBase
from tessera.runtime.driver import Driver as GPUDriver

__all__ = ["DriverBase", "GPUDriver"]
__getattr__ = absent(__name__)
