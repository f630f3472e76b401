"""Chooses the target for which a kernel is explained, and the variant that runs there, and compiles it for that one."""

from __future__ import annotations

from tessera.analysis.intervals import NEVER
from tessera.backends.compiler import GPUTarget
from tessera.compiler.kernel import CompiledKernel
from tessera.explain.build import options_of
from tessera.runtime.driver import driver_named
from tessera.runtime.drivers.variants import given_up
from tessera.runtime.jit import compile as compile_for

PORTABLE = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "maxnreg",
    "enable_fp_fusion",
    "disable_optimizations",
    "pointer_maps",  # which variant of a GPU kernel it is
    "persistent",
    "tensor_stores",
    "no_alias",
)


def compiled_for(kernel: CompiledKernel, target: GPUTarget | None = None) -> CompiledKernel:
    """Return a kernel compiled for another target. What the interpreter ran is explained for the CPU, what the
    simulator ran for the GPU that it simulates."""
    own = kernel.target
    if target is None and own.backend == "interpreter":
        target = driver_named("cpu").get_current_target()
    if target is None and own.backend == "simt":
        target = GPUTarget("cuda", own.arch, own.warp_size)
    if target is None or target == own:
        return kernel
    given = {k: v for k, v in vars(options_of(kernel)).items() if k in PORTABLE}
    return compile_for(kernel.src, target, given)


def variant_that_runs(kernel: CompiledKernel) -> CompiledKernel:
    """Return a kernel's variant without those assumptions for which the compiler found no use: no launch takes a
    variant whose precondition always fails."""
    while tuple(tuple(x) for x in getattr(kernel.metadata, "precondition", ())) == NEVER:
        given = {k: v for k, v in vars(options_of(kernel)).items() if k in PORTABLE}
        kernel = compile_for(kernel.src, kernel.target, {**given, given_up(kernel.metadata): False})
    return kernel
