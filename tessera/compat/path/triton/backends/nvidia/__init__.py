"""`triton.backends.nvidia`."""

from tessera.compat.absent import absent
from triton.backends.nvidia import compiler, driver

__all__ = ["compiler", "driver"]
__getattr__ = absent(__name__)
