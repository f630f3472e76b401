"""Chooses a layout for every access to global memory, and notes it in the op's attribute `layout`.

The dimension along which addresses count up runs fastest over registers and lanes. A thread takes as many
neighbours as one 16-byte access holds, if address and mask allow. Accesses of one shape and order get one
layout, the widest: an element-wise kernel then needs no conversion, and wide elements are moved by several accesses of
a thread, which find the rest of a sector in the cache. Atomic updates do not, the memory works on each sector as often
as it is named: they take their operands where one access of a warp has no gaps."""

from __future__ import annotations

from math import gcd

from tessera.analysis.axis import AxisAnalysis
from tessera.ir import Module, Op, TileType, Value, elem_of, pass_
from tessera.layout import default_blocked
from tessera.ops import (
    AtomicCasOp,
    AtomicRmwOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    FuncOp,
    LoadOp,
    StoreOp,
)
from tessera.passes.facts import GpuFacts

POINTER_OPS = (LoadOp, StoreOp, AtomicRmwOp, AtomicCasOp)
Group = tuple[tuple[int, ...], tuple[int, ...]]


@pass_("coalesce")
def coalesce(module: Module, facts: GpuFacts) -> None:
    """Set `layout` on loads, stores, atomics and descriptor accesses of tiles. Changes nothing else."""
    num_warps: int = module.attrs["num_warps"]
    for func in module.body:
        assert isinstance(func, FuncOp)
        wanted = [
            w
            for w in (
                _wanted(op, axis, facts) for axis in (AxisAnalysis(func),) for op in func.walk()
            )
            if w
        ]
        widest: dict[Group, int] = {}
        for op, group, vec in wanted:
            # What descriptors move goes through shared memory, where any layout will do.
            if isinstance(op, POINTER_OPS):
                widest[group] = max(widest.get(group, 1), vec)
        for op, group, vec in wanted:
            shape, order = group
            alone = isinstance(op, AtomicRmwOp | AtomicCasOp)
            width = vec if alone else widest.get(group, vec)
            op.attrs["layout"] = default_blocked(shape, num_warps, width, order, facts.warp_size)


def _wanted(op: Op, axis: AxisAnalysis, facts: GpuFacts) -> tuple[Op, Group, int] | None:
    """(op, (shape, order), elements of one access) for an access to a tile."""
    if isinstance(op, DescriptorLoadOp | DescriptorStoreOp):
        t = op.result.type if isinstance(op, DescriptorLoadOp) else op.value.type
        if not isinstance(t, TileType):
            return None
        order = tuple(reversed(range(len(t.shape))))
        return op, (t.shape, order), facts.max_vector_bytes // t.elem.storage_bytes
    if not isinstance(op, POINTER_OPS) or not isinstance(op.ptr.type, TileType):
        return None
    order = access_order(axis, op.ptr)
    mask = None if isinstance(op, AtomicCasOp) else op.mask
    vec = access_width(axis, op.ptr, mask, order[0], facts.max_vector_bytes)
    return op, (op.ptr.type.shape, order), vec


def access_order(axis: AxisAnalysis, ptr: Value) -> tuple[int, ...]:
    """Dimensions from the one along which addresses are contiguous; of equals the last one first."""
    contiguity = axis.facts(ptr).contiguity
    return tuple(sorted(range(len(contiguity)), key=lambda d: (-contiguity[d], -d)))


def access_width(
    axis: AxisAnalysis, ptr: Value, mask: Value | None, dim: int, max_bytes: int
) -> int:
    """Elements along `dim` that one access may move."""
    size = elem_of(ptr.type).element_ty.storage_bytes
    return max(1, gcd(axis.vector_width(ptr, dim), axis.mask_width(mask, dim), max_bytes // size))
