"""Stores autotuning results on disk: one JSON file for each kernel source, key and device, published by atomic rename.

    {"device": …, "kernel": …, "key": […], "timings": {config: [median, fast, slow] in ms}}

A file grows as more configs are measured. All files together can be exported as a lockfile that a project commits
(`python -m tessera tune --export FILE`, `--import FILE`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tessera.errors import TesseraError
from tessera.runtime.benchmark import device_name
from tessera.runtime.cache.disk import disk_cache

FORMAT = 2  # the version of the files: those of other versions are not read
LONGEST_NAME = 50  # of a kernel in the name of its file, so that the name stays below 200 bytes
Times = dict[str, list[float]]


def source_key(fn: object) -> str | None:
    """Return the `cache_key` of the jitted function under `fn`; None if nothing there identifies its source."""
    while fn is not None:
        key = getattr(fn, "cache_key", None)
        if isinstance(key, str):
            return key
        fn = getattr(fn, "fn", None)
    return None


def folder() -> str:
    return os.path.join(disk_cache().folder, "autotune")


def path_for(name: str, source: str, key: Sequence[object]) -> str:
    identity = json.dumps([FORMAT, source, [repr(k) for k in key], device_name()])
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return os.path.join(folder(), f"{name[:LONGEST_NAME]}-{digest[:32]}.json")


_anew = [False]  # whether times on disk are measured again


@contextlib.contextmanager
def measured_anew() -> Generator[None]:
    """Within the context nothing is read, so that new times take the place of those on disk."""
    before, _anew[0] = _anew[0], True
    try:
        yield
    finally:
        _anew[0] = before


def read(path: str) -> Times:
    """Return the times by config; empty if the file is absent or damaged."""
    if _anew[0]:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            content: Any = json.load(file)
        return _checked(content["timings"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _checked(timings: Any) -> Times:
    found = {str(config): [float(t) for t in times] for config, times in timings.items()}
    if not all(found.values()):
        raise ValueError("a config without times")
    return found


def write(path: str, key: Sequence[object], timings: Mapping[str, list[float]]) -> None:
    """Add `timings` to the file. If the directory cannot be written, only later processes lose: they tune again."""
    content = {
        "device": device_name(),
        "key": [repr(k) for k in key],
        "timings": {**read(path), **timings},  # ms; Infinity for a config that does not fit
    }
    _publish(path, content)


def _publish(path: str, content: object) -> None:
    import tempfile

    directory = os.path.dirname(path)
    with contextlib.suppress(OSError):
        os.makedirs(directory, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


# --- lockfiles --------------------------------------------------------------------------------------------------
def export(path: str) -> int:
    """Write all results to one file, ordered so that its diffs stay small; return how many there are."""
    entries: dict[str, object] = {}
    if os.path.isdir(folder()):
        for name in sorted(os.listdir(folder())):
            if name.endswith(".json") and read(os.path.join(folder(), name)):
                with open(os.path.join(folder(), name), encoding="utf-8") as file:
                    entries[name.removesuffix(".json")] = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, "results": entries}, file, indent=1, sort_keys=True)
        file.write("\n")
    return len(entries)


def load(path: str) -> int:
    """Add the results of a lockfile to those on disk; return how many. TesseraError if the file is not a lockfile."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        entries = content["results"]
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, not {FORMAT}")
        for name, entry in entries.items():
            if os.path.basename(name) != name or name.startswith("."):
                raise ValueError(f"the name {name!r}")
            target = os.path.join(folder(), f"{name}.json")
            _publish(target, {**entry, "timings": {**read(target), **_checked(entry["timings"])}})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TesseraError(f"{path} is no file of autotuning results: {error}") from error
    return len(entries)
