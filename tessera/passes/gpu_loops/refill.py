"""Lets small CTAs fill a buffer again as soon as it has been read, so that they need one buffer less.

    for i {main_stage=1}:                           for i:
      %t = load %p {stage=0, position=1}               wait
      %s = local_alloc %t {stage=0, slots=1}     →     %a = local_load ring[0]
      %a = local_load %s {position=0}                  barrier;  copy the tile of i + 1 to ring[0]
      %x = mma %a, … {position=2}                      %x = mma %a, …

The tiles must fit in registers, all at once. One or two warps wait at a barrier for almost nothing, and in the shared
memory of a buffer less an SM holds more of them."""

from __future__ import annotations

from collections.abc import Sequence

from tessera import ops
from tessera.analysis.registers import mma_reg32, reg32_of
from tessera.ir import Op, Value
from tessera.ir.applications import apply
from tessera.ops.schedule import VIEWS, readers
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.streams import Stream

SMALL_CTA = 2  # warps, which meet quickly at a barrier
MANY_WARPS = 24  # on an SM: more of them would hide nothing else
# Registers of a thread for the tiles that are read at once, and for those and MMAs together: with more some spill.
READ_REG32, HELD_REG32 = 96, 256


def is_light(tiles: Sequence[Value], num_warps: int) -> bool:
    """Whether a CTA is small, and has registers for these tiles all at once."""
    return num_warps <= SMALL_CTA and sum(reg32_of(v.type) for v in tiles) <= READ_REG32


def refills(
    loop: ops.ForOp, streams: Sequence[Stream], num_warps: int, facts: GpuFacts, slots: int, beside: int
) -> bool:  # fmt: skip
    """Whether a loop, whose ring would have so many `slots`, does with one less and holds more CTAs then."""
    reads = [op for s in streams for op in readers(s.alloc.result, loop)]
    if not all(isinstance(op, ops.LocalLoadOp) for op in reads):
        return False
    tiles = [op.results[0] for op in reads]
    held = sum(reg32_of(v.type) for v in tiles) + mma_reg32(loop.body)
    if not is_light(tiles, num_warps) or held > HELD_REG32:
        return False
    size = sum(s.bytes for s in streams)
    fewer, ctas = (facts.ctas_that_fit(beside + n * size) for n in (slots - 1, slots))
    return ctas * num_warps < MANY_WARPS and fewer > ctas and apply("refill-in-place", loop)


def refill(loop: ops.ForOp, streams: Sequence[Stream]) -> None:
    """Place the copies of an iteration behind all that reads the buffers, and other work behind both."""
    rings: set[Op] = {s.alloc for s in streams}
    copies = rings | {s.load for s in streams}
    reads = {op for s in streams for op in readers(s.alloc.result, loop)}
    views: set[Op] = set()
    for op in loop.body:
        if op.opcode in VIEWS and op.operands[0].op in rings | views:
            views.add(op)
    for op in loop.body:
        if not op.terminator:  # each one, as loads before them may still come to another stage
            op.attrs["position"] = 0 if op in reads | views else 1 if op in copies else 2
