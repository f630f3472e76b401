"""Provides `@process_singleton`, for functions with few different arguments whose result exists once per process.

Unlike `functools.cache` it calls the function only once even if several threads ask at the same time: native code
holds addresses in the result, which a second copy must not replace.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tessera.config.forking import undivided

P = ParamSpec("P")
R = TypeVar("R")


class _Lock:
    """The lock of all such functions, which may call one another. A forked child starts with a new lock."""

    held = threading.RLock()


def process_singleton(make: Callable[P, R]) -> Callable[P, R]:
    """Call `make` at most once per process for equal arguments; later calls return the first call's result."""
    kept: dict[object, R] = {}

    @wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (args, tuple(kwargs.items()))
        if key in kept:  # without the lock, since launches come here
            return kept[key]
        with undivided(), _Lock.held:
            if key not in kept:
                kept[key] = make(*args, **kwargs)
            return kept[key]

    return get


def _renew() -> None:
    _Lock.held = threading.RLock()


os.register_at_fork(after_in_child=_renew)
