"""Tells how shared memory is used: passes over its banks of each op, exactly, from layouts; buffers and their lives.

Reductions, scans and atomics, whose few words go through scratch memory, are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tessera import ops
from tessera.analysis.allocation import Buffer, Positions, buffers_of
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.scratch import conversion_plan, staging
from tessera.backends.gpu.access import access_for
from tessera.backends.gpu.types import memory_bits
from tessera.explain.widths import elements_at_once
from tessera.ir import Op, elem_of
from tessera.layout import LinearLayout, MatrixAccess, SharedExchange, images, offset_map
from tessera.layout.access import Access
from tessera.layout.boxes import box_layout
from tessera.layout.shared import LINE_BITS, ROW_BITS, count_wavefronts, turned_lanes
from tessera.passes.gpu_facts import GpuFacts


@dataclass(frozen=True, slots=True)
class Banks:
    """Of one execution of an op by all warps of a program: instructions, passes over the banks, and how many passes
    there would be without conflicts."""

    accesses: int
    passes: int
    ideal: int


def _of_access(access: Access, elem_bits: int, warps: int) -> Banks:
    count = len(access.groups) * warps
    bits = (
        ROW_BITS * 8 * access.count
        if isinstance(access, MatrixAccess)
        else 32 * access.vec * elem_bits
    )
    return Banks(count, count * access.wavefronts, count * max(1, bits // LINE_BITS))


def _warps(layout: LinearLayout, once: bool) -> int:
    """Return how many warps take part; `once`: those that hold copies do not."""
    free = layout.free_masks().get("warp", 0) if once else 0
    return layout.size("warp") >> free.bit_count()


def banks_of(op: Op, facts: GpuFacts, axis: AxisAnalysis) -> Banks | None:
    """Return what an op's accesses of shared memory cost; None for ops that have none."""
    found = list(_accesses(op, facts, axis))
    if not found:
        return None
    return Banks(
        *(sum(getattr(b, name) for b in found) for name in ("accesses", "passes", "ideal"))
    )


def _accesses(op: Op, facts: GpuFacts, axis: AxisAnalysis) -> Iterator[Banks]:
    if isinstance(op, ops.LocalLoadOp):
        t = op.result.type
        bits = memory_bits(t.elem)
        access = access_for(t.layout, op.shared.type.layout, bits, facts.has_ldmatrix)
        yield _of_access(access, bits, _warps(t.layout, once=False))
    elif isinstance(op, ops.LocalStoreOp) or (
        isinstance(op, ops.LocalAllocOp) and op.init is not None
    ):
        value = op.value if isinstance(op, ops.LocalStoreOp) else op.init
        assert value is not None
        memory = op.shared.type if isinstance(op, ops.LocalStoreOp) else op.result.type
        bits = memory_bits(value.type.elem)
        access = access_for(value.type.layout, memory.layout, bits, facts.has_stmatrix)
        yield _of_access(access, bits, _warps(value.type.layout, once=True))
    elif isinstance(op, ops.AsyncCopyOp):
        yield _of_copy(op, elements_at_once(op, axis))
    elif isinstance(op, ops.ConvertLayoutOp):
        plan = conversion_plan(op, facts)
        if isinstance(plan, SharedExchange):
            bits = max(8, memory_bits(elem_of(op.x.type)))
            for step in plan.rounds:
                yield _of_access(step.store, bits, _warps(op.x.type.layout, once=True))
                yield _of_access(step.load, bits, _warps(op.result.type.layout, once=False))
    elif isinstance(op, ops.DescriptorStoreOp | ops.DescriptorLoadOp) and "map" in op.attrs:
        yield _of_block(op, facts)


def _of_block(op: ops.DescriptorStoreOp | ops.DescriptorLoadOp, facts: GpuFacts) -> Banks:
    """Of threads' own part of what goes through shared memory to or from the TMA unit."""
    loads = isinstance(op, ops.DescriptorLoadOp)
    t = op.result.type if loads else op.value.type
    layout, bits = t.layout, memory_bits(t.elem)
    if loads:
        shared = box_layout(t.shape, bits)
        assert shared is not None, "no tile for the TMA unit"
        access = access_for(layout, shared, bits, facts.has_ldmatrix)
        return _of_access(access, bits, _warps(layout, once=False))
    how = staging(op, layout.size("warp"))
    access = access_for(layout, how.layout, bits, facts.has_stmatrix)
    if not isinstance(access, MatrixAccess):
        layout, _ = turned_lanes(layout, how.layout, bits, how.elements)
        access = access_for(layout, how.layout, bits, facts.has_stmatrix)
    return _of_access(access, bits, _warps(layout, once=True))


def _of_copy(op: ops.AsyncCopyOp, width: int) -> Banks:
    layout, bits = op.ptr.type.layout, memory_bits(op.shared.type.elem)
    offsets = offset_map(layout, op.shared.type.layout)
    same = layout.register_representatives()
    groups = sum(1 for i in range(0, len(same), width) if same[i] == i)
    count = groups * _warps(layout, once=True)
    passes = count_wavefronts(images(offsets.lane), bits, width)
    return Banks(count, count * passes, count * max(1, 32 * width * bits // LINE_BITS))


# --- buffers --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BufferLife:
    """A buffer in shared memory: the op it belongs to, its bytes and their offset, and the ops, in program order,
    between which it lives."""

    op: Op
    size: int
    offset: int
    first: Op
    last: Op

    @property
    def name(self) -> str:
        return (
            self.op.results[0].name
            if self.op.results and self.op.results[0].name
            else self.op.opcode
        )


def buffers(func: ops.FuncOp, num_warps: int, facts: GpuFacts) -> list[BufferLife]:
    """Return a function's buffers in shared memory, as allocation placed them, by offset."""
    at = Positions(func)
    order = list(at.first)
    found: list[BufferLife] = []
    for b in buffers_of(func, num_warps, facts):
        last = order[min(b.end, len(order) - 1)]
        found.append(BufferLife(b.op, b.size, _offset(b), order[b.start], last))
    return sorted(found, key=lambda b: (b.offset, at.first[b.first]))


def _offset(b: Buffer) -> int:
    if isinstance(b.op, ops.LocalAllocOp):
        return b.op.offset
    return int(b.op.attrs.get("scratch", 0))
