"""Shifts the last MMA of a chain by one iteration, so that it overlaps work on the next iteration's first results.

    for j:                                   if at least one iteration:
      s = k[j] @ q                             s = k[0] @ q;  p = f(s);  x = h(acc)
      p = f(s)                                 for j from the second on:
      acc = h(acc) + p @ v[j]                    s = k[j] @ q
                                                 acc = x + p @ v[j-1]      # both MMAs in flight
                                                 p = f(s)                  # … while this needs the first only
                                                 x = h(acc)
                                               acc = x + p @ v[last]

An MMA is *shifted* by one iteration in this way if it accumulates in the loop, its first operand comes through
registers from another MMA of the same iteration, and only its own next step uses the sum. Its buffers in shared
memory are then read one iteration later, so the pipeline's copies run one iteration less ahead. `h(acc)` and the cast
that narrows `p` move to the end of the iteration, after the wait for the sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tessera import ops
from tessera.analysis.provenance import buffer_of
from tessera.ir import Block, Builder, Op, TileType, Value, elem_of
from tessera.ir.applications import is_enabled
from tessera.passes.gpu_layout.rules import is_pointwise
from tessera.passes.gpu_mma.split_loops import flip_of
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.loops import iteration


@dataclass(frozen=True, slots=True)
class Shifted:
    """An MMA to shift by one iteration, and the index of the carried value that holds its sum."""

    mma: ops.WgmmaOp
    number: int


# --- what can be shifted ------------------------------------------------------------------------------------
def shiftable(loop: ops.ForOp, rings: set[Op], limit: int) -> list[Shifted]:
    """Return the MMAs of a loop that may be shifted by one iteration. `rings`: allocations that become rings; operands
    in other shared memory must not change in the loop. `limit`: nothing is shifted if results and operands of MMAs take
    more registers (of 32 bits) of a thread."""
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
    return found if found and _reg32(mmas, found) <= limit else []


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
    found: set[ops.WgmmaOp] = set()
    seen: set[Value] = set()
    work = [v]
    while work:
        x = work.pop()
        op = x.op
        if op is None or x in seen or not op.is_inside(loop):
            continue
        seen.add(x)
        if isinstance(op, ops.WgmmaOp):
            found.add(op)
        work += op.operands
        for inner in op.walk():
            work += inner.operands
    return found


def _survives(view: Value, loop: ops.ForOp, rings: set[Op]) -> bool:
    """Whether an operand in shared memory can still be read one iteration later."""
    op = buffer_of(view).op
    return op is not None and (op in rings or not op.is_inside(loop))


def _reg32(mmas: Sequence[ops.WgmmaOp], shifted: Sequence[Shifted]) -> int:
    tiles: list[Any] = [op.result.type for op in mmas]
    tiles += [d.mma.a.type for d in shifted]
    return sum(t.layout.size("register") * t.elem.bits // 32 for t in tiles)


# --- the rewriting ------------------------------------------------------------------------------------------
def shift_stage(
    loop: ops.ForOp,
    shifted: Sequence[Shifted],
    moved: Sequence[Op],
    ping_pong_reg32: int | None = None,
) -> None:
    """Shift MMAs of a loop that already has its rings. `moved`: all ops that move with them, in order: the MMAs, the
    waits for their buffers, the views and the releases. `ping_pong_reg32`: warpgroups ping-pong if an iteration's
    results take at least this many registers."""
    before = Builder.before_op(loop)
    runs = before.emit(ops.CmpOp(loop.lb, loop.ub, predicate="lt"))
    types, names = [r.type for r in loop.results], [r.name for r in loop.results]
    branch = ops.IfOp(runs, results=types, regions=[Block(), Block()], names=names, loc=loop.loc)
    before.insert(branch)
    for old, new in zip(loop.results, branch.results, strict=True):
        old.replace_all_uses(new)
    Builder(branch.orelse, None, loop.loc).insert(ops.YieldOp(list(loop.inits)))
    inside = Builder(branch.then, None, loop.loc)
    inits = _first_iteration(inside, loop, shifted, set(moved))
    ping_pong = ping_pong_reg32 is not None and _worth_ping_pong(loop, ping_pong_reg32)
    if ping_pong:
        inside.insert(ops.PingPongOp(kind="open"))
    others, moved = _other_iterations(inside, loop, shifted, moved, inits, ping_pong)
    if ping_pong:
        inside.insert(ops.PingPongOp(kind="close"))
    inside.insert(ops.YieldOp(_last_mmas(inside, others, shifted, moved)[: len(types)]))
    loop.erase()


def shifted_view(b: Builder, view: Value, root: Value) -> Value:
    """Return the same view (transposes) of another buffer."""
    op = view.op
    if not isinstance(op, ops.LocalTransOp):
        return root
    return b.insert(op.clone({op.x: shifted_view(b, op.x, root)})).result


def drop_view(view: Value) -> None:
    """Erase the ops of a view that has no uses left."""
    while isinstance(view.op, ops.SharedView) and not view.uses:
        op = view.op
        view = op.operands[0]
        op.erase()


def _handed(loop: ops.ForOp, shifted: Sequence[Shifted]) -> list[Value]:
    """Return the values that an iteration passes on: sums before their last MMA, then operands of that MMA."""
    handed = list(loop.body.terminator.operands)
    for d in shifted:
        handed[d.number] = d.mma.acc
    return [*handed, *[d.mma.a for d in shifted]]


def _first_iteration(
    b: Builder, loop: ops.ForOp, shifted: Sequence[Shifted], moved: set[Op]
) -> list[Value]:
    """Emit the first iteration, without the shifted ops. Return what it passes to the second."""
    mapping = iteration(b, loop, loop.lb, loop.inits, without=moved)
    handed = _handed(loop, shifted)
    count = len(loop.carried)
    kept = [x if v.op in moved else v for v, x in zip(handed[:count], loop.carried, strict=True)]
    return [mapping.get(v, v) for v in (*kept, *handed[count:])]


def _other_iterations(
    b: Builder,
    loop: ops.ForOp,
    shifted: Sequence[Shifted],
    moved: Sequence[Op],
    inits: list[Value],
    ping_pong: bool,
) -> tuple[ops.ForOp, list[Op]]:
    """Emit the loop of the other iterations, each with the shifted ops of the one before. Return the loop and these
    ops."""
    body = loop.body
    for d in shifted:
        _sink_step(loop, d)
        _sink_narrowing(d, body.terminator)
    mmas: dict[Op, Shifted] = {d.mma: d for d in shifted}
    last = [op for op in moved if op in mmas][-1]
    waits = [op for op in _until_mma(body) if _awaits_data(op) and op not in moved]
    at: Op = _last_source(loop, shifted)
    placed: list[Op] = []
    behind = False  # after the last MMA: what follows stays at the end
    for op in moved:
        new = op
        if not behind:
            new = _shifted_mma(loop, mmas[op]) if op in mmas else op
            if new is op:
                op.detach()
            at = Builder.after_op(at).insert(new)
        placed.append(new)
        behind |= op is last
    if ping_pong:
        Builder.after_op(waits[-1]).insert(ops.PingPongOp(kind="begin"))
        Builder.after_op(at).insert(ops.PingPongOp(kind="end"))
    handed, old = _handed(loop, shifted), body.terminator
    Builder.before_op(old).insert(ops.YieldOp(handed, loc=old.loc))
    old.erase()
    for d in shifted:
        d.mma.erase()
    second = b.emit(ops.AddOp(loop.lb, loop.step))
    names = [v.name for v in body.args[1:]]
    loop.regions = []
    new = ops.ForOp(second, loop.ub, loop.step, inits, regions=[body], names=names, **loop.attrs)
    return b.insert(new), placed


def _shifted_mma(loop: ops.ForOp, d: Shifted) -> ops.WgmmaOp:
    """Return the MMA of the previous iteration, on an operand that is carried over."""
    held = loop.body.add_arg(d.mma.a.type, d.mma.a.name)
    carried = loop.carried[d.number]
    users = list(carried.uses)
    mma = ops.WgmmaOp(held, d.mma.b, carried, loc=d.mma.loc, **d.mma.attrs)
    mma.result.name = carried.name
    for user, index in users:
        user.set_operand(index, mma.result)
    return mma


def _until_mma(body: Block) -> Iterator[Op]:
    for op in body:
        if isinstance(op, ops.WgmmaOp):
            return
        yield op


def _awaits_data(op: Op) -> bool:
    return isinstance(op, ops.MbarrierWaitOp) and op.data


def _last_mmas(
    b: Builder, others: ops.ForOp, shifted: Sequence[Shifted], moved: Sequence[Op]
) -> list[Value]:
    """Emit the shifted ops of the last iteration, and return all results."""
    mapping = dict(zip(others.carried, others.results, strict=True))
    for op in moved:
        copy = b.insert(op.clone(mapping))
        copy.attrs.pop("slot", None)
    sums = {d.number: mma for d, mma in zip(shifted, _mmas(moved), strict=True)}
    found: list[Value] = []
    yields = others.body.terminator.operands
    for n, (v, result) in enumerate(zip(yields, others.results, strict=True)):
        if n in sums:
            found.append(mapping[sums[n].result])
        else:
            found.append(mapping[v] if v.op in moved else result)
    return found


def _mmas(found: Sequence[Op]) -> list[ops.WgmmaOp]:
    return [op for op in found if isinstance(op, ops.WgmmaOp)]


def _worth_ping_pong(loop: ops.ForOp, least: int) -> bool:
    """Whether ping-pong pays: where MMAs are long and iterations alike, but not with a branch in the iteration."""
    mmas = [op for op in loop.body if isinstance(op, ops.WgmmaOp)]
    even = all(flip_of(op, loop) is not None for op in loop.body if isinstance(op, ops.IfOp))
    return even and _reg32(mmas, []) >= least


def _last_source(loop: ops.ForOp, shifted: Sequence[Shifted]) -> Op:
    """Return the last MMA that depends on no other MMA of its iteration."""
    moved = {d.mma for d in shifted}
    found = [
        op
        for op in loop.body
        if isinstance(op, ops.WgmmaOp)
        and op not in moved
        and not any(_source_mmas(v, loop) for v in op.operands)
    ]
    return found[-1]


def _sink_step(loop: ops.ForOp, d: Shifted) -> None:
    """Move work on the carried sum before the MMA to the end of the iteration."""
    reached = {loop.carried[d.number]}
    for op in list(loop.body):
        if op is not d.mma and not op.terminator and any(v in reached for v in op.operands):
            reached.update(op.results)
            op.move_before(loop.body.terminator)


def _sink_narrowing(d: Shifted, end: Op) -> None:
    """Move the narrowing cast of the first operand to the end, where it may reuse the operand's registers."""
    chain: list[Op] = []
    v = d.mma.a
    while (op := v.op) is not None and isinstance(op, ops.CastOp | ops.ConvertLayoutOp):
        if len(v.uses) != 1 or op.parent is not d.mma.parent:
            return
        chain.append(op)
        v = op.operands[0]
        if elem_of(v.type).bits > elem_of(op.result.type).bits:
            for moved in reversed(chain):
                moved.move_before(end)
            return
