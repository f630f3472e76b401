"""Takes the machine through loops, branches, calls and roles."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from tessera.analysis.synchronization.clocks import join, joined
from tessera.ir import Op
from tessera.ops import CallOp, ForOp, IfOp, WarpSpecializeOp, WhileOp

if TYPE_CHECKING:
    from tessera.analysis.synchronization.machine import Machine, Role

Run = Generator[str, None, None]
SPINS = 60
"""Iterations after which a `while` loop is taken to wait for something that never happens in this world."""


class Enough(Exception):
    """A run has used up its steps."""


def _for(m: Machine, role: Role, op: Op) -> Run:
    assert isinstance(op, ForOp)
    i, ub, step = m.get([op.lb, op.ub, op.step])
    term = op.body.terminator.operands
    kept = m.plan.wanted(op.carried)
    args = [op.carried[k] for k in kept]
    values = m.get([op.inits[k] for k in kept])
    trips = 0
    while (i < ub if step > 0 else i > ub) and step and m.goes_on(trips):
        m.env[op.induction] = i
        m.hand(args, values)
        yield from m.block(role, op.body)
        values = m.get([term[k] for k in kept])
        i, trips = i + step, trips + 1
    m.seen[op] = max(m.seen[op], trips)
    m.hand([op.results[k] for k in kept], values)


def _while(m: Machine, role: Role, op: Op) -> Run:
    assert isinstance(op, WhileOp)
    condition, term = op.before.terminator.operands, op.after.terminator.operands
    kept = m.plan.wanted(op.before.args)
    values = m.get([op.inits[k] for k in kept])
    trips = 0
    while True:
        m.hand([op.before.args[k] for k in kept], values)
        yield from m.block(role, op.before)
        values = m.get([condition[1 + k] for k in kept])
        if not m.env[condition[0]] or not m.goes_on(trips):
            break
        m.hand([op.after.args[k] for k in kept], values)
        yield from m.block(role, op.after)
        values = m.get([term[k] for k in kept])
        trips += 1
        if trips > SPINS:
            raise Enough
    m.seen[op] = max(m.seen[op], trips)
    m.hand([op.results[k] for k in kept], values)


def _if(m: Machine, role: Role, op: Op) -> Run:
    assert isinstance(op, IfOp)
    block = op.then if m.env[op.condition] else op.orelse
    yield from m.block(role, block)
    kept = m.plan.wanted(op.results)
    operands = block.terminator.operands
    m.hand([op.results[k] for k in kept], m.get([operands[k] for k in kept]))


def _call(m: Machine, role: Role, op: Op) -> Run:
    assert isinstance(op, CallOp)
    callee = op.resolve()
    assert callee is not None
    m.hand(callee.body.args, m.get(op.operands))
    yield from m.block(role, callee.body)
    m.hand(op.results, m.get(callee.body.terminator.operands))


def _roles(m: Machine, role: Role, op: Op) -> Run:
    """Run the roles concurrently, each until it waits for another. All but the producer start after everything before
    them, in whatever warp; with several CTAs the producer does, too."""
    assert isinstance(op, WarpSpecializeOp)
    start = joined(m.clocks)
    for w in (*role.warps, *m.transpose.warps, *(m.producer.warps if op.ctas > 1 else ())):
        join(m.clocks[w], start)
    runs = [
        m.block(x, block)
        for x, block in (
            (m.producer, op.producer),
            (m.transpose, op.transpose),
            (role, op.consumers),
        )
    ]
    while runs:
        stuck: list[str] = []
        ended: list[Run] = []
        before = _progress(m)
        for run in runs:
            why = next(run, None)
            if why is None:
                ended.append(run)
            else:
                stuck.append(why)
        runs = [run for run in runs if run not in ended]
        if runs and not ended and _progress(m) == before:
            yield "; ".join(stuck)


def _progress(m: Machine) -> int:
    return m.left


FLOW: dict[type[Op], Any] = {
    ForOp: _for,
    WhileOp: _while,
    IfOp: _if,
    CallOp: _call,
    WarpSpecializeOp: _roles,
}
