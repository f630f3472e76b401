"""Puts buffers behind loads that loops with MMAs read besides operands, so that these are copied ahead, too.

A tile that the loop carries from the iteration before takes registers, and the assembler, which copies what is carried,
waits for the load in the iteration that issues it. A copy to shared memory takes neither. But what it takes of shared
memory, other CTAs lack, which hide latency as well."""

from __future__ import annotations

from collections.abc import Sequence

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.registers import reg32_of
from tessera.ir import Module, Op, TileType, Value
from tessera.ir.applications import apply
from tessera.layout import LinearLayout
from tessera.ops.roles import is_in_split
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.anchors import bytes_of
from tessera.passes.gpu_loops.refill import is_light
from tessera.passes.gpu_loops.registers import loads_beside
from tessera.passes.gpu_loops.streams import (
    bytes_beside,
    fastest_dimension,
    is_met,
    require_buffer,
    stream_of,
    through_buffer,
)
from tessera.passes.neutral.fold import is_zero
from tessera.passes.neutral.loops import trip_count

# Registers of a tile from which on a buffer is better, and the warps that an SM must still hold then: of fla's kernels
# on an H200, all that gained had as many.
WIDE_REG32, WARPS = 8, 10
CTAS = 2  # on an SM, of which one computes while another one waits
SHORT = 8  # iterations of loops in which other CTAs hide more than copies ahead
COPY_BITS = 128  # With more adjacent elements of a thread, lanes would ask for every sector twice, by two copies.


def buffer_tiles(
    module: Module, loop: ops.ForOp, axis: AxisAnalysis, facts: GpuFacts, wanted: int
) -> None:
    """Put buffers behind the loads of large tiles, or at least behind those that registers are too few to carry, if an
    SM then still holds enough CTAs, or as many as before."""
    fitting, others = loads_beside(loop, axis, facts)
    large = [op for op in others if _may_be_buffered(op, loop, axis, facts)]
    wide = [
        op
        for op in fitting
        if _may_be_buffered(op, loop, axis, facts) and reg32_of(op.result.type) >= WIDE_REG32
    ]
    num_warps: int = module.attrs["num_warps"]
    choices = [(wide + large, max(CTAS, -(-WARPS // num_warps))), (large, CTAS)]
    trips = trip_count(loop)
    for found, least in choices[:1] if trips is not None and trips <= SHORT else choices:
        if not found:
            return
        fits = _fit(found, num_warps, loop, axis, facts, wanted, least)
        if fits and apply("shared-prefetch", loop):
            for op in found:
                through_buffer(op, axis, facts)
            return


def _may_be_buffered(op: Op, loop: ops.ForOp, axis: AxisAnalysis, facts: GpuFacts) -> bool:
    in_role = isinstance(loop.parent_op(), ops.FuncOp) and is_in_split(loop)
    if in_role or not isinstance(op, ops.LoadOp) or not isinstance(op.result.type, TileType):
        return False
    if op.other is not None and not is_zero(op.other):
        return False
    return is_met(require_buffer, op, axis, facts) and _copied_at_once(op.result.type)


def _copied_at_once(t: TileType) -> bool:
    """Whether one copy moves all adjacent elements of a thread."""
    layout: LinearLayout = t.layout
    dim, rank = fastest_dimension(layout), len(layout.shape)
    along = layout.contiguity((dim, *[d for d in range(rank) if d != dim]))
    return along * t.elem.storage_bits <= COPY_BITS


def _fit(
    loads: Sequence[ops.LoadOp], num_warps: int, loop: ops.ForOp, axis: AxisAnalysis, facts: GpuFacts, wanted: int,
    least: int,
) -> bool:  # fmt: skip
    """Whether an SM still holds `least` CTAs, or as many as before, with buffers behind these loads, too."""
    streams = [s for op in loop.body if (s := stream_of(op, loop, axis, facts)) is not None]
    now: list[Value] = [s.load.result for s in streams]
    then = [*now, *[op.result for op in loads]]
    slots = wanted - is_light(then, num_warps)
    beside = bytes_beside(loop, {s.alloc for s in streams}, num_warps, facts)
    before, after = (
        facts.ctas_that_fit(beside + slots * sum(map(bytes_of, tiles))) for tiles in (now, then)
    )
    return after >= min(least, max(1, before))
