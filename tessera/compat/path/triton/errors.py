"""`triton.errors`."""

from tessera.compat.absent import absent
from tessera.errors import TritonError

__all__ = ["TritonError"]
__getattr__ = absent(__name__)
