"""`triton.language.extra.hip`: importable everywhere, as programs import it on machines without AMD GPUs."""

# pyright: reportUnsupportedDunderAll=false
from tessera.compat.absent import absent
from tessera.language.extra import hip as _hip
from tessera.language.extra.hip import *
from triton.language.extra.hip import libdevice

__all__ = [*_hip.__all__, "libdevice"]
__getattr__ = absent(__name__, _hip)
