"""`triton.runtime.jit`."""

from __future__ import annotations

from typing import Any

from tessera.compat.absent import absent
from tessera.language.aggregate import ConstexprFunction, constexpr_function
from tessera.language.callable import JITCallable
from tessera.language.parameters import KernelParam
from tessera.runtime import jit as _package_jit
from tessera.runtime.arguments.specialize import mangle_type, specialize_argument
from tessera.runtime.arguments.tensors import MockTensor, TensorWrapper, reinterpret
from tessera.runtime.jit import JITFunction
from tessera.runtime.launching.hooks import JitFunctionInfo
from tessera.runtime.launching.interface import KernelInterface
from tessera.runtime.launching.specialization_data import encode as serialize_specialization_data

jit = _package_jit


def native_specialize_impl(
    backend: object, arg: object, is_const: bool = False, specialize_value: bool = True, align: bool = True
) -> tuple[Any, Any]:  # fmt: skip
    """(type, key) of a kernel argument; the rules are the same for all back ends."""
    return specialize_argument(arg, is_const, specialize_value, align)


__all__ = [
    "ConstexprFunction", "JITCallable", "JITFunction", "JitFunctionInfo", "KernelInterface", "KernelParam",
    "MockTensor", "TensorWrapper", "constexpr_function", "jit", "mangle_type", "native_specialize_impl", "reinterpret",
    "serialize_specialization_data",
]  # fmt: skip
__getattr__ = absent(__name__)
