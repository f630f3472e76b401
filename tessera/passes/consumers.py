"""The consumers' team: blocks that read rings which others fill, the rings' state carried through everything around
them (passes/specialize.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from tessera.passes.chains import Delayed, drop_view, late_view, root_of
from tessera.passes.rings import Reader, Ring, advance, start_const


def consume_once(r: Ring, zero: Value) -> None:
    """Read tiles that are loaded a single time."""
    b = Builder.before_op(r.loads[0])
    b.insert(ByteBarrierWaitOp(r.full, zero, zero))
    _replace_loads(r, [b.emit(LocalIndexOp(ring, zero)) for ring in r.buffers])


def consume(readers: Sequence[Reader], top: Block, zero: Value, running: WgmmaOp | None) -> set[Op]:
    """Make a loop read its rings, their state carried by everything around it. What is an iteration late."""
    path: list[Op] = []
    op = readers[0].ring.home.parent
    while op is not None and op.parent is not top:
        path.insert(0, op)
        op = op.parent_op()
    assert op is not None
    path.insert(0, op)
    late: set[Op] = set()
    state = [zero, zero] * len(readers)
    thread_state(
        path,
        state,
        lambda loop, state: _body(readers, loop, state, running, late),
        _after(readers, running),
    )
    return late


def _body(
    readers: Sequence[Reader],
    loop: ForOp,
    state: list[Value],
    running: WgmmaOp | None,
    late: set[Op],
) -> list[Value]:
    out: list[Value] = []
    if running is not None:
        running.pending = 1
    for n, r in enumerate(readers):
        slot, phase = state[2 * n : 2 * n + 2]
        before = set(loop.body)
        if r.late:
            views = _late_views(r.ring, r.late, slot, phase)
            late |= {d.product for d in r.late}
        else:
            b = Builder.before_op(r.ring.loads[0])
            b.insert(ByteBarrierWaitOp(r.ring.full, slot, phase))
            views = [b.emit(LocalIndexOp(ring, slot)) for ring in r.ring.buffers]
            for alloc, view in zip(r.ring.allocs, views, strict=True):
                alloc.result.replace_all_uses(view)
        end = Builder.before_op(loop.body.terminator)
        if r.last:
            _replace_loads(r.ring, views)
            _give_back(r.ring, end, loop, slot, views, running)
        out += advance(end, slot, phase, r.ring.stages)
        if r.late:
            late |= set(loop.body) - before
    return out


def _late_views(r: Ring, late: Sequence[Delayed], slot: Value, phase: Value) -> list[Value]:
    """Views for products that are to be an iteration late, right before them."""
    at = Builder.before_op(late[0].product)
    at.insert(ByteBarrierWaitOp(r.full, slot, phase))
    views = [at.emit(LocalIndexOp(ring, slot)) for ring in r.buffers]
    for d in late:
        old = d.product.b
        root = root_of(old).op
        number = next(
            i for i, a in enumerate(r.allocs) if a is root or _ring_of(root_of(old)) is r.buffers[i]
        )
        at = Builder.before_op(d.product)
        d.product.set_operand(1, late_view(at, old, views[number]))
        drop_view(old)
    return views


def _replace_loads(r: Ring, views: list[Value]) -> None:
    for load, alloc, view in zip(r.loads, r.allocs, views, strict=True):
        alloc.replace_by([view])
        load.erase()


def _give_back(
    r: Ring, end: Builder, loop: ForOp, slot: Value, views: list[Value], running: WgmmaOp | None
) -> None:
    if running is not None and any(v in views for v in _roots(running)):
        before = _previous(end, slot, r.stages)
        begun = end.emit(CmpOp(loop.induction, loop.lb, predicate="ne"))
        end.insert(ByteBarrierArriveOp(r.empty, before, begun, [], groups=r.groups))
    else:
        yes = end.emit(ConstOp(value=True, results=[int1]))
        end.insert(ByteBarrierArriveOp(r.empty, slot, yes, views, groups=r.groups))


def _roots(product: WgmmaOp) -> list[Value]:
    return [root_of(v) for v in (product.a, product.b)]


def _previous(b: Builder, slot: Value, stages: int) -> Value:
    first = b.emit(CmpOp(slot, start_const(b, 0), predicate="eq"))
    before = b.emit(SubOp(slot, start_const(b, 1)))
    return b.emit(SelectOp(first, start_const(b, stages - 1), before))


def _after(
    readers: Sequence[Reader], running: WgmmaOp | None
) -> Callable[[ForOp, list[Value]], None]:
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
        buffers = [_ring_of(v) for v in _roots(running)]
        for n, r in enumerate(readers):
            if any(ring in buffers for ring in r.ring.buffers):
                last = _previous(b, state[2 * n], r.ring.stages)
                b.insert(ByteBarrierArriveOp(r.ring.empty, last, ran, [], groups=r.ring.groups))

    return finish


def _ring_of(view: Value) -> Value | None:
    return view.op.ring if isinstance(view.op, LocalIndexOp) else None


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
