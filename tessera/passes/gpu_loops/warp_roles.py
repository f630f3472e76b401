"""Decides how many warps a producer gets, and how the registers of an SM are divided between the roles.

The warps of all CTAs on an SM are distributed over its sub-partitions, each with its own registers. A producer of
one warp leaves the consumers the same number as all warps have; a producer of four can hand registers over, since the
hardware does that by warpgroups. More CTAs are better as long as the MMAs' registers fit: while one
waits for its tiles, or stores, the others multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.analysis.machines import (
    LEFT_REG32,
    REGISTER_GRAIN,
    SCHEDULERS,
    WARPGROUP,
    WGMMA_COLUMNS,
)
from tessera.analysis.registers import mma_reg32
from tessera.ir import Op, TileType
from tessera.ops import WgmmaOp
from tessera.passes.gpu_facts import GpuFacts

WORK = 32  # registers of a consumer besides those of MMAs (tools/fit)
LARGE = 96  # registers of MMAs from which a CTA alone on an SM hands some over (tools/fit)
PRODUCER = 40  # registers of a producer's thread after it gave up the rest (tools/fit)
SMALL_PRODUCER = 24  # the same where registers are scarce
TRANSPOSE_REGISTERS = 56  # registers of a thread of the transpose role
TRANSPOSE_WORK = 24  # registers of a consumer besides those of MMAs, with a transpose role
LARGEST = 248  # registers of a thread: 255, in multiples of REGISTER_GRAIN
EVEN = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class WarpRoles:
    """Warps of the producer; registers of a thread of the producer, the consumers and the transpose role, zeros if all
    have the same; CTAs that are to share an SM; warps of the transpose role."""

    warps: int
    registers: tuple[int, int, int]
    ctas: int
    transpose_warps: int = 0


def roles_for(facts: GpuFacts, consumers: int, reg32: int, fit: int, largest: int = 0) -> WarpRoles:
    """Return the roles. `consumers`: their warps; `reg32`: registers of MMAs that live at a time; `fit`: CTAs that
    shared memory has room for; `largest`: registers of one instruction, which must be there before any are handed
    over."""
    need = reg32 + WORK
    start = largest + WORK
    handover = facts.has_register_handover and consumers >= WARPGROUP
    for ctas in range(fit, 1, -1):
        if _even(facts, consumers + 1, ctas) >= need:
            return WarpRoles(1, EVEN, ctas)
        if not handover:
            continue
        kept = _kept(facts, consumers, ctas, SMALL_PRODUCER)
        if kept >= need and _even(facts, consumers + WARPGROUP, ctas) >= start:
            return WarpRoles(WARPGROUP, (SMALL_PRODUCER, kept, 0), ctas)
    if not handover or (reg32 < LARGE and _even(facts, consumers + 1, 1) >= need):
        return WarpRoles(1, EVEN, 1)
    given = PRODUCER if _kept(facts, consumers, 1, PRODUCER) >= need else SMALL_PRODUCER
    kept = _kept(facts, consumers, 1, given)
    if kept > min(LARGEST, _even(facts, consumers + 1, 1)):
        return WarpRoles(WARPGROUP, (given, min(kept, LARGEST), 0), 1)
    return WarpRoles(1, EVEN, 1)


def roles_with_transpose(facts: GpuFacts, consumers: int, func: Op) -> WarpRoles | None:
    """Return roles with four more warps that transpose an operand of the consumers' MMAs, if registers are left."""
    start = _even(facts, consumers + 2 * WARPGROUP, 1)
    kept = _kept(facts, consumers, 1, SMALL_PRODUCER, TRANSPOSE_REGISTERS)
    need, largest = roles_reg32(func) + TRANSPOSE_WORK, instruction_reg32(func) + WORK
    if not facts.has_register_handover or kept < need or start < largest or kept > LARGEST:
        return None
    return WarpRoles(WARPGROUP, (SMALL_PRODUCER, kept, TRANSPOSE_REGISTERS), 1, WARPGROUP)


def _even(facts: GpuFacts, warps: int, ctas: int) -> int:
    """Return the registers of each thread if all threads have the same number."""
    in_a_sub_partition = -(-warps * ctas // SCHEDULERS)
    lanes = in_a_sub_partition * facts.warp_size
    return _whole(min(facts.registers, facts.register_file // SCHEDULERS // lanes))


def _kept(facts: GpuFacts, consumers: int, ctas: int, *others: int) -> int:
    """Return the registers of a consumer's thread that the other roles leave (setmaxnreg). Each of these has a
    warpgroup, and `others` registers a thread."""
    groups, more = consumers // WARPGROUP, len(others)
    start = _even(facts, consumers + more * WARPGROUP, ctas)
    return _whole((start * (groups + more) - sum(others)) // groups)


def _whole(registers: int) -> int:
    return registers // REGISTER_GRAIN * REGISTER_GRAIN


def roles_reg32(func: Op) -> int:
    """Return the registers of a thread for the results and operands of MMAs that may live at a time."""
    return max((mma_reg32(block, WgmmaOp, reads=2) for block in func.all_blocks()), default=0)


def instruction_reg32(func: Op) -> int:
    """Return the registers of a thread that the largest instruction of an MMA uses."""
    mmas = [op for op in func.walk() if isinstance(op, WgmmaOp)]
    return max((_of_instruction(op) for op in mmas), default=0)


def _of_instruction(op: WgmmaOp) -> int:
    t: Any = op.result.type
    columns = t.shape[0 if op.transposed else 1] // op.warpgroups[1]
    held = LEFT_REG32 if isinstance(op.left.type, TileType) else 0
    return min(columns, WGMMA_COLUMNS) * t.elem.bits // 64 + held
