"""`triton.runtime.autotuner`."""

from tessera.compat.absent import absent
from tessera.runtime.autotuner import autotuner as _autotuner
from tessera.runtime.autotuner.autotuner import Autotuner
from tessera.runtime.autotuner.config import Config
from tessera.runtime.autotuner.heuristics import Heuristics, heuristics
from tessera.runtime.decorators import autotune
from tessera.runtime.launching.interface import KernelInterface
from triton.runtime.errors import AutotunerError, OutOfResources, PTXASError

__all__ = [
    "Autotuner", "AutotunerError", "Config", "Heuristics", "KernelInterface", "OutOfResources", "PTXASError",
    "autotune", "heuristics",
]  # fmt: skip
__getattr__ = absent(__name__, _autotuner)
