"""`TensorDescriptor` under the module path that Triton's users import."""

from tessera.runtime.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
