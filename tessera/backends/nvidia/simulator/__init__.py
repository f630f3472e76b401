"""Simulates NVIDIA GPUs: runs the LLVM IR that the SIMT lowering writes, lane by lane, in NumPy."""

from tessera.backends.nvidia.simulator.banks import Traffic, passes
from tessera.backends.nvidia.simulator.launch import (
    Report,
    argument,
    precondition_holds,
    run_kernel,
)

__all__ = ["Report", "Traffic", "argument", "precondition_holds", "passes", "run_kernel"]
