"""`triton.runtime.cache`: files kept by key, for programs that keep some of their own beside the kernels.

An entry of the cache of compiled kernels is one checksummed file. It passes through `knobs.cache.manager_class` where
that is set (tessera.runtime.cache.managers), else not through these classes.
"""

from __future__ import annotations

from tessera import knobs
from tessera.compat.absent import absent
from tessera.runtime.cache import disk as _cache
from tessera.runtime.cache.disk import toolchain_fingerprint
from tessera.runtime.cache.managers import (
    CacheManager,
    FileCacheManager,
    RedisRemoteCacheBackend,
    RemoteCacheBackend,
    RemoteCacheManager,
    folder_of,
)
from tessera.runtime.cache.managers import folder_name as _base32


def triton_key() -> str:
    """What compiled code depends on besides the kernel: tessera's sources, LLVM, Python."""
    return toolchain_fingerprint()


def default_cache_dir() -> str:
    return str(knobs.cache.dir)


def default_dump_dir() -> str:
    return str(knobs.cache.dump_dir)


def default_override_dir() -> str:
    return str(knobs.cache.override_dir)


def _manager() -> type:
    return knobs.cache.manager_class or FileCacheManager


def get_cache_manager(key: str) -> CacheManager:
    """The files kept under `key`, any string."""
    return _manager()(folder_of(key))


def get_override_manager(key: str) -> CacheManager:
    return _manager()(folder_of(key), override=True)


def get_dump_manager(key: str) -> CacheManager:
    return _manager()(folder_of(key), dump=True)


__all__ = [
    "CacheManager", "FileCacheManager", "RedisRemoteCacheBackend", "RemoteCacheBackend", "RemoteCacheManager",
    "_base32", "default_cache_dir", "default_dump_dir", "default_override_dir", "get_cache_manager",
    "get_dump_manager", "get_override_manager", "knobs", "triton_key",
]  # fmt: skip
__getattr__ = absent(__name__, _cache)
