"""What threads do to shared memory by themselves: loads and stores, copies in the background (cp.async), scratch of
ops, barriers of the hardware, and counters at which threads arrive."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from tessera.analysis.synchronization.private import bytes_of_threads
from tessera.errors import SynchronizationError
from tessera.ir import Op, TileType
from tessera.ops import (
    AsyncArriveOp,
    AsyncCommitOp,
    AsyncCopyOp,
    AsyncWaitOp,
    AtomicCasOp,
    AtomicRmwOp,
    BarrierOp,
    LocalAllocOp,
    LocalLoadOp,
    LocalStoreOp,
    MbarrierArriveOp,
    MbarrierInitOp,
    MbarrierWaitOp,
    TurnOp,
)  # fmt: skip

if TYPE_CHECKING:
    from tessera.analysis.synchronization.machine import Machine, Team

Run = Generator[str, None, None]
LANES = 32
RELEASES = ("release", "acq_rel")
BEFORE_TURN = {
    "open": ("close",), "begin": ("open", "end"), "end": ("begin",), "close": ("open", "end")
}  # fmt: skip


def barrier(m: Machine, team: Team, op: BarrierOp) -> None:
    m.meet(team, op, fence=bool(op.attrs.get("proxy")))


def alloc(m: Machine, team: Team, op: LocalAllocOp) -> None:
    m.touch(team, op, (op.offset, op.offset + op.bytes, op), True, private=op.private)


def load(m: Machine, team: Team, op: LocalLoadOp) -> None:
    span = m.span(op.shared)
    private = span[2].private
    if private:
        _own_bytes(m, op, op.result.type.layout, op.shared.type.layout, span[2])
    m.touch(team, op, span, False, private=private)


def store(m: Machine, team: Team, op: LocalStoreOp) -> None:
    span = m.span(op.shared)
    m.touch(team, op, span, True, private=span[2].private)


def _own_bytes(m: Machine, op: Op, held: Any, shared: Any, owner: Op) -> None:
    """The error if two ops give threads different bytes of a private buffer."""
    mine = bytes_of_threads(held, shared)
    if m.private.setdefault(owner, mine) != mine:
        raise SynchronizationError(
            f"{op.opcode} gives threads other bytes of a private buffer than another op", loc=op.loc
        )


# --- copies in the background -----------------------------------------------------------------------------------
def copy(m: Machine, team: Team, op: AsyncCopyOp) -> None:
    """Written through the generic proxy at any time until the thread waits for the group."""
    span = m.span(op.shared)
    private = span[2].private
    if private:
        _own_bytes(m, op, op.ptr.type.layout, op.shared.type.layout, span[2])
    team.open = True
    events = [(m.places.copies(w), team.committed + 1) for w in team.warps]
    m.behind(op, span, True, events, team.warps, generic=True, private=private)


def commit(m: Machine, team: Team, op: AsyncCommitOp) -> None:
    team.committed, team.open = team.committed + 1, False


def wait(m: Machine, team: Team, op: AsyncWaitOp) -> None:
    for w in team.warps:
        place = m.places.copies(w)
        m.clocks[w][place] = max(m.clocks[w][place], team.committed - op.pending)
    if not op.private:
        m.meet(team, op, fence=bool(op.attrs.get("proxy")))


# --- counters -----------------------------------------------------------------------------------------------------
def mbarrier_init(m: Machine, team: Team, op: MbarrierInitOp) -> None:
    """By one thread; then all meet."""
    span = m.span(op.bars)
    m.touch(team, op, span, True, team.warps[:1])
    m.barriers.init(op, span[2], op.bars.type.shape[0], op.arrivals)
    m.meet(team, op)


def mbarrier_arrive(m: Machine, team: Team, op: MbarrierArriveOp) -> None:
    """Lane 0 of each warp."""
    bar = m.barrier(op.bars, op.index, op, team)
    for w, times in zip(team.warps, team.times, strict=True):
        bar.arrive(op, times, m.clocks[w], m.clocks[w])


def async_arrive(m: Machine, team: Team, op: AsyncArriveOp) -> None:
    """Each thread, when its copies so far have landed; of what else it did nothing is said."""
    bar = m.barrier(op.bars, op.index, op, team)
    for w, times in zip(team.warps, team.times, strict=True):
        hands = m.places.start()
        hands[m.places.copies(w)] = team.committed + team.open
        bar.arrive(op, LANES * times, m.clocks[w], hands)


def mbarrier_wait(m: Machine, team: Team, op: MbarrierWaitOp) -> Run:
    bar = m.barrier(op.bars, op.index, op, team)
    yield from m.wait(team, op, bar, int(m.env[op.parity]))
    if op.data:
        m.fence(team.warps)


def turn(m: Machine, team: Team, op: TurnOp) -> None:
    """Turns order nothing that memory depends on; but each begun must end, or a warpgroup waits for ever."""
    if m.turn not in BEFORE_TURN[op.kind]:
        raise SynchronizationError(f"turn {op.kind} comes after turn {m.turn}", loc=op.loc)
    m.turn = op.kind


# --- ops that go through memory of their own ----------------------------------------------------------------------
def scratch(m: Machine, team: Team, op: Op) -> None:
    """All write, meet, and read what others wrote."""
    low: int = op.attrs["scratch"]
    span = low, low + op.attrs["scratch_bytes"], op
    m.touch(team, op, span, True)
    m.meet(team, op)
    m.touch(team, op, span, False)


def atomic(m: Machine, team: Team, op: AtomicRmwOp | AtomicCasOp) -> None:
    """A scalar that releases waits for the program's other threads first."""
    if not isinstance(op.result.type, TileType) and op.sem in RELEASES:
        m.meet(team, op)
    if "scratch" in op.attrs:
        scratch(m, team, op)


def always(op: Op) -> bool:
    return True


def has_scratch(op: Op) -> bool:
    return "scratch" in op.attrs


def is_filled(op: Any) -> bool:
    return op.init is not None


def is_atomic(op: Any) -> bool:
    return has_scratch(op) or (not isinstance(op.result.type, TileType) and op.sem in RELEASES)
