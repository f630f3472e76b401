"""The runtime is the host side of tessera: launch, drivers, disk cache, tuning (rank 7)."""

from tessera.runtime.arguments.tensors import MockTensor, TensorWrapper, reinterpret
from tessera.runtime.autotuner.autotuner import Autotuner
from tessera.runtime.autotuner.config import Config
from tessera.runtime.autotuner.heuristics import Heuristics, heuristics
from tessera.runtime.decorators import autotune, jit
from tessera.runtime.driver import driver
from tessera.runtime.jit import JITFunction, compile
from tessera.runtime.launching.async_compile import AsyncCompileMode, FutureKernel
from tessera.runtime.launching.interface import KernelInterface

__all__ = [
    "AsyncCompileMode", "Autotuner", "Config", "FutureKernel", "Heuristics",
    "JITFunction", "KernelInterface", "MockTensor", "TensorWrapper", "autotune",
    "compile", "driver", "heuristics", "jit", "reinterpret",
]  # fmt: skip
