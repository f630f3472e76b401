"""`triton.backends.compiler`."""

from enum import Enum

from tessera.backends.compiler import Backend as BaseBackend
from tessera.backends.compiler import GPUTarget
from tessera.compat.absent import absent


class Language(Enum):
    """What a kernel is written in; tessera has one language."""

    TRITON = 0


__all__ = ["BaseBackend", "GPUTarget", "Language"]
__getattr__ = absent(__name__)
