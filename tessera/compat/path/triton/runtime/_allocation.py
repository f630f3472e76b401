"""`triton.runtime._allocation`."""

from tessera.compat.absent import absent
from tessera.runtime.drivers.allocation import Allocator, NullAllocator, set_allocator
from tessera.runtime.drivers.allocation import allocator as _allocator

__all__ = ["Allocator", "NullAllocator", "_allocator", "set_allocator"]
__getattr__ = absent(__name__)
