"""`triton.backends`: `backends` maps names to pairs of compiler and driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.backends.cpu.backend import CpuBackend
from tessera.backends.nvidia.backend import NvidiaBackend
from tessera.compat.absent import absent
from tessera.runtime.driver import CpuDriver, CudaDriver
from triton.backends import compiler, driver
from triton.backends.compiler import BaseBackend
from triton.backends.driver import DriverBase


@dataclass(frozen=True)
class Backend:
    """A back end: the class that compiles and the class that launches."""

    compiler: type[Any]
    driver: type[Any]


backends: dict[str, Backend] = {
    "cpu": Backend(CpuBackend, CpuDriver),
    "nvidia": Backend(NvidiaBackend, CudaDriver),
}

__all__ = ["Backend", "BaseBackend", "DriverBase", "backends", "compiler", "driver"]
__getattr__ = absent(__name__)
