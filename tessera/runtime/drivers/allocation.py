"""Registers the allocator of device memory that kernels request while they run."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

# (bytes, alignment, stream or None) → an object with `data_ptr()`
Allocator = Callable[[int, int, int | None], Any]

_allocator: ContextVar[Allocator | None] = ContextVar("tessera_allocator", default=None)


def set_allocator(allocate: Allocator | None) -> None:
    """Make kernels of this context get their scratch memory in global memory from `allocate`; None unsets it.

    `allocate(size, alignment, stream)` takes bytes and returns an object with `data_ptr()`. No kernel that tessera
    compiles needs any today: descriptors made inside a kernel are in registers.

    Example:
        >>> tessera.set_allocator(lambda size, alignment, stream: np.zeros(size, np.uint8))
        >>> tessera.set_allocator(None)
    """
    _allocator.set(allocate)


def allocator() -> Allocator | None:
    """Return the allocator of this context."""
    return _allocator.get()
