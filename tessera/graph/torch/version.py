"""Refuses a torch that is missing or too old, before anything imports it."""

from __future__ import annotations

import importlib.metadata

from tessera.errors import TorchNotFound

OLDEST = (2, 11)


def check_version() -> None:
    """Raise `TorchNotFound` unless a torch is installed that is new enough."""
    oldest = ".".join(map(str, OLDEST))
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise TorchNotFound(
            problem=f"torch is not installed, {oldest} or newer is needed"
        ) from None
    if tuple(int(part) for part in found.split("+")[0].split(".")[:2]) < OLDEST:
        raise TorchNotFound(problem=f"torch {found} is installed, {oldest} or newer is needed")
