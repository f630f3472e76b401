"""Finds MMAs at the end of a chain, and schedules them an iteration late, beside work on the next first results.

    for j:                                   for j {main_stage=0}:
      s = k[j] @ q                             s = k[j] @ q
      p = f(s)                          →      p = f(s)                 {position=2}
      acc = h(acc) + p @ v[j]                  x = h(acc)               {position=3}
                                               acc = x + p @ v[j]       {stage=1, position=1}

An MMA is *shifted* by one iteration in this way if it accumulates in the loop, its first operand comes through
registers from another MMA of the same iteration, and only its own next step uses the sum. Its buffers in shared
memory are then read one iteration later. `h(acc)` and the cast that narrows `p` stand at the end of the iteration,
after the wait for the sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tessera import ops
from tessera.analysis.provenance import buffer_of, reached
from tessera.analysis.registers import reg32_of
from tessera.ir import Builder, Op, TileType, Value, elem_of
from tessera.ir.applications import apply, is_enabled
from tessera.ops.schedule import set_positions, stage_of
from tessera.passes.gpu_layout.rules import is_pointwise
from tessera.passes.gpu_mma.split_loops import flip_of
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.loops import only_accumulates

# Registers of MMAs up to which the last MMA of a chain may be shifted by an iteration (tools/fit).
CHAINED_REG32 = 208
LATE, REST, AFTER = 1, 2, 3  # positions: behind the MMAs that depend on no other one


@dataclass(frozen=True, slots=True)
class Shifted:
    """An MMA to shift by one iteration, and the index of the carried value that holds its sum."""

    mma: ops.WgmmaOp
    number: int


def overlapping(
    loop: ops.ForOp, rings: set[Op], roles: bool = False
) -> tuple[list[ops.WgmmaOp], list[Shifted]]:
    """Return the MMAs of a loop that may run on into the next iteration, or else those that may be shifted by one."""
    running = accumulating(loop, rings)
    shifted = [] if running else shiftable(loop, rings, roles)
    if running and not apply("mma-across-iterations", loop):
        running = []
    if shifted and not apply("mma-chains", loop):
        shifted = []
    return running, shifted


# --- what can be shifted ------------------------------------------------------------------------------------
def shiftable(loop: ops.ForOp, rings: set[Op], roles: bool = False) -> list[Shifted]:
    """Return the MMAs of a loop that may be shifted by one iteration. `rings`: allocations that become rings; operands
    in other shared memory must not change in the loop. Nothing is shifted if results and operands of MMAs take more
    than CHAINED_REG32 registers of a thread, or, where other warps load (`roles`), beside several MMAs that depend on
    no other one."""
    step = constant_of(loop.step)
    if step is None or step <= 0 or not is_enabled("mma-chains"):
        return []
    mmas = [op for op in loop.body if isinstance(op, ops.WgmmaOp)]
    found: list[Shifted] = []
    for op in mmas:
        number = _sum_number(loop, op)
        if (
            number is not None
            and isinstance(op.a.type, TileType)
            and _source_mmas(op.a, loop)
            and _survives(op.b, loop, rings)
        ):
            found.append(Shifted(op, number))
    held = [*[op.result for op in mmas], *[d.mma.a for d in found]]
    filled = roles and len(_sources(loop, found)) > 1  # the waits of each, by the others
    return [] if filled or sum(reg32_of(v.type) for v in held) > CHAINED_REG32 else found


def _sum_number(loop: ops.ForOp, op: ops.WgmmaOp) -> int | None:
    """Return the index of the carried value that the result of `op` becomes, if only the next `op` uses it, after
    pointwise work."""
    uses = list(op.result.uses)
    if len(uses) != 1 or uses[0][0] is not loop.body.terminator:
        return None
    number = uses[0][1]
    work, seen = [loop.carried[number]], False
    while work:
        for user, index in work.pop().uses:
            if user is op and user.operands[index] is op.acc:
                seen = True
            elif user.parent is loop.body and _is_light(user) and len(user.results) == 1:
                work.append(user.results[0])
            else:
                return None
    return number if seen else None


def _is_light(op: Op) -> bool:
    return is_pointwise(op) or isinstance(op, ops.ConvertLayoutOp)


def _source_mmas(v: Value, loop: ops.ForOp) -> set[ops.WgmmaOp]:
    """Return the MMAs of the same iteration that `v` is computed from."""

    def sources(x: Value) -> list[Value]:
        inside = x.op.walk() if x.op is not None and x.op.is_inside(loop) else ()
        return [y for op in inside for y in op.operands]

    found = [x.op for x in reached([v], sources)]
    return {op for op in found if isinstance(op, ops.WgmmaOp) and op.is_inside(loop)}


def _survives(view: Value, loop: ops.ForOp, rings: set[Op]) -> bool:
    """Whether an operand in shared memory can still be read one iteration later."""
    op = buffer_of(view).op
    return op is not None and (op in rings or not op.is_inside(loop))


# --- MMAs that run on ---------------------------------------------------------------------------------------
def accumulating(loop: ops.ForOp, rings: set[Op]) -> list[ops.WgmmaOp]:
    """Return the MMAs of a loop if all of them only accumulate from iteration to iteration, on operands that come
    through rings (allocations that become rings) or a ring of buffers."""
    mmas = [op for op in loop.walk() if isinstance(op, ops.WgmmaOp)]
    if not is_enabled("mma-across-iterations"):
        return []
    for op in mmas:
        allocs = [_alloc_of(v) for v in (op.a, op.b)]
        lasting = all(a in rings or (a is not None and a.attrs.get("rotates")) for a in allocs)
        if op.parent is not loop.body or not lasting or not only_accumulates(loop, op):
            return []
    return mmas


def run_on(loop: ops.ForOp, mmas: Sequence[ops.WgmmaOp]) -> None:
    """Let the MMAs of an iteration run until the same ones of the next iteration have begun. Waits for the last ones
    follow the loop."""
    at: Op = loop
    for mma in mmas:
        mma.pending = len(mmas)
        last = loop.results[mma.acc.index - 1]
        uses = list(last.uses)
        wait = ops.WgmmaWaitOp(last, [], waited=at is not loop)
        at = Builder.after_op(at).insert(wait)
        for user, index in uses:
            user.set_operand(index, wait.result)


def _alloc_of(v: Value) -> Op | None:
    """Return the allocation that an operand is a view of, or was loaded from for this MMA alone."""
    if isinstance(v.op, ops.LocalLoadOp) and len(v.uses) == 1:
        v = v.op.shared
    return buffer_of(v).op


# --- the schedule -------------------------------------------------------------------------------------------
def schedule_late(
    loop: ops.ForOp,
    main: int,
    shifted: Sequence[Shifted],
    ping_pong_reg32: int | None = None,
) -> None:
    """Write the schedule of a loop with shifted MMAs. `ping_pong_reg32`: warpgroups ping-pong if an iteration's results
    take at least this many registers."""
    mmas = {d.mma for d in shifted}
    after = set(_after(loop, shifted))
    positions: dict[Op, int] = {}
    loop.main_stage = main
    place = 0
    source = _sources(loop, shifted)[-1]
    for op in loop.body:
        if stage_of(op, loop) < main:
            continue
        if op in mmas:
            op.attrs["stage"] = main + 1
            positions[op] = LATE
        else:
            positions[op] = AFTER if op in after else place
            place = REST if op is source else place
    del positions[loop.body.terminator]
    set_positions(loop, positions)
    if ping_pong_reg32 is not None and _worth_ping_pong(loop, ping_pong_reg32):
        loop.attrs["ping_pong"] = True


def _after(loop: ops.ForOp, shifted: Sequence[Shifted]) -> Iterator[Op]:
    """Yield what runs after an iteration's waits: work on the sums before the next MMA, and the narrowing of its first
    operand, which may then reuse the operand's registers."""
    for d in shifted:
        reached = {loop.carried[d.number]}
        for op in loop.body:
            if op is not d.mma and not op.terminator and any(v in reached for v in op.operands):
                reached.update(op.results)
                yield op
        yield from _narrowing(d)


