"""Exports the knobs of tessera, each with its type, environment names, default and documentation."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

from tessera.config.groups import (
    ABSENT_GROUPS,
    Autotuning,
    Build,
    Cache,
    Compilation,
    Cpu,
    Language,
    Nvidia,
    Redis,
    Runtime,
    Simulator,
)
from tessera.config.types import Env, Group, Hook, HookChain, KeyValue, Knob, env, epoch, settings
from tessera.errors.base import form

__all__ = [
    "ABSENT_GROUPS",
    "Env",
    "Group",
    "Hook",
    "HookChain",
    "Knob",
    "Knobs",
    "env",
    "epoch",
    "knobs",
    "settings",
]


class Knobs:
    """All groups."""

    def __init__(self) -> None:
        self.runtime = Runtime()
        self.cache = Cache()
        self.compilation = Compilation()
        self.autotuning = Autotuning()
        self.language = Language()
        self.nvidia = Nvidia()
        self.simulator = Simulator()
        self.redis = Redis()
        self.build = Build()
        self.cpu = Cpu()

    def groups(self) -> tuple[Group, ...]:
        """The groups in order of declaration."""
        return tuple(cast("dict[str, Group]", vars(self)).values())

    def refresh(self) -> None:
        """Read the `once` knobs from the environment again."""
        for group in self.groups():
            group.refresh()

    @contextmanager
    def scope(self) -> Generator[Knobs]:
        """Restore every knob and environment variable on leaving."""
        scopes = [group.scope() for group in self.groups()]
        for scope in scopes:
            scope.__enter__()
        try:
            yield self
        finally:
            for scope in reversed(scopes):
                scope.__exit__(*sys.exc_info())

    def cache_key_values(self) -> dict[str, KeyValue]:
        """Return `group.knob` -> value of the knobs that affect compiled code."""
        return {
            f"{group.title}.{name}": cast(KeyValue, getattr(group, name))
            for group in self.groups()
            for name, knob in group.descriptors().items()
            if knob.key
        }

    def describe(self) -> str:
        """Return a table of all knobs: name, environment variables, values, whether in the cache key, documentation."""
        rows: list[str] = []
        for group in self.groups():
            for name, knob in group.descriptors().items():
                names = ", ".join(knob.names) or "-"
                rows.append(
                    f"{group.title}.{name} | {names} | {knob.kind} | {'key' if knob.key else ''} | {knob.doc}"
                )
        return "\n".join(rows)


knobs = Knobs()
form.chosen = lambda: knobs.runtime.errors or "text"
