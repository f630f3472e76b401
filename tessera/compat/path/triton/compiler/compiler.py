"""`triton.compiler.compiler`."""

from __future__ import annotations

from tessera.compat.absent import absent
from tessera.compiler import (
    ASTSource,
    CompiledKernel,
    IRSource,
    LazyDict,
    get_cache_key,
    make_backend,
)
from tessera.compiler.kernel import AsmDict
from tessera.runtime import compile, driver
from triton.backends.compiler import BaseBackend, GPUTarget, Language
from triton.runtime.cache import triton_key


def max_shared_mem(device: int) -> int:
    """Bytes of shared memory that one block of `device` can have."""
    return driver.active.utils.get_device_properties(device)["max_shared_mem"]


__all__ = [
    "ASTSource", "AsmDict", "BaseBackend", "CompiledKernel", "GPUTarget", "IRSource", "Language", "LazyDict", "compile",
    "get_cache_key", "make_backend", "max_shared_mem", "triton_key",
]  # fmt: skip
__getattr__ = absent(__name__)
