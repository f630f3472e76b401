"""`triton.runtime.cache`: names of cache entries as Triton spells them."""

from __future__ import annotations

import base64

from tessera import knobs
from tessera.compat.absent import absent
from tessera.runtime import cache as _cache
from tessera.runtime.cache import toolchain_fingerprint


def _base32(key: str) -> str:
    """The folder name of an entry with this hexadecimal key."""
    return base64.b32encode(bytes.fromhex(key)).decode().rstrip("=")


def triton_key() -> str:
    """What compiled code depends on besides the kernel: tessera's sources, LLVM, Python."""
    return toolchain_fingerprint()


__all__ = ["_base32", "knobs", "triton_key"]
__getattr__ = absent(__name__, _cache)
