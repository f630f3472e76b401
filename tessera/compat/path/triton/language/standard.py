"""`triton.language.standard`."""

# pyright: reportUnsupportedDunderAll=false, reportPrivateUsage=false
from tessera.compat.absent import absent
from tessera.language import standard as _standard
from tessera.language.standard import *
from tessera.language.standard import log2_of as _log2

__all__ = [*getattr(_standard, "__all__", ()), "_log2"]
__getattr__ = absent(__name__, _standard)
