"""`triton.tools.tensor_descriptor`."""

from tessera.compat.absent import absent
from tessera.runtime.arguments.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
__getattr__ = absent(__name__)
