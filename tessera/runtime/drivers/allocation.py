"""Registers the allocator of device memory that kernels request while they run."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

# (bytes, alignment, stream or None) → an object with `data_ptr()`
Allocator = Callable[[int, int, int | None], Any]


class NullAllocator:
    """The allocator where none is set: it has no memory to give."""

    def __call__(self, size: int, alignment: int, stream: int | None) -> Any:
        raise RuntimeError(f"no allocator is set for {size} bytes of device memory: set_allocator")


_NONE = NullAllocator()
allocator: ContextVar[Allocator] = ContextVar("tessera_allocator", default=_NONE)


def set_allocator(allocate: Allocator | None) -> None:
    """Make kernels of this context get their scratch memory in global memory from `allocate`; None unsets it.

    `allocate(size, alignment, stream)` takes bytes and returns an object with `data_ptr()`. No kernel that tessera
    compiles needs any today: descriptors made inside a kernel are in registers.

    Example:
        >>> tessera.set_allocator(lambda size, alignment, stream: np.zeros(size, np.uint8))
        >>> tessera.set_allocator(None)
    """
    allocator.set(_NONE if allocate is None else allocate)
