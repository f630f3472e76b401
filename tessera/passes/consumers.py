"""The consumers' team: loops that read a ring which others fill, its state carried through everything around them
(passes/specialize.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.dtypes import int1
from tessera.ir import Block, Builder, Op, Value
from tessera.ops import (
    ByteBarrierArriveOp,
    ByteBarrierWaitOp,
    CmpOp,
    ConstOp,
    ForOp,
    IfOp,
    LocalIndexOp,
    SelectOp,
    SubOp,
    WgmmaOp,
    WgmmaWaitOp,
    YieldOp,
)  # fmt: skip
from tessera.passes.rings import Ring, advance, read_by_products, start_const


def consume(r: Ring, top: Block, zero: Value, running: WgmmaOp | None) -> None:
    """Make a loop read the ring, its state carried by everything around it."""
    path: list[Op] = []
    op: Op | None = r.loop
    while op is not None and op.parent is not top:
        path.insert(0, op)
        op = op.parent_op()
    assert op is not None
    path.insert(0, op)
    thread_state(
        path, [zero, zero], lambda loop, state: _body(r, loop, state, running), _after(r, running)
    )


def _body(r: Ring, loop: ForOp, state: list[Value], running: WgmmaOp | None) -> list[Value]:
    slot, phase = state
    b = Builder.before_op(r.loads[0])
    b.insert(ByteBarrierWaitOp(r.full, slot, phase))
    views = [b.emit(LocalIndexOp(ring, slot)) for ring in r.buffers]
    for load, alloc, view in zip(r.loads, r.allocs, views, strict=True):
        alloc.replace_by([view])
        load.erase()
    end = Builder.before_op(loop.body.terminator)
    groups = running is not None or read_by_products(views)
    if running is not None:
        running.pending = 1
        before, begun = (
            _previous(end, slot, r.stages),
            end.emit(CmpOp(loop.induction, loop.lb, predicate="ne")),
        )
        end.insert(ByteBarrierArriveOp(r.empty, before, begun, [], groups=True))
    else:
        yes = end.emit(ConstOp(value=True, results=[int1]))
        end.insert(ByteBarrierArriveOp(r.empty, slot, yes, views, groups=groups))
    return list(advance(end, slot, phase, r.stages))


def _previous(b: Builder, slot: Value, stages: int) -> Value:
    first = b.emit(CmpOp(slot, start_const(b, 0), predicate="eq"))
    before = b.emit(SubOp(slot, start_const(b, 1)))
    return b.emit(SelectOp(first, start_const(b, stages - 1), before))


def _after(r: Ring, running: WgmmaOp | None) -> Callable[[ForOp, list[Value]], None]:
    """After the loop: wait for the product that runs on, then give back the last buffer."""

    def finish(loop: ForOp, state: list[Value]) -> None:
        if running is None:
            return
        b = Builder.after_op(loop)
        result = loop.results[running.acc.index - 1]
        uses = list(result.uses)
        done = b.emit(WgmmaWaitOp(result, []))
        for user, index in uses:
            user.set_operand(index, done)
        ran = b.emit(CmpOp(loop.lb, loop.ub, predicate="lt"))
        last = _previous(b, state[0], r.stages)
        b.insert(ByteBarrierArriveOp(r.empty, last, ran, [], groups=True))

    return finish


def thread_state(
    path: list[Op],
    state: list[Value],
    body: Callable[[ForOp, list[Value]], list[Value]],
    after: Callable[[ForOp, list[Value]], None],
) -> list[Value]:
    """Carry `state` through the nested loops and branches `path`, outermost first. `body` rewrites the innermost loop
    and gives the state after an iteration; `after` gets that loop and the state after it. The state after all."""
    op, rest = path[0], path[1:]
    n = len(state)
    if isinstance(op, ForOp):
        args = [op.body.add_arg(v.type, v.name) for v in state]
        new = _grown(
            op,
            ForOp(
                op.lb,
                op.ub,
                op.step,
                [*op.inits, *state],
                regions=op.regions,
                loc=op.loc,
                results=[*[r.type for r in op.results], *[v.type for v in state]],
                **op.attrs,
            ),
        )
        term = new.body.terminator
        extended = YieldOp([*term.operands, *args], loc=term.loc)
        Builder.before_op(term).insert(extended)
        term.erase()
        out = thread_state(rest, args, body, after) if rest else body(new, args)
        for i, v in enumerate(out):
            extended.set_operand(len(extended.operands) - n + i, v)
        found = new.results[-n:]
        if not rest:
            after(new, found)
        return found
    assert isinstance(op, IfOp)
    inside = next(k for k, block in enumerate(op.regions) if rest[0].parent is block)
    out = thread_state(rest, state, body, after)
    for k, block in enumerate(op.regions):
        term = block.terminator
        Builder.before_op(term).insert(
            YieldOp([*term.operands, *(out if k == inside else state)], loc=term.loc)
        )
        term.erase()
    types = [*[r.type for r in op.results], *[v.type for v in state]]
    new = _grown(op, IfOp(op.condition, results=types, regions=op.regions, loc=op.loc, **op.attrs))
    return new.results[-n:]


def _grown(op: Any, new: Any) -> Any:
    """Put `new`, which took over the blocks of `op` and has further results, in its place."""
    Builder.before_op(op).insert(new)
    op.regions = []
    for block in new.regions:
        block.parent = new
    for old, fresh in zip(op.results, new.results, strict=False):
        old.replace_all_uses(fresh)
        fresh.name = old.name
    op.erase()
    return new
