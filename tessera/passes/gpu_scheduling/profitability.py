"""Estimates whether warp specialization pays, before layouts are known.

CTAs that share an SM hide each other's latencies. The producer's warps cost registers, and perhaps room for
one CTA; the producer hides the latency of loads, but not that of everything else. A split that leaves half as many
CTAs therefore does not pay. Nor does one where a loop has many MMAs, which wait for one another anyway and
need all registers. FMAs wait for one another and for what they read of shared memory, which only several warps of each
scheduler hide: buffers that a producer fills far ahead would take their room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.analysis.machines import REGISTER_GRAIN
from tessera.analysis.registers import sums_beside
from tessera.ir import Op, elem_of
from tessera.ops import DotOp, ReshapeOp, TileLoad, TransOp
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.accelerate import choose
from tessera.passes.gpu_loops.warp_roles import WORK, roles_for

MOST_MMAS = 2  # of a loop: attention has two, and loops with more have not been measured


def split_pays(mmas: Sequence[DotOp], shared: int, warps: int, facts: GpuFacts) -> bool:
    """Whether a split pays for loops with these MMAs and `shared` bytes of buffers."""
    if len(mmas) > MOST_MMAS or any(choose(op, facts) is None for op in mmas):
        return False
    reg32 = _reg32(mmas, warps, facts)
    registers = min(facts.registers + 1, -(-(reg32 + WORK) // REGISTER_GRAIN) * REGISTER_GRAIN)
    fit = max(1, facts.max_shared_bytes // max(1, shared))
    whole = min(fit, facts.register_file // (registers * warps * facts.warp_size))
    return 2 * ctas_after_split(mmas, shared, warps, facts) > whole


def ctas_after_split(mmas: Sequence[DotOp], shared: int, warps: int, facts: GpuFacts) -> int:
    """Return how many CTAs share an SM after a split."""
    fit = max(1, facts.max_shared_bytes // max(1, shared))
    return roles_for(facts, warps, _reg32(mmas, warps, facts), fit).ctas


def _reg32(mmas: Sequence[DotOp], warps: int, facts: GpuFacts) -> int:
    """Return the registers of a thread for results of MMAs, sums beside them, and left operands that the loop
    computes."""
    tiles: list[Any] = [op.result.type for op in mmas]
    tiles += [op.a.type for op in mmas if not _loaded(op.a.op)]
    results = {op.result for op in mmas}
    for block in {op.parent: None for op in mmas if op.parent is not None}:
        tiles += sums_beside(block, results)
    bits = sum(t.numel * elem_of(t).storage_bits for t in tiles)
    return bits // (32 * warps * facts.warp_size)


def _loaded(op: Op | None) -> bool:
    while isinstance(op, TransOp | ReshapeOp):
        op = op.x.op
    return isinstance(op, TileLoad)
