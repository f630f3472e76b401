"""Implements the disk cache of compiled kernels: one content-addressed, checksummed file for each entry.

An entry is a dict of named parts: bytes, text or JSON values. Its file `ab/abcdef….tsr` holds

    magic, SHA-256 of all that follows, length of the table, table (JSON: key, parts), the parts' bytes

and appears by an atomic rename, so readers see all of it or nothing and no locks are needed. A file that is truncated,
damaged, of another format or of another key is a miss: it is removed if possible, and the kernel is compiled again.

Tiers: memory (only what could not be written), the user's folder (cache.dir), a read-only shared folder
(cache.shared_dir, TESSERA_CACHE_SHARED). If the folder cannot be written (read-only, full disk), entries stay in
memory and one warning says so. Folders and files that another user may have written are not used (`trust`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias, cast

from tessera.backends.llvm import binding
from tessera.backends.llvm.subset_loader import keep_objects_by
from tessera.config import knobs
from tessera.runtime.cache.trust import own_part, private_folder, read_trusted, why_not
from tessera.utilities import PACKAGE, stacklevel_of_caller

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Part: TypeAlias = "bytes | Json"
Entry: TypeAlias = "dict[str, Any]"

MAGIC = b"TESSERA1"
DIGEST_BYTES = 32  # of SHA-256
HEAD_BYTES = len(MAGIC) + DIGEST_BYTES + 8
SUFFIX = ".tsr"


class CacheWarning(UserWarning):
    """The cache folder cannot be used as intended."""


# --- keys ---------------------------------------------------------------------------------------------------
def key_of(*parts: object) -> str:
    """Return a key (64 hex digits) of `parts`: nested tuples, lists, dicts, sets of str, bytes, int, float, bool, None.

    Values of different type or structure give different keys: ("ab", "c") is not ("a", "bc"), 1 is not True nor 1.0.
    TypeError for anything else: a key must not depend on an object's address.
    """
    pieces: list[bytes] = []
    _feed(parts, pieces)
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def _feed(value: object, out: list[bytes]) -> None:
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is float:
        data = repr(value).encode()
    elif isinstance(value, str):
        kind, data = str, value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        kind, data = bytes, bytes(value)
    elif isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        rows = [(key_of(k), k, v) for k, v in mapping.items()]
        _feed_items("dict", sorted(rows, key=itemgetter(0)), out)
        return
    elif isinstance(value, (set, frozenset)):
        members = cast("frozenset[object]", value)
        _feed_items("set", sorted(key_of(v) for v in members), out)
        return
    elif isinstance(value, (tuple, list)):
        _feed_items(
            "list" if isinstance(value, list) else "tuple", cast("list[object]", value), out
        )
        return
    elif isinstance(value, int):  # enumerations and other subclasses
        kind, data = int, repr(int(value)).encode()
    else:
        raise TypeError(f"a cache key cannot contain {value!r} of type {kind.__name__}")
    out.append(f"{kind.__name__}:{len(data)}:".encode())
    out.append(data)


def _feed_items(kind: str, items: Iterable[object], out: list[bytes]) -> None:
    items = list(items)
    out.append(f"{kind}:{len(items)}:".encode())
    for item in items:
        _feed(item, out)


@cache
def source_fingerprint() -> str:
    """Return a hash of tessera's own sources: another compiler makes other kernels. Only contents count, so that equal
    installations on several machines share entries. Takes some milliseconds, once per process."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE)}:{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


@cache
def toolchain_fingerprint() -> str:
    """Return a hash of what besides the kernel determines the generated code: tessera, LLVM, Python and the kind of
    machine. The versions of target tools (ptxas) and the host's CPU belong to the target's own key."""
    python = ".".join(map(str, sys.version_info[:2]))
    return key_of(
        source_fingerprint(), binding.version(), python, platform.system(), platform.machine()
    )


# --- the file format ------------------------------------------------------------------------------------------
def encode(key: str, parts: Mapping[str, Part]) -> bytes:
    """Return the bytes of an entry's file."""
    table: list[list[str | int]] = []
    blobs: list[bytes] = []
    for name, value in parts.items():
        if isinstance(value, bytes):
            kind, data = "bytes", value
        elif isinstance(value, str):
            kind, data = "text", value.encode("utf-8", "surrogatepass")
        else:
            kind, data = "json", json.dumps(value).encode()
        table.append([name, kind, len(data)])
        blobs.append(data)
    head = json.dumps({"key": key, "parts": table}).encode()
    payload = b"".join([len(head).to_bytes(8, "little"), head, *blobs])
    return MAGIC + hashlib.sha256(payload).digest() + payload


def decode(key: str, data: bytes) -> Entry | None:
    """Return the entry in `data`; None if it is damaged or belongs to another key."""
    if len(data) < HEAD_BYTES or not data.startswith(MAGIC):
        return None
    payload = memoryview(data)[len(MAGIC) + DIGEST_BYTES :]
    if hashlib.sha256(payload).digest() != data[len(MAGIC) : len(MAGIC) + DIGEST_BYTES]:
        return None
    try:
        return _parts(key, payload)
    except (KeyError, TypeError, ValueError):  # intact, but of a version with another table
        return None


def _parts(key: str, payload: memoryview) -> Entry | None:
    start = 8 + int.from_bytes(payload[:8], "little")
    head = json.loads(bytes(payload[8:start]))
    if head["key"] != key:
        return None
    entry: Entry = {}
    for name, kind, size in head["parts"]:
        blob = bytes(payload[start : start + size])
        start += size
        if kind == "bytes":
            entry[name] = blob
        elif kind == "text":
            entry[name] = blob.decode("utf-8", "surrogatepass")
        else:
            entry[name] = json.loads(blob)
    return entry


