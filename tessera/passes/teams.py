"""How many warps a producer gets, and how the registers of a processor are shared out between the teams.

The warps of all blocks that share a processor are dealt out to its quarters, each with its own registers. A producer of
one warp leaves the consumers the same number as everybody has; a producer of four can hand registers over, as the
hardware does that by groups of four warps. More blocks are better as long as the products' registers fit: while one
waits for its tiles, or stores, the others multiply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.ir import Block, Op, TileType
from tessera.ops import WgmmaOp
from tessera.passes.facts import GpuFacts

GROUP_WARPS = 4
QUARTERS = 4
GRAIN = 8  # registers of a thread come in multiples
WORK = 32  # registers of a consumer beside its products'
LARGE = 96  # registers of products from which a block that is alone hands some over
PRODUCER = 40  # registers of a producer's thread that gave the rest away
SMALL_PRODUCER = 24  # the same where registers are scarce
LARGEST = 248


@dataclass(frozen=True, slots=True)
class Team:
    """Warps of the producer; registers of a thread of the producer's and the consumers' warps, (0, 0) for even; blocks
    that are to share a processor."""

    warps: int
    registers: tuple[int, int]
    blocks: int


def team_for(facts: GpuFacts, consumers: int, words: int, fit: int) -> Team:
    """`consumers`: warps; `words`: registers of products that live at a time; `fit`: blocks for which there is shared
    memory."""
    need = words + WORK
    for blocks in range(fit, 1, -1):
        if _even(facts, consumers + 1, blocks) >= need:
            return Team(1, (0, 0), blocks)
        given, kept = _handed_over(facts, consumers, blocks, SMALL_PRODUCER)
        if facts.has_register_handover and kept >= need:
            return Team(GROUP_WARPS, (given, kept), blocks)
    if not facts.has_register_handover or (
        words < LARGE and _even(facts, consumers + 1, 1) >= need
    ):
        return Team(1, (0, 0), 1)
    given, kept = _handed_over(facts, consumers, 1, PRODUCER)
    if kept < need:
        given, kept = _handed_over(facts, consumers, 1, SMALL_PRODUCER)
    if kept > min(LARGEST, _even(facts, consumers + 1, 1)):
        return Team(GROUP_WARPS, (given, min(kept, LARGEST)), 1)
    return Team(1, (0, 0), 1)


def _even(facts: GpuFacts, warps: int, blocks: int) -> int:
    """Registers of each thread if all have equally many."""
    in_a_quarter = -(-warps * blocks // QUARTERS)
    lanes = in_a_quarter * facts.warp_size
    return min(facts.registers, facts.register_file // QUARTERS // lanes) // GRAIN * GRAIN


def _handed_over(facts: GpuFacts, consumers: int, blocks: int, given: int) -> tuple[int, int]:
    """Registers of the producer's threads, and of the consumers' that share the rest."""
    groups = consumers // GROUP_WARPS
    start = _even(facts, consumers + GROUP_WARPS, blocks)
    return given, (start * (groups + 1) - given) // groups // GRAIN * GRAIN


def product_words(func: Op) -> int:
    """Registers of a thread for the results and operands of products that may live at a time."""
    return max((_of_block(block) for block in _blocks(func)), default=0)


def _blocks(op: Op) -> list[Block]:
    found = list(op.regions)
    for block in op.regions:
        for inner in block:
            found += _blocks(inner)
    return found


def _of_block(block: Block) -> int:
    words = 0
    for op in block:
        if isinstance(op, WgmmaOp):
            tiles: list[Any] = [op.result.type]
            tiles += [op.a.type] if isinstance(op.a.type, TileType) else []
            words += sum(t.layout.size("register") * t.elem.bits // 32 for t in tiles)
    return words
