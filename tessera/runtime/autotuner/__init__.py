"""Chooses meta-parameters: by autotuning (trials, workers, files), or by rules (`heuristics`)."""

from tessera.runtime.autotuner.autotuner import Autotuner
from tessera.runtime.autotuner.config import Config
from tessera.runtime.autotuner.heuristics import Heuristics, heuristics

__all__ = ["Autotuner", "Config", "Heuristics", "heuristics"]
