"""Runs the GPU passes on the kernels of gpu_modules."""

from __future__ import annotations

from tessera.backends.nvidia.target import facts_for
from tessera.ir import Module, PassManager, parse_module, print_module, verify
from tessera.passes.gpu_pipeline import gpu_passes
from tessera.passes.neutral.pipeline import neutral_pipeline
from tests.unit.gpu_modules import check_layouts


def compiled(text: str, capability: int = 89) -> Module:
    module = parse_module(text)
    verify(module)
    passes = gpu_passes(facts_for(capability), pointer_maps=False)
    PassManager([*neutral_pipeline(), *passes], verify=True).run(module)
    check_layouts(module, module.attrs["num_warps"])
    assert print_module(parse_module(print_module(module))) == print_module(module)
    return module


def ops(module: Module, opcode: str) -> list:
    return [op for op in module.walk() if op.opcode == opcode]
