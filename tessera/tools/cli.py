"""Implements the commands `cache` and `tune`, which show what is on disk and copy it between machines."""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import cast

from tessera.config import knobs
from tessera.errors import TesseraError
from tessera.runtime.autotuner import store as tuning_store
from tessera.runtime.autotuner.config import shown
from tessera.runtime.cache.disk import SUFFIX, DiskCache, decode, disk_cache
from tessera.tools.programs import reason_of


def cache(args: list[str]) -> int:
    """`cache info | list | prune MB | clear [--older DAYS] | export FILE | import FILE`."""
    parser = argparse.ArgumentParser("tessera cache", description="compiled kernels on disk")
    commands = parser.add_subparsers(required=True)
    info = commands.add_parser("info", help="where the cache is and how large")
    info.set_defaults(run=_info)
    listed = commands.add_parser(
        "list", help="each kernel: name, target, size, days since its last use"
    )
    listed.set_defaults(run=_list)
    prune = commands.add_parser(
        "prune", help="remove those not used for longest until the rest fits"
    )
    prune.add_argument("megabytes", type=float, metavar="MB")
    prune.set_defaults(run=_prune)
    clear = commands.add_parser("clear", help="remove entries")
    clear.add_argument(
        "--older", type=float, default=0.0, metavar="DAYS", help="only those not used for so long"
    )
    clear.set_defaults(run=_clear)
    for name, function, what in (
        ("export", export_cache, "write all entries to one file"),
        ("import", import_cache, "add the entries of a file"),
    ):  # fmt: skip
        command = commands.add_parser(name, help=what)
        command.add_argument("file")
        command.set_defaults(run=_move, function=function)
    return _guarded(parser, args)


def tune(args: list[str]) -> int:
    """`tune --export FILE | --import FILE | --show`."""
    parser = argparse.ArgumentParser("tessera tune", description="autotuning results on disk")
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--export", metavar="FILE", help="write all results to a lockfile")
    choice.add_argument(
        "--import", metavar="FILE", dest="load", help="add the results of a lockfile"
    )
    choice.add_argument("--show", action="store_true", help="print the best config of every result")

    def run(given: argparse.Namespace) -> int:
        if given.export:
            return _moved(tuning_store.export, given.export, "results")
        if given.load:
            return _moved(tuning_store.load, given.load, "results")
        return _show()

    parser.set_defaults(run=run)
    return _guarded(parser, args)


def _guarded(parser: argparse.ArgumentParser, args: list[str]) -> int:
    given = parser.parse_args(args)
    try:
        return given.run(given)
    except BrokenPipeError:
        raise
    except (OSError, TesseraError) as error:
        print(f"tessera: {reason_of(error)}", file=sys.stderr)
        return 1


def _move(given: argparse.Namespace) -> int:
    return _moved(given.function, given.file, "kernels")


def _moved(function: Callable[[str], int], path: str, what: str) -> int:
    print(f"{function(path)} {what}")
    return 0


def _show() -> int:
    folder = Path(tuning_store.folder())
    for path in sorted(folder.glob("*.json")):
        timings = tuning_store.read(str(path))
        if timings:
            best = min(timings, key=lambda config: timings[config])
            print(f"{path.stem}: {shown(best)} ({timings[best][0]:.4f} ms, {len(timings)} configs)")
    return 0


# --- the cache of compiled kernels ---------------------------------------------------------------------------------
def _files(store: DiskCache) -> list[Path]:
    return sorted(store.folder.glob(f"??/*{SUFFIX}"))


def _info(_: argparse.Namespace) -> int:
    store = disk_cache()
    files = _files(store)
    size = sum(path.stat().st_size for path in files)
    print(f"{store.folder}: {len(files)} kernels, {size / 1e6:.1f} MB")
    if knobs.cache.shared_dir:
        shared = sum(1 for _ in Path(knobs.cache.shared_dir).glob(f"??/*{SUFFIX}"))
        print(f"{knobs.cache.shared_dir} (shared, read-only): {shared} kernels")
    return 0


def _last_use(path: Path) -> float:
    used = path.stat()
    return max(used.st_atime, used.st_mtime)


def _list(_: argparse.Namespace) -> int:
    now = time.time()
    for path in sorted(_files(disk_cache()), key=_last_use, reverse=True):
        entry = decode(path.stem, path.read_bytes()) or {}
        about = entry.get("metadata")
        name = cast("dict[str, object]", about).get("name", "?") if isinstance(about, dict) else "?"
        days = max(now - _last_use(path), 0.0) / 86400  # its time may be a tick ahead of the clock
        print(f"{path.stem[:12]}  {path.stat().st_size / 1e3:8.1f} kB  {days:6.1f} days  {name}")
    return 0


def _prune(given: argparse.Namespace) -> int:
    files = sorted(_files(disk_cache()), key=_last_use)
    size, removed = sum(path.stat().st_size for path in files), 0
    for path in files:
        if size <= given.megabytes * 1e6:
            break
        size -= path.stat().st_size
        path.unlink(missing_ok=True)
        removed += 1
    print(f"{removed} kernels removed, {size / 1e6:.1f} MB left")
    return 0


def _clear(given: argparse.Namespace) -> int:
    store, limit = disk_cache(), time.time() - given.older * 86400
    removed = 0
    for path in _files(store):
        if _last_use(path) <= limit:
            path.unlink(missing_ok=True)
            removed += 1
    print(f"{removed} kernels removed")
    return 0


def export_cache(path: str) -> int:
    """Write all valid entries of the user's cache to a tar file; return how many."""
    store, count = disk_cache(), 0
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for file in _files(store):
            data = file.read_bytes()
            if decode(file.stem, data) is None:
                continue
            entry = tarfile.TarInfo(file.name)
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
            count += 1
    return count


def import_cache(path: str) -> int:
    """Add the entries of a file of `export_cache`; return how many. Raises TesseraError for damaged ones."""
    store, count = disk_cache(), 0
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                file = archive.extractfile(member)
                key = os.path.basename(member.name).removesuffix(SUFFIX)
                data = file.read() if file is not None else b""
                entry = decode(key, data)
                if entry is None:
                    raise TesseraError(f"{path}: the entry {member.name!r} is damaged")
                store.put(key, entry)
                count += 1
    except (tarfile.TarError, EOFError) as error:
        raise TesseraError(f"{path} is no export of a cache: {error}") from error
    return count
