"""Whether a split into roles pays, estimated before layouts are known.

Programs that share an SM hide each other's latencies. The producer's warps cost registers, and perhaps room for
one of them; the producer hides the latency of loads, but not that of all the rest. So a split that leaves half as many
programs does not pay. Nor does one where a loop has many products, which wait for one another anyway, and which need
all registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ir import Op, elem_of
from tessera.ops import DescriptorLoadOp, DotOp, LoadOp, ReshapeOp, TransOp
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_scheduling.warp_roles import GRAIN, WORK, roles_for

MOST_PRODUCTS = 2


def split_pays(products: Sequence[DotOp], shared: int, warps: int, facts: GpuFacts) -> bool:
    """For loops with these products and `shared` bytes of buffers."""
    if len(products) > MOST_PRODUCTS:
        return False
    words = _words(products, warps, facts)
    registers = min(facts.registers + 1, -(-(words + WORK) // GRAIN) * GRAIN)
    fit = max(1, facts.max_shared_bytes // max(1, shared))
    whole = min(fit, facts.register_file // (registers * warps * facts.warp_size))
    return 2 * split_blocks(products, shared, warps, facts) > whole


def split_blocks(products: Sequence[DotOp], shared: int, warps: int, facts: GpuFacts) -> int:
    """Blocks that share an SM after a split."""
    fit = max(1, facts.max_shared_bytes // max(1, shared))
    return roles_for(facts, warps, _words(products, warps, facts), fit).blocks


def _words(products: Sequence[DotOp], warps: int, facts: GpuFacts) -> int:
    """Registers of a thread for results of products, and for left operands that the loop computes."""
    bits = 0
    for op in products:
        tiles: list[Any] = [op.result.type]
        tiles += [] if _loaded(op.a.op) else [op.a.type]
        bits += sum(t.numel * elem_of(t).storage_bits for t in tiles)
    return bits // (32 * warps * facts.warp_size)


def _loaded(op: Op | None) -> bool:
    while isinstance(op, TransOp | ReshapeOp):
        op = op.x.op
    return isinstance(op, LoadOp | DescriptorLoadOp)
