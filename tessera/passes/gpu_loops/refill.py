"""Lets small CTAs fill a buffer again as soon as it has been read, so that they need one buffer less.

    for i {main_stage=1}:                           for i:
      %t = load %p {stage=0, position=1}               wait
      %s = local_alloc %t {stage=0, slots=1}     →     %a = local_load ring[0]
      %a = local_load %s {position=0}                  %x = mma %a, …
      %x = mma %a, … {position=0}                      barrier;  copy the tile of i + 1 to ring[0]

The tiles should nearly fit in registers, all at once: the assembler moves the copies up to the last read, and MMAs
behind them. One or two warps wait at a barrier for almost nothing, and in the shared memory of a buffer less an SM
holds more of them, if it has registers for more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera import ops
from tessera.analysis.machines import SCHEDULERS
from tessera.analysis.registers import mma_reg32, reg32_of
from tessera.ir import Block, Op, TileType, Value
from tessera.ir.applications import apply
from tessera.ops.schedule import readers
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.rules import is_pointwise
from tessera.passes.gpu_loops.streams import Stream

SMALL_CTA = 2  # warps, which meet quickly at a barrier
MANY_WARPS = 24  # on an SM: more of them would hide nothing else
# Registers of a thread for the tiles that are read at once, and for those and MMAs together: with more some spill.
READ_REG32, HELD_REG32 = 160, 430
WORK_REG32 = 64  # for operands and addresses beside the results of MMAs, at least


def is_light(tiles: Sequence[Value], num_warps: int) -> bool:
    """Whether a CTA is small, and has registers for these tiles all at once."""
    return num_warps <= SMALL_CTA and sum(reg32_of(v.type) for v in tiles) <= READ_REG32


def refills(
    loop: ops.ForOp, streams: Sequence[Stream], num_warps: int, facts: GpuFacts, slots: int, beside: int
) -> bool:  # fmt: skip
    """Whether a loop, whose ring would have so many `slots`, does with one less and holds more CTAs then."""
    found = [op for s in streams for op in readers(s.alloc.result, loop)]
    reads = [op for op in found if isinstance(op, ops.LocalLoadOp)]
    if len(reads) < len(found):
        return False
    tiles = list({(op.shared, op.result.type): op.result for op in reads}.values())
    held = sum(reg32_of(v.type) for v in tiles) + mma_reg32(loop.body)
    if not is_light(tiles, num_warps) or held > HELD_REG32:
        return False
    size = sum(s.bytes for s in streams)
    fewer, ctas = (facts.ctas_that_fit(beside + n * size) for n in (slots - 1, slots))
    most = min(MANY_WARPS, _warps_with_registers(loop, facts))
    return ctas * num_warps < most and fewer > ctas and apply("refill-in-place", loop)


def _warps_with_registers(loop: ops.ForOp, facts: GpuFacts) -> int:
    """Return how many warps of an SM have registers for the results of a loop's MMAs and for what lives through it.
    Each scheduler has a quarter of them for its own warps."""
    results = sum(reg32_of(op.result.type) for op in loop.body if isinstance(op, ops.Matmul))
    held = WORK_REG32 + results + sum(reg32_of(v.type) for v in _through(loop))
    return facts.register_file // SCHEDULERS // (facts.warp_size * held) * SCHEDULERS


def _through(loop: ops.ForOp) -> Iterator[Value]:
    """Yield the tiles that are made before a loop and used in it or behind it, but for those that are computed again at
    little cost."""
    block = loop.parent
    assert block is not None
    place = {op: n for n, op in enumerate(block)}
    for op in block:
        if op is loop:
            return
        for v in () if is_pointwise(op) else op.results:
            tile = isinstance(v.type, TileType) and v.type.layout is not None
            if tile and any(place[_at(user, block)] >= place[loop] for user in v.users()):
                yield v


def _at(op: Op, block: Block) -> Op:
    """Return the op of a block that an op is or is inside of."""
    return op if op.parent is block else next(x for x in op.ancestors() if x.parent is block)


def refill(loop: ops.ForOp, streams: Sequence[Stream]) -> None:
    """Place the copies of an iteration behind all else, so that MMAs use up what is read from the buffers before the
    last of that has been read: at the barrier between, few of these tiles take registers."""
    copies: set[Op] = {op for s in streams for op in (s.alloc, s.load)}
    for op in loop.body:
        if not op.terminator:  # each one, as loads before them may still come to another stage
            op.attrs["position"] = int(op in copies)
