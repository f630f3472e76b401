"""Exports `TensorDescriptor` under the module path that Triton's users import."""

from tessera.runtime.arguments.descriptor import TensorDescriptor

__all__ = ["TensorDescriptor"]
