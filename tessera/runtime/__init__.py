"""The host side: launch, drivers, disk cache, tuning (rank 7)."""

from tessera.runtime.autotuner import Autotuner, Config, Heuristics, autotune, heuristics
from tessera.runtime.driver import driver
from tessera.runtime.interface import KernelInterface
from tessera.runtime.jit import JITFunction, compile, jit
from tessera.runtime.tensors import MockTensor, TensorWrapper, reinterpret

__all__ = [
    "Autotuner", "Config", "Heuristics", "JITFunction", "KernelInterface", "MockTensor", "TensorWrapper", "autotune",
    "compile", "driver", "heuristics", "jit", "reinterpret",
]  # fmt: skip
