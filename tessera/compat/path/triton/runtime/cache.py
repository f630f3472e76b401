"""`triton.runtime.cache`: names of cache entries as Triton spells them."""

from __future__ import annotations

from tessera import knobs
from tessera.compat.absent import absent
from tessera.compat.binaries import folder_name as _base32
from tessera.runtime import cache as _cache
from tessera.runtime.cache import toolchain_fingerprint


def triton_key() -> str:
    """What compiled code depends on besides the kernel: tessera's sources, LLVM, Python."""
    return toolchain_fingerprint()


__all__ = ["_base32", "knobs", "triton_key"]
__getattr__ = absent(__name__, _cache)
