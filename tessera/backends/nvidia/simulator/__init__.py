"""A simulator of NVIDIA GPUs: runs the LLVM IR that the SIMT lowering wrote, lane by lane, in NumPy."""

# pyright: basic
from tessera.backends.nvidia.simulator.launch import argument, guarded
from tessera.backends.nvidia.simulator.machine import Simulator, run_kernel

__all__ = ["Simulator", "argument", "guarded", "run_kernel"]
