"""What the ops on mbarriers do: arrivals hand over what the arriving warps know, waits take it."""

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
    from tessera.analysis.synchronization.machine import Machine, Team

Run = Generator[str, None, None]
LANES = 32


def init(m: Machine, team: Team, op: MbarrierInitOp) -> None:
    """By one thread, and then all warps meet; or by the producer's, for whom others wait when the roles begin."""
    writer, warps = (m.producer, None) if op.by_producer else (team, team.warps[:1])
    for bars, count in zip(op.bars, op.counts, strict=True):
        span = m.span(bars)
        m.touch(writer, op, span, True, warps)
        m.barriers.init(op, span[2], bars.type.shape[0], count)
    if not op.by_producer:
        m.meet(team, op)


def arrive_expect_tx(m: Machine, team: Team, op: MbarrierArriveExpectTxOp) -> None:
    bar = m.barrier(op.bars, op.index, op, team)
    first = m.clocks[team.warps[0]]
    bar.arrive(op, 1, first, first, op.bytes)


def arrive_after_copies(m: Machine, team: Team, op: AsyncCopyMbarrierArriveOp) -> None:
    """Each thread, when its copies so far have landed; of what else it did nothing is said."""
    bar = m.barrier(op.bars, op.index, op, team)
    for w, times in zip(team.warps, team.times, strict=True):
        hands = m.places.start()
        hands[m.places.copies(w)] = team.committed + team.open
        bar.arrive(op, LANES * times, m.clocks[w], hands)


def arrive(m: Machine, team: Team, op: MbarrierArriveOp) -> None:
    """One thread of each warp or warpgroup, after all lanes of its warp; for each block of the cluster."""
    if op.fence or op.proxy:
        m.fence(team.warps)
    if op.condition is not None and not m.env[op.condition]:
        return
    bar = m.barrier(op.bars, op.index, op, team)
    bar.remote |= op.blocks > 1
    arrivals = (
        [(g.leader, g.times) for g in team.groups]
        if op.groups
        else list(zip(team.warps, team.times, strict=True))
    )
    for w, times in arrivals:
        bar.arrive(op, times * op.blocks, m.clocks[w], m.clocks[w])


def wait(m: Machine, team: Team, op: MbarrierWaitOp) -> Run:
    bar = m.barrier(op.bars, op.index, op, team)
    yield from m.wait(team, op, bar, int(m.env[op.parity]))
    if op.fence or op.proxy:
        m.fence(team.warps)
