"""Models what runs asynchronously to the threads: copies by the TMA unit, and MMAs of warpgroups (wgmma), which read
shared memory until they are waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.analysis.scratch import ALIGNMENT, Staging, staging
from tessera.errors import SynchronizationError
from tessera.ir import Op, SharedType
from tessera.layout import offset_map
from tessera.ops import (
    DescriptorLoadOp,
    DescriptorStoreOp,
    TensorCopyOp,
    WgmmaOp,
    WgmmaWaitOp,
)  # fmt: skip

if TYPE_CHECKING:
    from tessera.analysis.synchronization.machine import Machine, Role


# --- copies ------------------------------------------------------------------------------------------------------
def copy(m: Machine, role: Role, op: TensorCopyOp) -> None:
    """Write through the asynchronous proxy until the phase of the barrier ends. Copies from other CTAs of the cluster
    also come only when this CTA's buffer is free: the barriers of those CTAs count this CTA's arrivals."""
    bar = m.barrier(op.bars, op.index, op, role)
    span = m.span(op.shared)
    first = role.warps[0]
    bar.remote |= op.ctas > 1
    event = bar.bring(op, span[1] - span[0], m.clocks[first])
    m.behind(op, span, True, [event], [first])


def load(m: Machine, role: Role, op: DescriptorLoadOp) -> None:
    """Copy to scratch with an mbarrier behind the tile. One thread initialises the barrier and starts the copy; all
    wait, read the tile and synchronise; then that thread invalidates the barrier."""
    low: int = op.attrs["scratch"]
    high = low + op.attrs["scratch_bytes"]
    tile, bar = (low, high - ALIGNMENT, op), (high - ALIGNMENT, high, op)
    first = role.warps[:1]
    m.touch(role, op, bar, True, first)
    m.fence(first)
    clock = m.clocks[first[0]]
    clock[first[0]] += 1
    m.behind(op, tile, True, [(first[0], clock[first[0]])], first)
    m.meet(role, op)
    m.touch(role, op, tile, False)
    m.meet(role, op)
    m.touch(role, op, bar, True, first)


def store(m: Machine, role: Role, op: DescriptorStoreOp) -> None:
    """Copy through a few buffers of scratch. Before a buffer is written again, its bulk group must have been read. Then
    come a fence and a barrier, and one thread of each group of warps starts the TMA unit."""
    how = staging(op, m.num_warps)
    size = how.elements * op.value.type.elem.storage_bytes
    low: int = op.attrs["scratch"]
    roles = role.groups if how.groups else []
    leaders = [g.leader for g in roles] or role.warps[:1]
    members = [g.members for g in roles] or [role.warps]
    mine = size // max(1, how.groups)
    step = _chunk(op, how)
    for first in range(0, how.count, step):
        role.bulk += 1
        pending = max(0, how.buffers // step - 1)
        used = sorted({i % how.buffers for i in range(first, min(first + step, how.count))})
        spans = [
            [(low + i * size + g * mine, low + i * size + (g + 1) * mine, op) for i in used]
            for g in range(len(leaders))
        ]
        for leader in leaders:
            _read_by_tma(m, leader, role.bulk - 1 - pending)
        _meet(m, role, op, members, how.groups)
        for warps, places in zip(members, spans, strict=True):
            for span in places:
                m.touch(role, op, span, True, warps)
            m.fence(warps)
        _meet(m, role, op, members, how.groups)
        for leader, places in zip(leaders, spans, strict=True):
            for span in places:
                m.behind(op, span, False, [(m.places.bulk(leader), role.bulk)], [leader])
    if op.attrs.get("synchronous"):
        for leader in leaders:
            _read_by_tma(m, leader, role.bulk)
        m.meet(role, op)


def _chunk(op: DescriptorStoreOp, how: Staging) -> int:
    """Return how many buffers are written between two barriers: all if lanes or warps write to several of them."""
    at = offset_map(op.value.type.layout, how.layout)
    crossing = any(c >= how.elements for c in (*at.lane, *at.warp))
    return how.count if crossing else max(1, how.buffers // 2)


def _read_by_tma(m: Machine, leader: int, number: int) -> None:
    place = m.places.bulk(leader)
    m.clocks[leader][place] = max(m.clocks[leader][place], number)


def _meet(m: Machine, role: Role, op: Op, members: list[list[int]], groups: int) -> None:
    if not groups:
        m.meet(role, op)
        return
    for warps in members:
        m.gather(warps)


# --- MMAs ----------------------------------------------------------------------------------------------------
def mma(m: Machine, role: Role, op: WgmmaOp) -> None:
    """Read shared operands through the asynchronous proxy until the warpgroup has waited for the MMA."""
    part, parts = op.part
    number = role.mmas + 1
    events = [(m.places.mmas(g.number), number) for g in role.groups]
    for v in (op.a, op.b):
        if isinstance(v.type, SharedType):
            m.behind(op, m.span(v), False, events, role.warps)
    if part == parts - 1:
        role.mmas = number
        m.start(role, number)
    m.env[op.result] = number
    if not op.asynchronous:
        m.finish(role, role.mmas - op.pending)


def mma_wait(m: Machine, role: Role, op: WgmmaWaitOp) -> None:
    """With `waited` there is no instruction: the wait before covers these MMAs, too."""
    if not op.waited:
        m.finish(role, role.mmas - op.pending)
    number = m.env.get(op.acc)
    if number is not None and number > role.finished:
        raise SynchronizationError(
            "wgmma_wait does not wait for the MMA whose result it gives", loc=op.loc
        )
