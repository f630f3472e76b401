"""Keeps compiled kernels on disk: keys, files, which files are trusted, and managers that programs may replace."""

from tessera.runtime.cache.disk import (
    CacheWarning,
    DiskCache,
    disk_cache,
    key_of,
    toolchain_fingerprint,
)
from tessera.runtime.cache.managers import FileCacheManager, kernel_cache

__all__ = [
    "CacheWarning", "DiskCache", "FileCacheManager", "disk_cache", "kernel_cache", "key_of",
    "toolchain_fingerprint",
]  # fmt: skip
