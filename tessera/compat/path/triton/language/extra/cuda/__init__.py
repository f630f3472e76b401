"""`triton.language.extra.cuda`."""

# pyright: reportUnsupportedDunderAll=false
from tessera.compat.absent import absent
from tessera.language.extra import cuda as _cuda
from tessera.language.extra.cuda import *
from triton.language.extra.cuda import libdevice

__all__ = [*_cuda.__all__, "libdevice"]
__getattr__ = absent(__name__, _cuda)
