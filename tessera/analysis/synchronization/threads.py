"""Models what threads do to shared memory themselves: loads and stores, asynchronous copies (cp.async), scratch of
ops, and barriers of the CTA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.analysis.synchronization.private import bytes_of_threads
from tessera.errors import SynchronizationError
from tessera.ir import Op, TileType
from tessera.layout.convert import is_within_warps
from tessera.ops import (
    RELEASES,
    AsyncCommitOp,
    AsyncCopyOp,
    AsyncWaitOp,
    Atomic,
    BarrierOp,
    LocalAllocOp,
    LocalLoadOp,
    LocalStoreOp,
    PingPongOp,
    WarpBarrierOp,
)  # fmt: skip

if TYPE_CHECKING:
    from tessera.analysis.synchronization.machine import Machine, Role

BEFORE_KIND = {
    "open": ("close",), "begin": ("open", "end"), "end": ("begin",), "close": ("open", "end")
}  # fmt: skip


def barrier(m: Machine, role: Role, op: BarrierOp) -> None:
    m.meet(role, op, fence=bool(op.attrs.get("proxy")))


def warp_barrier(m: Machine, role: Role, op: WarpBarrierOp) -> None:
    """Do nothing: a warp counts as one here."""


def alloc(m: Machine, role: Role, op: LocalAllocOp) -> None:
    m.touch(role, op, (op.offset, op.offset + op.bytes, op), True, private=op.private)


def load(m: Machine, role: Role, op: LocalLoadOp) -> None:
    span = m.span(op.shared)
    private = span[2].private
    if private:
        _own_bytes(m, op, op.result.type.layout, op.shared.type.layout, span[2])
    m.touch(role, op, span, False, private=private)


def store(m: Machine, role: Role, op: LocalStoreOp) -> None:
    span = m.span(op.shared)
    m.touch(role, op, span, True, private=span[2].private)


def _own_bytes(m: Machine, op: Op, held: object, shared: object, owner: Op) -> None:
    """Raise an error if two ops give threads different bytes of a private buffer."""
    mine = bytes_of_threads(held, shared)
    if m.private.setdefault(owner, mine) != mine:
        raise SynchronizationError(
            f"{op.opcode} gives threads other bytes of a private buffer than another op", loc=op.loc
        )


# --- copies in the background -----------------------------------------------------------------------------------
def copy(m: Machine, role: Role, op: AsyncCopyOp) -> None:
    """Write through the generic proxy at any time until the thread waits for the group."""
    span = m.span(op.shared)
    private = span[2].private
    if private:
        _own_bytes(m, op, op.ptr.type.layout, op.shared.type.layout, span[2])
    role.open = True
    events = [(m.places.copies(w), role.committed + 1) for w in role.warps]
    m.behind(op, span, True, events, role.warps, generic=True, private=private)


def commit(m: Machine, role: Role, op: AsyncCommitOp) -> None:
    role.committed, role.open = role.committed + 1, False


def wait(m: Machine, role: Role, op: AsyncWaitOp) -> None:
    for w in role.warps:
        place = m.places.copies(w)
        m.clocks[w][place] = max(m.clocks[w][place], role.committed - op.pending)
    if not op.private:
        m.meet(role, op, fence=bool(op.attrs.get("proxy")))


# --- ping-pong ---------------------------------------------------------------------------------------------------
def ping_pong(m: Machine, role: Role, op: PingPongOp) -> None:
    """Check the order of ping-pong ops. Memory does not depend on it, but a `begin` without its `end` makes a warpgroup
    wait for ever."""
    if m.ping_pong not in BEFORE_KIND[op.kind]:
        raise SynchronizationError(
            f"ping_pong {op.kind} comes after ping_pong {m.ping_pong}", loc=op.loc
        )
    m.ping_pong = op.kind


# --- ops that go through memory of their own ----------------------------------------------------------------------
def scratch(m: Machine, role: Role, op: Op) -> None:
    """All warps write, synchronise, and read what others wrote, or what they wrote themselves."""
    low: int = op.attrs["scratch"]
    span = low, low + op.attrs["scratch_bytes"], op
    if "within_warps" in op.attrs:
        before, after = op.operands[0].type, op.results[0].type
        if not is_within_warps(before.layout, after.layout):
            raise SynchronizationError(f"{op.opcode} moves elements between warps", loc=op.loc)
        first = m.split.setdefault((*span[:2], before, after), op)
        for write in (True, False):
            m.touch(role, op, (*span[:2], first), write, private=True)
        return
    m.touch(role, op, span, True)
    m.meet(role, op)
    m.touch(role, op, span, False)


def atomic(m: Machine, role: Role, op: Atomic) -> None:
    """A scalar atomic that releases first waits for the program's other threads."""
    if not isinstance(op.result.type, TileType) and op.sem in RELEASES:
        m.meet(role, op)
    if "scratch" in op.attrs:
        scratch(m, role, op)


def always(op: Op) -> bool:
    return True


def has_scratch(op: Op) -> bool:
    return "scratch" in op.attrs


def is_filled(op: Any) -> bool:
    return op.init is not None


def is_atomic(op: Any) -> bool:
    return has_scratch(op) or (not isinstance(op.result.type, TileType) and op.sem in RELEASES)
