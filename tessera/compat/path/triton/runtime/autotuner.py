"""`triton.runtime.autotuner`."""

from tessera.compat.absent import absent
from tessera.runtime import autotuner as _autotuner
from tessera.runtime.autotuner import Autotuner, autotune
from tessera.runtime.heuristics import Heuristics, heuristics
from tessera.runtime.interface import KernelInterface
from tessera.runtime.tuning_config import Config
from triton.runtime.errors import AutotunerError, OutOfResources, PTXASError

__all__ = [
    "Autotuner", "AutotunerError", "Config", "Heuristics", "KernelInterface", "OutOfResources", "PTXASError",
    "autotune", "heuristics",
]  # fmt: skip
__getattr__ = absent(__name__, _autotuner)
