"""Derives how a tile changes its layout: not at all, by renaming registers, by an exchange within warps, or through
shared memory.

The source map M (src after M = dst) decides: if it keeps lane and warp, registers are renamed; if it keeps the warp,
lanes exchange by shuffles if these are cheaper than shared memory; otherwise the tile goes through shared memory in
a layout computed for this pair.  A plan is data: all lanes, registers and addresses are linear maps in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .access import Access, MatrixAccess, round_groups
from .linear import LinearLayout
from .relate import check_same_holders, register_map, source_map
from .shuffle import WarpShuffle, plan_shuffle
from .swizzle import Exchange, find_exchange

__all__ = [
    "Identity", "Plan", "RegisterPermute", "SharedExchange", "SharedRound", "is_within_threads",
    "is_within_warps", "plan_conversion",
    "plan_cost", "plan_shared",
]  # fmt: skip

BARRIER_COST = 24.0
"""Slots that the barriers of one round through shared memory cost, so that small exchanges stay in registers
(tools/fit)."""
WARP_BARRIER_COST = 8.0
"""The same of the threads of one warp: they wait for no other warp, but the loads still follow the stores."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The layouts are the same map."""


@dataclass(frozen=True, slots=True)
class RegisterPermute:
    """Register i of dst is register sources[i] of src in the same thread."""

    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharedRound:
    """One pass through the buffer: store, barrier, load (and a barrier before the next store)."""

    store: Access
    load: Access


@dataclass(frozen=True, slots=True)
class SharedExchange:
    """An exchange through shared memory, in `rounds` passes of `bytes` each.

    `shared` maps offsets (elements) to coordinates.  A thread stores only if none of its bits in `store_lane_free` and
    `store_warp_free` is set (others hold copies; storing anyway is harmless).  The loads fill registers
    `load_registers[i]`, the first holder of each element; register i is then a copy of load_registers[i].
    `within_warps`: each warp reads only what it stored itself, and nobody else stores there, so that the threads of a
    warp wait for each other alone.
    """

    shared: LinearLayout
    rounds: tuple[SharedRound, ...]
    bytes: int
    store_lane_free: int
    store_warp_free: int
    load_registers: tuple[int, ...]
    cost: float
    within_warps: bool = False

    @property
    def stmatrix(self) -> bool:
        return isinstance(self.rounds[0].store, MatrixAccess)

    @property
    def ldmatrix(self) -> bool:
        return isinstance(self.rounds[0].load, MatrixAccess)


Plan = Identity | RegisterPermute | WarpShuffle | SharedExchange


def is_within_warps(src: LinearLayout, dst: LinearLayout) -> bool:
    """Whether each warp of dst finds its elements in the same warp of src, which no other warp holds."""
    return source_map(src, dst).keeps_warps and not src.free_masks().get("warp", 0)


def is_within_threads(src: LinearLayout, dst: LinearLayout) -> bool:
    """Whether each thread of dst holds its elements in src, too, where no other thread does."""
    held = src.free_masks()
    return not (held.get("lane", 0) or held.get("warp", 0)) and register_map(src, dst) is not None


def _exchange(
    src: LinearLayout, dst: LinearLayout, elem_bits: int, found: Exchange, within_warps: bool
) -> SharedExchange:
    slot_bits = src.out_bits - found.halvings
    rounds = tuple(
        [
            SharedRound(
                round_groups(found.store, slot_bits, number),
                round_groups(found.load, slot_bits, number),
            )
            for number in range(1 << found.halvings)
        ]
    )
    free = src.free_masks()
    return SharedExchange(
        found.shared,
        rounds,
        (elem_bits << slot_bits) // 8,
        free.get("lane", 0),
        free.get("warp", 0),
        dst.register_representatives(),
        found.cost + (WARP_BARRIER_COST if within_warps else BARRIER_COST) * len(rounds),
        within_warps,
    )


@lru_cache(maxsize=2048)
def plan_shared(
    src: LinearLayout,
    dst: LinearLayout,
    elem_bits: int,
    *,
    ldmatrix: bool = False,
    stmatrix: bool = False,
    warp_exchanges: bool = False,
    max_bytes: int | None = None,
) -> SharedExchange:
    """Return the exchange through shared memory.  With `max_bytes`, use several rounds as far as the layouts allow: the
    plan's `bytes` may still exceed it if lanes or warps of the two sides leave no bit to split by."""
    check_same_holders(src, dst)
    bits = max(8, elem_bits)
    halvings = 0
    if max_bytes is not None:
        while (bits << src.out_bits) >> (3 + halvings) > max_bytes and halvings < src.out_bits:
            halvings += 1
    found = find_exchange(
        src, dst, bits, store_matrix=stmatrix, load_matrix=ldmatrix, halvings=halvings
    )
    return _exchange(src, dst, bits, found, warp_exchanges and is_within_warps(src, dst))


@lru_cache(maxsize=2048)
def plan_conversion(
    src: LinearLayout,
    dst: LinearLayout,
    elem_bits: int,
    *,
    ldmatrix: bool = True,
    stmatrix: bool = True,
    warp_exchanges: bool = True,
    max_bytes: int | None = None,
) -> Plan:
    """Return the cheapest way from layout src to dst for elements of `elem_bits` (1-bit elements are bytes).

    `ldmatrix`, `stmatrix`: whether the target has them; `warp_exchanges`: whether warps may use shared memory without
    the other warps; `max_bytes`: shared memory to use.
    Raises LayoutError if the layouts are not of one tile in one set of lanes and warps.
    """
    if src == dst:
        return Identity()
    sources = register_map(src, dst)
    if sources is not None:
        return RegisterPermute(sources)
    bits = max(8, elem_bits)
    shuffle = plan_shuffle(src, dst, bits)
    if shuffle is not None and shuffle.num_shuffles == 0:
        return shuffle
    exchange = plan_shared(
        src, dst, bits, ldmatrix=ldmatrix, stmatrix=stmatrix, warp_exchanges=warp_exchanges,
        max_bytes=max_bytes,
    )  # fmt: skip
    if shuffle is not None and shuffle.cost(bits) <= exchange.cost:
        return shuffle
    return exchange


def plan_cost(plan: Plan) -> float:
    """Return the slots of one warp that a plan takes, to compare plans; shuffles are counted for 32-bit
    registers."""
    if isinstance(plan, WarpShuffle):
        return plan.cost(32)
    return plan.cost if isinstance(plan, SharedExchange) else 0.0
