"""`triton.tools`."""

from tessera.compat.absent import absent
from triton.tools import disasm, mxfp, ragged_tma, tensor_descriptor

__all__ = ["disasm", "mxfp", "ragged_tma", "tensor_descriptor"]
__getattr__ = absent(__name__)