def _narrowing(d: Shifted) -> list[Op]:
    """Return the narrowing cast of an MMA's first operand, and what follows it."""
    chain: list[Op] = []
    v = d.mma.a
    while (op := v.op) is not None and isinstance(op, ops.CastOp | ops.ConvertLayoutOp):
        if len(v.uses) != 1 or op.parent is not d.mma.parent:
            return []
        chain.append(op)
        v = op.operands[0]
        if elem_of(v.type).bits > elem_of(op.result.type).bits:
            return chain
    return []


def _worth_ping_pong(loop: ops.ForOp, least: int) -> bool:
    """Whether ping-pong pays: where MMAs are long and iterations alike, but not with a branch in the iteration."""
    mmas = [op for op in loop.body if isinstance(op, ops.WgmmaOp)]
    even = all(flip_of(op, loop) is not None for op in loop.body if isinstance(op, ops.IfOp))
    return even and sum(reg32_of(op.result.type) for op in mmas) >= least


def _sources(loop: ops.ForOp, shifted: Sequence[Shifted]) -> list[ops.WgmmaOp]:
    """Return the MMAs that depend on no other MMA of their iteration."""
    moved = {d.mma for d in shifted}
    return [
        op
        for op in loop.body
        if isinstance(op, ops.WgmmaOp)
        and op not in moved
        and not any(_source_mmas(v, loop) for v in op.operands)
    ]