# --- the cache --------------------------------------------------------------------------------------------------
class DiskCache:
    """Entries in `folder`, then in the read-only `shared` folder. Safe for threads and processes."""

    def __init__(
        self, folder: str | os.PathLike[str], shared: str | os.PathLike[str] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.shared = Path(shared) if shared else None
        self.unwritten: dict[str, Entry] = {}
        self._warned = False
        self._lock = threading.Lock()

    @staticmethod
    def path_in(folder: Path, key: str) -> Path:
        """Return the path of the file of `key` below `folder`."""
        return folder / key[:2] / (key + SUFFIX)

    def get(self, key: str) -> Entry | None:
        """Return the entry of `key`, None if there is none that can be trusted."""
        held = self.unwritten.get(key)
        if held is not None:
            return dict(held)
        entry = self._read(self.path_in(self.folder, key), key, remove=True)
        if entry is None and self.shared is not None:
            entry = self._read(self.path_in(self.shared, key), key, remove=False)
        return entry

    def _read(self, path: Path, key: str, remove: bool) -> Entry | None:
        shared = not remove
        try:
            data = read_trusted(
                path, (self.shared or self.folder) if shared else self.folder, shared
            )
        except OSError:
            return None
        entry = None if data is None else decode(key, data)
        if entry is None and remove:
            with contextlib.suppress(OSError):
                path.unlink()
        return entry

    def put(self, key: str, parts: Mapping[str, Part]) -> None:
        """Keep `parts` (bytes, str, or JSON values) under `key`. TypeError for a part that JSON cannot represent."""
        data = encode(key, parts)
        path = self.path_in(self.folder, key)
        try:
            if not self.folder.exists():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(exist_ok=True)
            self._publish(path, data)
        except OSError as error:
            decoded = decode(key, data)
            assert decoded is not None
            self.unwritten[key] = decoded
            self._warn(error)

    @staticmethod
    def _publish(path: Path, data: bytes) -> None:
        import tempfile  # only by a process that compiles: it loads eight modules

        handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _warn(self, error: OSError) -> None:
        with self._lock:
            if self._warned:
                return
            self._warned = True
        reason = error.strerror or str(error)
        warnings.warn(
            f"compiled kernels cannot be kept in {self.folder} ({reason}) and are kept in memory only; "
            "set TESSERA_CACHE_DIR to a writable folder",
            CacheWarning,
            stacklevel=stacklevel_of_caller(),
        )

    def remove(self, key: str) -> None:
        """Remove the entry of `key` from memory and the user's folder, not from the shared folder."""
        self.unwritten.pop(key, None)
        with contextlib.suppress(OSError):
            self.path_in(self.folder, key).unlink()

    def keys(self) -> list[str]:
        """Return the keys in memory and in the user's folder."""
        stored = (path.stem for path in self.folder.glob(f"??/*{SUFFIX}"))
        return sorted({*self.unwritten, *stored})


_caches: dict[tuple[str, str | None, bool], DiskCache] = {}


def _temporary_folder() -> str:
    import tempfile

    return tempfile.gettempdir()


def disk_cache() -> DiskCache:
    """Return the cache of the folders that the knobs name now, as far as they can be trusted."""
    shared = knobs.cache.shared_dir
    places = (knobs.cache.dir or _temporary_folder(), shared, knobs.cache.trust)
    found = _caches.get(places)
    if found is None:
        folder = _trusted(Path(places[0]))
        if shared and _refused(Path(shared), "is not looked into", shared=True):
            shared = None
        found = _caches.setdefault(places, DiskCache(folder, shared))
    return found


def _trusted(folder: Path) -> Path:
    """Return the folder if it is trusted, else a substitute: the one in this user's home, or one of this process."""
    usual = Path(knobs.cache.home_dir or "") / ".tessera" / "cache"
    instead = usual if usual != folder and why_not(usual) is None else None
    where = str(instead) if instead else "a folder of this process"
    own = own_part(folder)
    if own is not None or not _refused(folder, f"is not used, but {where}"):
        return own or folder
    return instead or private_folder()


def _refused(folder: Path, what: str, shared: bool = False) -> bool:
    """Whether a folder cannot be trusted; warns if so."""
    why = why_not(folder, shared)
    if why is not None:
        warnings.warn(
            f"the cache folder {folder} {what}: {why}; make it yours alone (chown, chmod o-w), set "
            f"{'TESSERA_CACHE_SHARED' if shared else 'TESSERA_CACHE_DIR'} to another folder, or TESSERA_CACHE_TRUST=1",
            CacheWarning,
            stacklevel=stacklevel_of_caller(),
        )
    return why is not None


def get(key: str) -> Entry | None:
    """Return the entry of `key` in the current cache, or None."""
    return disk_cache().get(key)


def put(key: str, parts: Mapping[str, Part]) -> None:
    """Keep `parts` under `key` in the current cache."""
    disk_cache().put(key, parts)


def _kept(name: str, make: Callable[[], bytes]) -> bytes:
    """Return an object file of our native functions, cached so that only the first process compiles it."""
    key, store = key_of("native", name, toolchain_fingerprint()), disk_cache()
    found = store.get(key)
    image = found.get("object") if found is not None else None
    if image is None:
        image = make()
        store.put(key, {"object": image})
    return image


keep_objects_by(_kept)
