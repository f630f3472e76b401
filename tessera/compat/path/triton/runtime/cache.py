"""`triton.runtime.cache`: files kept by key, for programs that keep some of their own beside the kernels.

An entry of the cache of compiled kernels is one checksummed file and does not pass here: `tessera.runtime.cache`.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from tessera import knobs
from tessera.compat.absent import absent
from tessera.compat.binaries import folder_name as _base32
from tessera.runtime import cache as _cache
from tessera.runtime.cache import toolchain_fingerprint


def triton_key() -> str:
    """What compiled code depends on besides the kernel: tessera's sources, LLVM, Python."""
    return toolchain_fingerprint()


def default_cache_dir() -> str:
    return str(knobs.cache.dir)


def default_dump_dir() -> str:
    return str(knobs.cache.dump_dir)


def default_override_dir() -> str:
    return str(knobs.cache.override_dir)


class CacheManager:
    """Files under one key. `put` returns the path of the file that it wrote; readers never see half of one."""

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
            default_override_dir()
            if override
            else default_dump_dir()
            if dump
            else default_cache_dir()
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
        """The files of a group by name, those that are there; None without the group."""
        index = self._path(f"__grp__{filename}")
        if not index.exists():
            return None
        names = json.loads(index.read_text())["child_paths"]
        return {name: path for name, path in names.items() if os.path.exists(path)}

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        return self.put(json.dumps({"child_paths": group}), f"__grp__{filename}", binary=False)


def get_cache_manager(key: str) -> CacheManager:
    """The files kept under `key`, any string."""
    return FileCacheManager(_folder(key))


def get_override_manager(key: str) -> CacheManager:
    return FileCacheManager(_folder(key), override=True)


def get_dump_manager(key: str) -> CacheManager:
    return FileCacheManager(_folder(key), dump=True)


def _folder(key: str) -> str:
    """Triton's name of the folder of a digest in hexadecimal digits; other keys are names already."""
    digest = len(key) == 64 and all(c in "0123456789abcdef" for c in key)
    return _base32(key) if digest else key


__all__ = [
    "CacheManager", "FileCacheManager", "_base32", "default_cache_dir", "default_dump_dir", "default_override_dir",
    "get_cache_manager", "get_dump_manager", "get_override_manager", "knobs", "triton_key",
]  # fmt: skip
__getattr__ = absent(__name__, _cache)
