"""Reads and checks which warps do what: the part of a schedule (schedule.py) about values that cross warp roles.

    func {producer_warps=1, role_registers=[0, 0, 0]}
      for ...
        %x = descriptor_load %d, [%m, %k]
        %s = local_alloc %x {role='producer', ring=0, slots=4, signal='tma', release='warpgroup'}
        %y = wgmma %s, ...

A function with `producer_warps` is split into roles. `role` says who fills a buffer: the producer by copies of the TMA
unit, or the *transpose role* with a tile that it reads from another ring. All else is done by the consumers.
`role_registers`: of a thread of the producer, the consumers and the transpose role, zeros if all have the same;
`transpose_warps`: of the transpose role.

Buffers with the same number of a `ring` in a block are filled and released together: they share `slots` and barriers.
A ring of the same number in a later loop uses the buffers again. `signal` (SIGNALS) says how readers learn that a
buffer is full, `release` (RELEASES) who tells the writer that it is free. Buffers before all loops are filled once.

Without these attributes a function computes the same in one role; the pass `expand-loops` makes `warp_specialize`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tessera.ir import Op, require
from tessera.ops.schedule import memory_users

if TYPE_CHECKING:
    from tessera.ops.control import FuncOp

__all__ = [
    "FILLED", "NEVER", "RELEASES", "SCHEDULE", "crossing", "is_in_split", "is_split", "ring_of", "verify_roles",
]  # fmt: skip

NEVER = "never"
# Who arrives at the mbarrier that frees a buffer.
RELEASES = {
    "warp": "each warp of the consumers, once it has read the buffer",
    "warpgroup": "each warpgroup of the consumers, once its MMAs, one in each iteration at least, have read it",
    "transpose": "each warp of the transpose role",
    NEVER: "nobody, since the buffer is filled only once",
}
# The signal of each role that fills buffers.
FILLED = {"producer": "tma", "transpose": "mbarrier"}
MMAS = ("wgmma", "wgmma_wait")
SCHEDULE = ("role", "ring", "slots", "signal", "release")  # attributes of a buffer
SHARED = ("role", "slots", "release")  # by the buffers of a ring
FEWEST = 2  # buffers of a ring whose readers keep one for an iteration more


def is_split(func: FuncOp) -> bool:
    """Whether the schedule splits a function into warp roles."""
    return "producer_warps" in func.attrs


def ring_of(op: Op) -> int | None:
    """Return the number of the ring whose buffers an op allocates, if they cross roles."""
    number: int | None = op.attrs.get("ring")
    return number


def crossing(func: FuncOp) -> Iterator[Op]:
    """Yield the allocations of a function that cross roles."""
    return (op for op in func.walk() if "ring" in op.attrs)


def is_in_split(op: Op) -> bool:
    """Whether the schedule splits the function of an op into warp roles."""
    return any("producer_warps" in above.attrs for above in op.ancestors())


def verify_roles(func: FuncOp) -> None:
    """Raise through `require` if roles could not fill, read or release what crosses between them."""
    found = list(crossing(func))
    rings: dict[Any, dict[Any, list[Op]]] = {}
    for op in found:
        _verify_buffer(op, func)
        rings.setdefault(ring_of(op), {}).setdefault(op.parent, []).append(op)
    for blocks in rings.values():
        first = next(iter(blocks.values()))
        for buffers in blocks.values():
            for op in buffers:
                same = all(first[0].attrs[name] == op.attrs[name] for name in SHARED)
                require(same, op, "buffers of one ring differ in role, slots or release")
            users = [user for op in buffers for user in memory_users(op.results[0])]
            runs = any(u.opcode == MMAS[0] and u.parent is buffers[0].parent for u in users)
            require(
                runs or buffers[0].attrs["release"] != "warpgroup", buffers[0],
                "warpgroups release what an MMA of each iteration reads",
            )  # fmt: skip
            same = [op.results[0].type for op in buffers] == [op.results[0].type for op in first]
            require(same, buffers[0], "a later loop uses a ring for buffers of other types")
    require(bool(found), func, "a producer fills no buffer")
    used = any(op.attrs["role"] == "transpose" for op in found)
    wanted = bool(func.attrs.get("transpose_warps"))
    require(used == wanted, func, "warps transpose just if a buffer is filled by them")


def _verify_buffer(op: Op, func: FuncOp) -> None:
    role, release, slots = (op.attrs.get(name) for name in ("role", "release", "slots"))
    require(op.opcode == "local_alloc", op, "only buffers in shared memory cross roles")
    require(role in FILLED, op, lambda: f"role is none of {', '.join(FILLED)}")
    require(
        op.attrs.get("signal") == FILLED[role or "producer"], op,
        lambda: f"what the role {role} fills has the signal {FILLED[role or 'producer']!r}",
    )  # fmt: skip
    require(release in RELEASES, op, lambda: f"release is none of {', '.join(RELEASES)}")
    once = op.parent is func.body
    require(once == (release == NEVER), op, "buffers are released just if a loop fills them")
    least = 1 if once or not _is_kept(op) else FEWEST
    require(
        isinstance(slots, int) and slots >= least, op,
        lambda: f"slots={slots} are too few: {least} are in use at a time",
    )  # fmt: skip
    filling = op.operands[0].op if op.operands else None
    wanted = "descriptor_load" if role == "producer" else "local_load"
    alone = filling is not None and len(filling.results[0].uses) == 1
    require(
        alone and filling is not None and filling.opcode == wanted and filling.parent is op.parent,
        op, lambda: f"the role {role} fills a buffer from a {wanted} of the same block alone",
    )  # fmt: skip
    if release == "warpgroup":
        mmas = all(user.opcode in MMAS for user in memory_users(op.results[0]))
        require(mmas, op, "warpgroups release what only MMAs of warpgroups read")
    if release == "transpose":
        filled = [
            u.results[0].users() for u in memory_users(op.results[0]) if u.opcode == "local_load"
        ]
        to = filled[0][0] if len(filled) == 1 and len(filled[0]) == 1 else None
        read = to is not None and to.attrs.get("role") == "transpose"
        require(read, op, "the transpose role releases what it alone reads")


def _is_kept(op: Op) -> bool:
    """Whether MMAs of its loop that run on or late read a buffer for an iteration more."""
    users = [u for u in memory_users(op.results[0]) if u.parent is op.parent]
    return any(u.attrs.get("pending") or "stage" in u.attrs for u in users)
