"""Refuses a torch that is missing or too old, before anything imports it."""

from __future__ import annotations

import importlib.metadata
import re

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
    numbers = re.findall(r"\d+", found)  # "3.0a0+git1234" is a build of 3.0
    if tuple(map(int, numbers[:2])) < OLDEST:
        raise TorchNotFound(problem=f"torch {found} is installed, {oldest} or newer is needed")
