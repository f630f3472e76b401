"""`triton.backends.cpu.driver`."""

from tessera.compat.absent import absent
from tessera.runtime.driver import CpuDriver as CPUDriver

__all__ = ["CPUDriver"]
__getattr__ = absent(__name__)
