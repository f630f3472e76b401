"""Defines cache managers, which keep files by key, with the interface that Triton defines for users' own classes.

`cache.manager_class` names such a class; each entry of the cache of compiled kernels is then one file of it
(`ManagedCache`). Two are here: one with a folder for each key, and one that asks a remote backend for missing files.
"""

from __future__ import annotations

import base64
import json
import os
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tessera.config import knobs
from tessera.runtime.cache.disk import SUFFIX, CacheWarning, Entry, Part, decode, disk_cache, encode
from tessera.utilities import stacklevel_of_caller


def folder_name(key: str) -> str:
    """Return the name of the folder of the entry with this hexadecimal key."""
    return base64.b32encode(bytes.fromhex(key)).decode().rstrip("=")


def folder_of(key: str) -> str:
    """Return Triton's name of the folder for a hexadecimal digest; other keys are names already."""
    digest = len(key) == 64 and all(c in "0123456789abcdef" for c in key)
    return folder_name(key) if digest else key


class CacheManager:
    """The files of one key. `put` returns the path of the file that it wrote; readers never see a partial file."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self.key = key

    def get_file(self, filename: str) -> str | None:
        raise NotImplementedError

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        raise NotImplementedError

    def get_group(self, filename: str) -> dict[str, str] | None:
        raise NotImplementedError

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        raise NotImplementedError


class FileCacheManager(CacheManager):
    """A folder for each key below cache.dir, or below the folder of dumps or overrides."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        root = (
            str(knobs.cache.override_dir)
            if override
            else str(knobs.cache.dump_dir)
            if dump
            else str(disk_cache().folder)
        )
        self.cache_dir = os.path.join(root, key)
        if not override:
            os.makedirs(self.cache_dir, exist_ok=True)

    def _path(self, filename: str) -> Path:
        return Path(self.cache_dir) / filename

    def has_file(self, filename: str) -> bool:
        return self._path(filename).exists()

    def get_file(self, filename: str) -> str | None:
        return str(self._path(filename)) if self.has_file(filename) else None

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        import tempfile

        content = data if isinstance(data, bytes) else str(data).encode()
        os.makedirs(self.cache_dir, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{filename}.", dir=self.cache_dir)
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(content)
            os.replace(temporary, self._path(filename))
        except BaseException:
            os.unlink(temporary)
            raise
        return str(self._path(filename))

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the existing files of a group by name; None if there is no such group."""
        index = self._path(f"__grp__{filename}")
        if not index.exists():
            return None
        names = json.loads(index.read_text(encoding="utf-8"))["child_paths"]
        return {name: path for name, path in names.items() if os.path.exists(path)}

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        return self.put(json.dumps({"child_paths": group}), f"__grp__{filename}", binary=False)


class RemoteCacheBackend:
    """A remote store of files. `cache.remote_manager_class` names such a class, constructed with a key."""

    def __init__(self, key: str) -> None:
        self.key = key

    def get(self, filenames: list[str]) -> dict[str, bytes]:
        """Return the files that exist, by name."""
        raise NotImplementedError

    def put(self, filename: str, data: bytes) -> None:
        raise NotImplementedError


class RedisRemoteCacheBackend(RemoteCacheBackend):
    """Files in a Redis server, through the package `redis`; the knobs redis.* give its address and the names."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self._server: Any = import_module("redis").Redis(
            host=knobs.redis.host, port=knobs.redis.port
        )

    def _name(self, filename: str) -> str:
        return str(knobs.redis.key_format).format(key=self.key, filename=filename)

    def get(self, filenames: list[str]) -> dict[str, bytes]:
        found = self._server.mget([self._name(f) for f in filenames])
        return {f: data for f, data in zip(filenames, found, strict=True) if data is not None}

    def put(self, filename: str, data: bytes) -> None:
        self._server.set(self._name(filename), data)


class RemoteCacheManager(FileCacheManager):
    """A folder for each key; files missing there are asked of the remote backend, and new files go to it, too."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        self.backend: RemoteCacheBackend | None = None
        if override or dump:
            return
        made: Any = knobs.cache.remote_manager_class
        if made is None:
            raise RuntimeError(
                "RemoteCacheManager needs cache.remote_manager_class (TRITON_REMOTE_CACHE_BACKEND)"
            )
        self.backend = made(key)

    def get_file(self, filename: str) -> str | None:
        found = super().get_file(filename)
        if found is None and self.backend is not None:
            data = self.backend.get([filename]).get(filename)
            return super().put(data, filename) if data is not None else None
        return found

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        path = super().put(data, filename, binary)
        if self.backend is not None:
            self.backend.put(filename, data if isinstance(data, bytes) else data.encode())
        return path


class ManagedCache:
    """The cache of compiled kernels through a manager class. What it returns is checked like our own files. What it
    raises costs a compilation and a warning, not the launch."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    def get(self, key: str) -> Entry | None:
        try:
            path = self.manager(folder_of(key)).get_file(key + SUFFIX)
            return decode(key, Path(path).read_bytes()) if path is not None else None
        except Exception as error:
            self._warn("read", error)
            return None

    def put(self, key: str, parts: Mapping[str, Part]) -> None:
        try:
            self.manager(folder_of(key)).put(encode(key, parts), key + SUFFIX, binary=True)
        except Exception as error:
            self._warn("keep", error)

    def _warn(self, what: str, error: Exception) -> None:
        name = getattr(self.manager, "__qualname__", self.manager)
        reason = f"{type(error).__name__}: {error}"
        text = f"the cache manager {name} could not {what} a kernel: {reason}"
        warnings.warn(text, CacheWarning, stacklevel=stacklevel_of_caller())


def kernel_cache() -> Any:
    """Return the cache of compiled kernels: that of the folders that the knobs name, or the manager they name."""
    manager = knobs.cache.manager_class
    return disk_cache() if manager is None else ManagedCache(manager)
