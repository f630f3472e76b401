"""Autotuning results on disk: one JSON file per kernel, key, set of configs and device, published by atomic rename."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tessera.config import knobs
from tessera.runtime.benchmark import device_name

FORMAT = 1


def source_key(fn: Any) -> str | None:
    """The `cache_key` of the jitted function under `fn`; None if nothing there identifies its source."""
    while fn is not None:
        key = getattr(fn, "cache_key", None)
        if isinstance(key, str):
            return key
        fn = getattr(fn, "fn", None)
    return None


def path_for(name: str, source: str, key: Sequence[Any], configs: Sequence[str]) -> str:
    identity = json.dumps([FORMAT, source, [repr(k) for k in key], list(configs), device_name()])
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return os.path.join(str(knobs.cache.dir), "autotune", f"{name}-{digest[:32]}.json")


def read(path: str, configs: Sequence[str]) -> list[list[float]] | None:
    """Times of `configs` in their order; None when the file is absent, damaged or about something else."""
    try:
        with open(path) as file:
            content: Any = json.load(file)
        stored = cast("dict[str, list[float]]", content["timings"])
        times = [[float(t) for t in stored[config]] for config in configs]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return times if all(times) else None


def write(path: str, key: Sequence[Any], timings: Mapping[str, list[float]]) -> None:
    """Publish; a directory that cannot be written only costs the next process its own tuning."""
    content = {
        "device": device_name(),
        "key": [repr(k) for k in key],
        "timings": dict(timings),  # ms; Infinity for a config that does not fit
    }
    directory = os.path.dirname(path)
    try:
        os.makedirs(directory, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, path)
    except OSError:
        return
