"""Compiles the examples' kernels for GPUs without data."""

from __future__ import annotations

from typing import Any

import tessera
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource


def compile_specimen(specimen: Any, arch: int) -> Any:
    """As a launch with 16-byte aligned arrays and sizes divisible by 16 would."""
    names = specimen.kernel.arg_names
    signature = {
        n: "constexpr" if n in specimen.constants else specimen.signature[n] for n in names
    }
    attrs = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") or signature[name] == "i32"
    }
    source = ASTSource(specimen.kernel, signature, specimen.constants, attrs)
    return tessera.compile(source, target=GPUTarget("cuda", arch, 32), options=specimen.options)
