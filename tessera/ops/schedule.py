"""Reads and checks the schedule of a software-pipelined loop, which is written on the loop and its ops.

    for ... {main_stage=2}
      %x = load %p, %m, _ {stage=0}                                   copied two iterations ahead,
      %s = local_alloc %x {stage=0, slots=4, signal='cp.async'}       to a ring of four buffers
      %y = wgmma %q, %s, %zero
      %e = exp %y {position=2}                                           from here on behind the MMA of stage 3
      %z = wgmma %e, %s, %acc {stage=3, position=1}                      one iteration late

The *stage* says when an op runs: iteration i of the expanded loop does the ops of `main_stage` for its own index, those
of a lower stage for later iterations, those of a higher stage for earlier ones. An op without a stage is in the main
stage; what the address of a copy needs is repeated in the copy's stage.

The *position* says where an op stands within an iteration of the expanded loop: by position, then by stage, then as in
the text. An op without one has that of the op before it in its stage, or 0.

A value that a later stage uses is kept in registers, carried by the loop; one in shared memory is in a ring of
`slots` buffers, whose writer and readers synchronise by `signal` (SIGNALS). Without its schedule a loop computes the
same, one iteration after another; the pass `expand-loops` makes the prologue, the steady state and the epilogue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tessera.ir import Block, Op, SharedType, Value, require

if TYPE_CHECKING:
    from tessera.ops.control import ForOp

__all__ = [
    "SIGNALS",
    "memory_users",
    "positions_of",
    "readers",
    "set_positions",
    "spell_out",
    "stage_of",
    "steady_state",
    "verify_schedule",
]

# How readers learn that a copy has come, and writers that a buffer is free.
SIGNALS = {
    "cp.async": "groups of copies (cp.async.wait_group), and a barrier of the CTA, which also frees buffers",
    "mbarrier": "a full and an empty mbarrier for each buffer, at which the threads that write arrive",
    "tma": "a full and an empty mbarrier for each buffer; the full one counts the bytes that come (expect_tx)",
    "thread": "groups of copies; each thread reads what it copied itself, so that no barrier is needed",
}

VIEWS = ("local_index", "local_trans")  # other views of the same shared memory


def memory_users(view: Value) -> list[Op]:
    """Return the ops that read or write shared memory through `view` or other views of it."""
    found: list[Op] = []
    for user in view.users():
        found += memory_users(user.results[0]) if user.opcode in VIEWS else [user]
    return found


def stage_of(op: Op, loop: ForOp) -> int:
    """Return the stage of an op of a scheduled loop."""
    stage: int = op.attrs.get("stage", loop.main_stage)
    return stage


def positions_of(loop: ForOp) -> dict[Op, int]:
    """Return the position of each op of a loop's body but the terminator."""
    found: dict[Op, int] = {}
    latest: dict[int, int] = {}
    for op in loop.body:
        stage = stage_of(op, loop)
        latest[stage] = op.attrs.get("position", latest.get(stage, 0))
        found[op] = latest[stage]
    del found[loop.body.terminator]
    return found


def spell_out(loop: ForOp) -> list[Op]:
    """Write its position and its stage on each op of a loop's body, so that ops may come between them. Return the ops,
    which are all but the terminator."""
    positions = positions_of(loop)
    for op, position in positions.items():
        op.attrs |= {"position": position, "stage": stage_of(op, loop)}
    return list(positions)


def set_positions(loop: ForOp, positions: dict[Op, int]) -> None:
    """Write the positions of a loop's ops, on those ops that differ from the op before them in their stage."""
    latest: dict[int, int] = {}
    for op in loop.body:
        stage = stage_of(op, loop)
        position = positions.get(op, latest.get(stage, 0))
        op.attrs.pop("position", None)
        if position != latest.get(stage, 0):
            op.attrs["position"] = position
        latest[stage] = position


def steady_state(loop: ForOp, positions: dict[Op, int]) -> list[Op]:
    """Return the ops of a loop as they stand in an iteration of the expanded loop, without the terminator."""
    return sorted(positions, key=lambda op: (positions[op], stage_of(op, loop)))


def verify_schedule(loop: ForOp) -> None:
    """Raise through `require` if an op would run before what it needs, or a ring has too few buffers."""
    main = loop.main_stage or 0
    require(main >= 0, loop, "the main stage is negative")
    place = {op: n for n, op in enumerate(steady_state(loop, positions_of(loop)))}
    for op in place:
        stage = stage_of(op, loop)
        require(stage >= 0, op, "the stage is negative")
        if stage < main:
            _verify_copy(op, loop, place)
            continue
        for v in _used(op):
            for made, distance in _makers(v, loop.body):
                early = stage_of(made, loop) - stage - distance
                ready = early < 0 or (early == 0 and place[made] < place[op])
                require(
                    ready, op, lambda made=made: f"runs before {made.opcode}, whose value it needs"
                )
                if isinstance(v.type, SharedType) and stage > main:
                    kept = _lasts(v, loop)
                    require(kept, op, "a later stage reads shared memory that is in no ring")


def _verify_copy(op: Op, loop: ForOp, place: dict[Op, int]) -> None:
    """Check a load, or the allocation that it fills, of a stage that runs ahead."""
    if op.opcode != "local_alloc":
        users = op.results[0].users() if op.opcode == "load" else []
        fills = [
            u for u in users if u.attrs.get("stage") == op.attrs["stage"] and "slots" in u.attrs
        ]
        if op.opcode == "load" and not fills:
            main = loop.main_stage or 0
            require(op.attrs["stage"] == main - 1, op, "a load to registers runs one stage ahead")
            return
        require(
            len(users) == len(fills) == 1, op, "only loads may run ahead, to registers or to a ring"
        )
        return
    require(
        op.attrs.get("signal") in SIGNALS, op, lambda: f"signal is none of {', '.join(SIGNALS)}"
    )
    reads = list(readers(op.results[0], loop))
    last = max((stage_of(u, loop) + _runs_on(u) for u in reads), default=0)
    need = last - op.attrs["stage"] + 1
    behind = all(place[u] < place[op] and not _runs_on(u) for u in reads)
    if (
        op.attrs["signal"] == "cp.async" and behind
    ):  # mbarriers are waited for in front of the readers
        need -= 1
    slots = op.attrs.get("slots", 1)
    require(slots >= need, op, lambda: f"{slots} buffers are too few: {need} are in use at a time")


def _lasts(view: Value, loop: ForOp) -> bool:
    """Whether shared memory is still the same in later iterations: in a ring, or not of the loop."""
    op = view.op
    while op is not None and op.opcode in VIEWS:
        op = op.operands[0].op
    return op is None or "slots" in op.attrs or not op.is_inside(loop)


def _runs_on(op: Op) -> int:
    """Return for how many iterations an op still reads its operands after its own."""
    return 1 if op.attrs.get("pending") else 0


def readers(view: Value, loop: ForOp) -> Iterator[Op]:
    """Yield the ops of the loop's body that are or contain readers of a buffer."""
    for user in memory_users(view):
        yield next(x for x in (user, *user.ancestors()) if x.parent is loop.body)


def _used(op: Op) -> list[Value]:
    return [v for inner in op.walk() for v in inner.operands]


def _makers(v: Value, body: Block) -> Iterator[tuple[Op, int]]:
    """Yield the op of the body that makes a value, and how many iterations before."""
    distance = 0
    while v.owner is body and v.index > 0 and distance <= len(body.args):
        v, distance = body.terminator.operands[v.index - 1], distance + 1
    if v.op is not None and v.op.parent is body:
        yield v.op, distance
