"""Lists every NVIDIA instruction that the lowering emits: operand types, PTX or intrinsic, and what it means for
lanes.

Families (vector widths, atomics, matrix shapes) are functions that make a row. Rows with `constraints` are inline PTX,
the others LLVM intrinsics. The simulator runs the meanings.
"""

from tessera.backends.nvidia.primitives import basics, memory, mmas, order, tma
from tessera.backends.nvidia.primitives.memory import (
    add_vector,
    async_copy,
    async_copy_where,
    async_wait,
    atomic,
    atomic_shared_add,
    load_global,
    load_matrix,
    load_shared,
    store_global,
    store_matrix,
    store_shared,
)
from tessera.backends.nvidia.primitives.mmas import mma, wgmma, wgmma_wait
from tessera.backends.nvidia.primitives.order import (
    barrier_of,
    group_barrier,
    mbarrier_expect,
    mbarrier_init,
    memory_fence,
    named_barrier_arrive,
    named_barrier_sync,
    set_registers,
)
from tessera.backends.nvidia.primitives.row import (
    FAMILIES,
    NOTE,
    PRIMITIVES,
    Primitive,
    braces,
    emit_primitive,
    letter,
    struct,
)
from tessera.backends.nvidia.primitives.tma import bulk_wait, tensor_load, tensor_store

__all__ = [
    "FAMILIES", "NOTE", "PRIMITIVES", "Primitive", "add_vector", "async_copy", "async_copy_where", "async_wait",
    "atomic", "atomic_shared_add", "barrier_of", "braces", "bulk_wait", "emit_primitive", "group_barrier", "letter",
    "load_global", "load_matrix", "load_shared", "mbarrier_expect", "mbarrier_init", "memory_fence", "mma",
    "named_barrier_arrive", "named_barrier_sync", "set_registers", "store_global", "store_matrix", "store_shared",
    "struct", "tensor_load", "tensor_store", "wgmma", "wgmma_wait",
]  # fmt: skip

_REGISTERED = (basics, memory, order, mmas, tma)  # imported for their rows
