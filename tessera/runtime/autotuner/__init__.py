"""Chooses meta-parameters: by autotuning, with its trials, workers and files, or by rules (`heuristics`)."""

from tessera.runtime.autotuner.autotuner import Autotuner
from tessera.runtime.autotuner.config import Config
from tessera.runtime.autotuner.heuristics import Heuristics, heuristics

__all__ = ["Autotuner", "Config", "Heuristics", "heuristics"]
