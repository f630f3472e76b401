"""`triton.tools`."""

from tessera.compat.absent import absent
from triton.tools import tensor_descriptor

__all__ = ["tensor_descriptor"]
__getattr__ = absent(__name__)
