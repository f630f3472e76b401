"""Compiles the examples' kernels for GPUs without data."""

from __future__ import annotations

from typing import Any

import tessera
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.compiler.compile import make_backend
from tessera.ir import Module


def source_of(specimen: Any) -> ASTSource:
    """As a launch with 16-byte aligned arrays and sizes divisible by 16 would make it."""
    names = specimen.kernel.arg_names
    signature = {
        n: "constexpr" if n in specimen.constants else specimen.signature[n] for n in names
    }
    attrs = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") or signature[name] == "i32"
    }
    return ASTSource(specimen.kernel, signature, specimen.constants, attrs)


def compile_specimen(specimen: Any, arch: int) -> Any:
    """Compiled for the compute capability `arch`."""
    target = GPUTarget("cuda", arch, 32)
    return tessera.compile(source_of(specimen), target=target, options=specimen.options)


def gpu_ir(specimen: Any, arch: int) -> Module:
    """Finished GPU IR for the compute capability `arch`."""
    backend = make_backend(GPUTarget("cuda", arch, 32))
    options = backend.parse_options(specimen.options)
    stages, module = backend.stages(options), source_of(specimen).make_ir(options)
    for name in ("tir", "gir"):
        module = stages[name](module, {})
    return module
