"""Lowers accesses to elements in shared memory, which other lowerings call, and the barrier."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.gpu.packing import pack, packed_shape, unpack
from tessera.backends.gpu.types import memory_bits
from tessera.backends.gpu.writer import split
from tessera.ir import ElementType
from tessera.ops import gpu, memory

VECTOR_BITS = 128  # of the widest access of a thread (PTX, ld.shared.v4)


def store_elements(
    fl: FunctionLowering, elem: ElementType, address: str, names: Sequence[str], mask: str = "true"
) -> None:
    """Write neighbouring elements at an aligned shared address, in vectors of up to 16 bytes."""
    step = max(1, min(len(names), VECTOR_BITS // memory_bits(elem)))
    base, offset = split(fl.w.offsets, address)
    for i in range(0, len(names), step):
        shape = packed_shape(elem, step)
        regs = pack(fl, elem, names[i : i + step], shape)
        at = offset + i * memory_bits(elem) // 8
        fl.target.store_shared(fl.w, (base, at), shape, regs, mask)


def load_elements(fl: FunctionLowering, elem: ElementType, address: str, count: int) -> list[str]:
    """Read `count` neighbouring elements from an aligned shared address."""
    step = max(1, min(count, VECTOR_BITS // memory_bits(elem)))
    base, offset = split(fl.w.offsets, address)
    result: list[str] = []
    for i in range(0, count, step):
        shape = packed_shape(elem, step)
        at = offset + i * memory_bits(elem) // 8
        regs = fl.target.load_shared(fl.w, (base, at), shape)
        result += unpack(fl, elem, regs, shape)
    return result


@lowers(gpu.WarpBarrierOp)
def _warp_barrier(fl: FunctionLowering, op: gpu.WarpBarrierOp) -> None:
    fl.target.warp_barrier(fl.w)


@lowers(memory.BarrierOp)
def _barrier(fl: FunctionLowering, op: memory.BarrierOp) -> None:
    if op.attrs.get("proxy"):
        fl.target.proxy_fence(fl.w)
    fl.target.barrier(fl.w)
