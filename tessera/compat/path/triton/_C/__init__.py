"""`triton._C`: no C extension, only the part of it that others walk IR with."""

from tessera.compat.absent import absent
from triton._C import libtriton

__all__ = ["libtriton"]
__getattr__ = absent(__name__)
