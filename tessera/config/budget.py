"""Limits the time of one compilation: steps check the budget, and tools that exceed it are stopped.

with budget(30.0):
    check_budget("pass x")          # CompilationTimeout once 30 s are over
    subprocess.run(..., timeout=remaining_seconds())
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from tessera.errors import CompilationTimeout

_limit: ContextVar[tuple[float, float] | None] = ContextVar("budget", default=None)


@contextmanager
def budget(seconds: float | None) -> Generator[None]:
    """Limit the time of the code inside; None: no limit. A shorter outer limit still holds."""
    if seconds is None:
        yield
        return
    outer = _limit.get()
    end = time.monotonic() + seconds
    token = _limit.set((end, seconds) if outer is None or end < outer[0] else outer)
    try:
        yield
    finally:
        _limit.reset(token)


def remaining_seconds() -> float | None:
    """Return the remaining time, at least a moment; None without a limit."""
    found = _limit.get()
    return None if found is None else max(0.001, found[0] - time.monotonic())


def check_budget(step: str) -> None:
    """Raise CompilationTimeout, which names `step`, if the time is over."""
    found = _limit.get()
    if found is not None and time.monotonic() > found[0]:
        raise CompilationTimeout(step, found[1])


def out_of_time(step: str) -> CompilationTimeout:
    """Return the error for a tool that was stopped."""
    found = _limit.get()
    return CompilationTimeout(step, found[1] if found is not None else 0.0)
