"""Models the ops on mbarriers: an arrival releases what the arriving warps know, and a wait acquires it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from tessera.ops import (
    AsyncCopyMbarrierArriveOp,
    MbarrierArriveExpectTxOp,
    MbarrierArriveOp,
    MbarrierInitOp,
    MbarrierWaitOp,
)

if TYPE_CHECKING:
    from tessera.analysis.synchronization.machine import Machine, Role

Run = Generator[str, None, None]
LANES = 32  # of a warp


def init(m: Machine, role: Role, op: MbarrierInitOp) -> None:
    """One thread initialises and all warps synchronise; or the producer's does, and other roles wait as they begin."""
    writer, warps = (m.producer, None) if op.by_producer else (role, role.warps[:1])
    for bars, count in zip(op.bars, op.counts, strict=True):
        span = m.span(bars)
        m.touch(writer, op, span, True, warps)
        m.barriers.init(op, span[2], bars.type.shape[0], count)
    if not op.by_producer:
        m.meet(role, op)


def arrive_expect_tx(m: Machine, role: Role, op: MbarrierArriveExpectTxOp) -> None:
    bar = m.barrier(op.bars, op.index, op, role)
    first = m.clocks[role.warps[0]]
    bar.arrive(op, 1, first, first, op.bytes)


def arrive_after_copies(m: Machine, role: Role, op: AsyncCopyMbarrierArriveOp) -> None:
    """Each thread arrives when its copies so far have landed. The arrival releases nothing else that it did."""
    bar = m.barrier(op.bars, op.index, op, role)
    for w, times in zip(role.warps, role.times, strict=True):
        hands = m.places.start()
        hands[m.places.copies(w)] = role.committed + role.open
        bar.arrive(op, LANES * times, m.clocks[w], hands)


def arrive(m: Machine, role: Role, op: MbarrierArriveOp) -> None:
    """Let one thread of each warp or warpgroup arrive, after all lanes of its warp have come to it, in each CTA of the
    cluster."""
    if op.fence or op.proxy:
        m.fence(role.warps)
    if op.condition is not None and not m.env[op.condition]:
        return
    bar = m.barrier(op.bars, op.index, op, role)
    bar.remote |= op.ctas > 1
    arrivals = (
        [(g.leader, g.times) for g in role.groups]
        if op.groups
        else list(zip(role.warps, role.times, strict=True))
    )
    for w, times in arrivals:
        bar.arrive(op, times * op.ctas, m.clocks[w], m.clocks[w])


def wait(m: Machine, role: Role, op: MbarrierWaitOp) -> Run:
    bar = m.barrier(op.bars, op.index, op, role)
    yield from m.wait(role, op, bar, int(m.env[op.parity]))
    if op.fence or op.proxy:
        m.fence(role.warps)
