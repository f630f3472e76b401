"""`triton._C.libtriton`."""

from tessera.compat.absent import absent
from triton._C.libtriton import ir

__all__ = ["ir"]
__getattr__ = absent(__name__)
