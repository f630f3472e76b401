"""`triton.compiler.compiler`."""

# pyright: reportIncompatibleMethodOverride=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

from tessera.compat.absent import absent
from tessera.compat.binaries import keep_binary, options_for_inductor
from tessera.compat.walk import WalkedModule
from tessera.compiler import ASTSource as _ASTSource
from tessera.compiler import (
    CompiledKernel,
    IRSource,
    LazyDict,
    get_cache_key,
    make_backend,
)
from tessera.compiler.kernel import AsmDict
from tessera.runtime import compile as _compile
from tessera.runtime import driver
from triton.backends.compiler import BaseBackend, GPUTarget, Language
from triton.runtime.cache import triton_key


class ASTSource(_ASTSource):
    """A kernel with its argument types."""

    def make_ir(
        self, target: Any, options: Any = None, codegen: object = None, modules: object = None, context: object = None
    ) -> Any:  # fmt: skip
        """With all arguments, as Triton's users call it: a module to walk. With the options alone: tile IR."""
        if options is None:
            return super().make_ir(target)
        return WalkedModule(super().make_ir(options))


def compile(src: object, target: GPUTarget | None = None, options: object = None) -> CompiledKernel:
    """Compile an ASTSource or an IR file for `target` (default: the active driver's); Inductor finds the binary."""
    kernel = _compile(src, target, options_for_inductor(options))
    keep_binary(kernel)
    return kernel


def max_shared_mem(device: int) -> int:
    """Bytes of shared memory that one block of `device` can have."""
    return driver.active.utils.get_device_properties(device)["max_shared_mem"]


__all__ = [
    "ASTSource", "AsmDict", "BaseBackend", "CompiledKernel", "GPUTarget", "IRSource", "Language", "LazyDict", "compile",
    "get_cache_key", "make_backend", "max_shared_mem", "triton_key",
]  # fmt: skip
__getattr__ = absent(__name__)
