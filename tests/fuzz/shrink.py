"""Makes a failing kernel simpler as long as it fails in the same way on the same device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.fuzz import families
from tests.fuzz.generators.features import Features
from tests.fuzz.outcome import DIFFERENT, Result, signature

Run = Callable[[dict[str, Any]], dict[str, Result]]


def alike(one: Result, other: Result) -> bool:
    """The same fault: for wrong elements any, else the same message."""
    return one[0] == other[0] and (one[0] == DIFFERENT or signature(one) == signature(other))


def shrunk(
    family: str, seed: int, device: str, fault: Result, run: Run, seconds: float = 60.0
) -> tuple[Features, Result | None]:
    """The simplest features found within the time, and what they give."""
    chosen, best = families.drawn(family, seed), None
    end = time.monotonic() + seconds
    tried: set[str] = set()
    progress = True
    while progress:
        progress = False
        for candidate in families.simpler(family, chosen):
            if str(candidate) in tried:
                continue
            if time.monotonic() > end:
                return chosen, best
            tried.add(str(candidate))
            task = {"family": family, "seed": seed, "features": candidate, "devices": [device]}
            result = run(task).get(device)
            if result is not None and alike(result, fault):
                chosen, best, progress = candidate, result, True
                break
    return chosen, best
