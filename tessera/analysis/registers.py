"""Counts the registers (of 32 bits) of a thread that MMAs of a loop need: their results, their operands, and sums
beside them. All planners of loops and of warp roles ask here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tessera.ir import Block, TileType, Type, Value, elem_of
from tessera.ops import ForOp, LocalLoadOp, Matmul


def reg32_of(t: Any) -> int:
    """Return the registers that a tile takes, without those that repeat an element, or a scalar."""
    if not isinstance(t, TileType):
        return max(1, elem_of(t).storage_bits // 32)
    different = sum(any(basis) for basis in t.layout.bases("register"))
    return max(1, (elem_of(t).storage_bits << different) // 32)


def mma_reg32(block: Block, kind: type[Matmul] = Matmul, reads: int = 1) -> int:
    """Return the registers for the MMAs of a block. `reads`: how many operands of one that is read from shared memory
    live at a time: two if the next one is read while MMAs use this one."""
    mmas = [op for op in block if isinstance(op, kind)]
    tiles: list[Any] = [op.result.type for op in mmas]
    tiles += sums_beside(block, {op.result for op in mmas})
    operands = [v for op in mmas for v in (op.a, op.b) if isinstance(v.type, TileType)]
    for v in operands:
        tiles += [v.type] * (reads if isinstance(v.op, LocalLoadOp) else 1)
    return sum(map(reg32_of, tiles))


def sums_beside(block: Block, results: Collection[Value]) -> list[Type]:
    """Return the types of the sums that a loop carries beside the results of its MMAs: `acc += dot(a, b) * scale` needs
    registers for both."""
    loop = block.parent
    if not isinstance(loop, ForOp):
        return []
    types = {v.type for v in results}
    made = zip(loop.carried, block.terminator.operands, strict=True)
    return [arg.type for arg, v in made if arg.type in types and v not in results]
