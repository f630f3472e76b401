"""`triton.backends.cpu`."""

from tessera.compat.absent import absent
from triton.backends.cpu import compiler, driver

__all__ = ["compiler", "driver"]
__getattr__ = absent(__name__)
