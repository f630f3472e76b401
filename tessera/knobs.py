"""Exports the knobs under the module path that Triton has for them: `tessera.knobs.runtime.interpret = True`."""

from __future__ import annotations

import sys
from types import ModuleType

from tessera.config import ABSENT_GROUPS, Env, Group, HookChain, Knob, env, settings
from tessera.config import knobs as _all

__all__ = [
    "Env",
    "Group",
    "HookChain",
    "Knob",
    "autotuning",
    "build",
    "cache",
    "compilation",
    "cpu",
    "env",
    "language",
    "nvidia",
    "redis",
    "refresh_knobs",
    "runtime",
    "simulator",
]

runtime = _all.runtime
cache = _all.cache
compilation = _all.compilation
autotuning = _all.autotuning
language = _all.language
nvidia = _all.nvidia
redis = _all.redis
build = _all.build
cpu = _all.cpu
simulator = _all.simulator


def refresh_knobs() -> None:
    """Read again the knobs whose environment variable is read only once (runtime.debug, …)."""
    _all.refresh()


def __getattr__(name: str) -> object:
    why = ABSENT_GROUPS.get(name)
    text = (
        f"tessera has no knobs {name}.*: {why}"
        if why
        else f"tessera has no group of knobs {name!r}"
    )
    raise AttributeError(text, name=name)


class _KnobsModule(ModuleType):
    """Makes `tessera.knobs.propagate_env = False` reach the settings."""

    @property
    def propagate_env(self) -> bool:
        return settings.propagate_env

    @propagate_env.setter
    def propagate_env(self, value: bool) -> None:
        settings.propagate_env = value


sys.modules[__name__].__class__ = _KnobsModule
