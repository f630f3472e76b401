"""The host side: launch, drivers, disk cache, tuning (rank 7)."""

from tessera.runtime.async_compile import AsyncCompileMode, FutureKernel
from tessera.runtime.autotuner import Autotuner, autotune
from tessera.runtime.driver import driver
from tessera.runtime.heuristics import Heuristics, heuristics
from tessera.runtime.interface import KernelInterface
from tessera.runtime.jit import JITFunction, compile, jit
from tessera.runtime.tensors import MockTensor, TensorWrapper, reinterpret
from tessera.runtime.tuning_config import Config

__all__ = [
    "AsyncCompileMode", "Autotuner", "Config", "FutureKernel", "Heuristics",
    "JITFunction", "KernelInterface", "MockTensor", "TensorWrapper", "autotune",
    "compile", "driver", "heuristics", "jit", "reinterpret",
]  # fmt: skip
