"""Makes fallback variants: code that relies on a launch precondition needs a variant without it, for launches that
violate the precondition.

The fallback variant is compiled, or found in the cache, when it is first needed."""

from __future__ import annotations

from dataclasses import fields
from threading import Lock

from tessera.backends.compiler import Options
from tessera.compiler import CompiledKernel, TextSource
from tessera.compiler import compile as compile_for
from tessera.config.forking import undivided
from tessera.runtime.cache.disk import toolchain_fingerprint
from tessera.runtime.cache.managers import kernel_cache

LEVEL = "tir"  # the level that both variants are compiled from


class FallbackVariant:
    """The variant of a kernel that works for any launch, compiled and loaded once; native launches have its
    addresses."""

    def __init__(self, kernel: CompiledKernel, driver: object) -> None:
        self.kernel, self.driver = kernel, driver
        self.made: CompiledKernel | None = None
        self.lock = Lock()

    def get(self) -> CompiledKernel:
        with undivided(), self.lock:
            if self.made is None:
                found = fallback_of(self.kernel)
                found.load(self.driver)
                self.made = found
            return self.made


def given_up(metadata: object) -> str:
    """Return the option without which the next fallback variant of a kernel is compiled. The first assumption that the
    kernel makes is dropped, in this order: disjoint arrays, several programs per CTA, TMA for pointers, TMA for stores
    through descriptors."""
    has_more = {
        "no_alias": hasattr(metadata, "assumes_no_alias"), "persistent": hasattr(metadata, "resident_ctas"),
        "pointer_maps": not hasattr(metadata, "edges"), "tensor_stores": True,
    }  # fmt: skip
    return next(name for name, more in has_more.items() if more)


def fallback_of(kernel: CompiledKernel) -> CompiledKernel:
    """Compile the kernel without an assumption that needs its precondition."""
    m = kernel.metadata
    options = {f.name: getattr(m, f.name) for f in fields(Options) if f.name != "target"}
    source: object = kernel.src  # where the cache keeps binaries only, there are no texts
    if LEVEL in kernel.asm:
        source = TextSource(kernel.asm[LEVEL], kernel.name, kernel.asm["source"])
    return compile_for(
        source, kernel.target, {**options, given_up(m): False},
        store=kernel_cache(), toolchain=toolchain_fingerprint(),
    )  # fmt: skip
