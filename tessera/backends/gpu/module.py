"""Lowers a whole module of the GPU level to LLVM IR text. Importing this file registers all lowerings."""

from __future__ import annotations

from tessera.backends.gpu import (
    addresses,
    atomics,
    casts,
    convert,
    debug,
    divisions,
    dot,
    elementwise,
    inline_asm,
    local,
    lookup,
    mathlib,
    memory,
    reduce,
    scan,
    shape,
    shared,
)  # fmt: skip
from tessera.backends.gpu.control import lower_function
from tessera.backends.gpu.line_info import LineTable
from tessera.backends.gpu.lowering import FunctionLowering
from tessera.backends.gpu.target import GpuTarget
from tessera.backends.gpu.writer import ModuleText
from tessera.ir import Module

_REGISTERED = (  # imported for the lowerings they register
    addresses, atomics, casts, convert, debug, divisions, dot, elementwise, inline_asm, local, lookup, mathlib,
    memory, reduce, scan, shape, shared,
)  # fmt: skip


def lower_module(
    module: Module,
    target: GpuTarget,
    *,
    fusion: bool = True,
    attributes: str = "",
    line_info: bool = False,
) -> str:
    """Return the LLVM IR of a module whose tiles have layouts.

    `fusion` allows a*b+c to round once; `attributes` are added to the kernel (its register limit); with `line_info`
    each instruction has its source line. Raises InternalError for ops without a lowering.
    """
    text = ModuleText(target.header())
    text.lines = LineTable() if line_info else None
    for func in module.body:
        lowering = FunctionLowering(module, func, text, target, fusion=fusion)
        lowering.extra_attributes = attributes
        text.functions.append(lower_function(lowering))
    return text.render()
