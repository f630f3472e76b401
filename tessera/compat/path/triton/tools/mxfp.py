"""`triton.tools.mxfp`."""

from tessera.compat.absent import absent
from tessera.tools.mxfp import MXFP4Tensor, MXScaleTensor

__all__ = ["MXFP4Tensor", "MXScaleTensor"]
__getattr__ = absent(__name__)
