"""`@once`: a function without arguments, or with few kinds of them, whose result exists once in a process.

Unlike `functools.cache` it calls the function once also where threads ask at the same time: what native code points at
must not be replaced by a second copy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tessera.config.forking import undivided

P = ParamSpec("P")
R = TypeVar("R")


class _Lock:
    """One lock for all, so that functions may call one another; a forked child starts with a new one."""

    held = threading.RLock()


def once(make: Callable[P, R]) -> Callable[P, R]:
    kept: dict[Any, R] = {}

    @wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (args, tuple(kwargs.items()))
        if key in kept:  # launches ask, too: what is there needs no lock
            return kept[key]
        with undivided(), _Lock.held:
            if key not in kept:
                kept[key] = make(*args, **kwargs)
            return kept[key]

    return get


def _renew() -> None:
    _Lock.held = threading.RLock()


os.register_at_fork(after_in_child=_renew)
