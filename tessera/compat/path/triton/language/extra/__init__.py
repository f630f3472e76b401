"""`triton.language.extra`."""

from tessera.compat.absent import absent
from tessera.language import extra as _extra
from triton.language.extra import cuda, hip, libdevice

__all__ = ["cuda", "hip", "libdevice"]
__getattr__ = absent(__name__, _extra)
