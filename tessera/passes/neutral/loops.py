"""Rewrites counted loops: copies an iteration, unrolls, splits into two loops, adds carried values, makes room for
another version. Passes and back ends that change loops are made of these steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from tessera.dtypes import int32, int64
from tessera.errors import Loc
from tessera.ir import Block, Builder, Op, Type, Value
from tessera.ops import (
    AddOp,
    CastOp,
    CmpOp,
    ConstOp,
    DivOp,
    ForOp,
    IfOp,
    Loop,
    Matmul,
    MaxOp,
    MinOp,
    MulOp,
    SubOp,
    YieldOp,
)
from tessera.passes.neutral.fold import constant_of

L = TypeVar("L", bound=Op)


def const(b: Builder, value: object, t: Type) -> Value:
    """Return a constant of a type."""
    return b.emit(ConstOp(value=value, results=[t]))


def const32(b: Builder, value: int) -> Value:
    """Return an int32 constant."""
    return const(b, value, int32)


def cast(b: Builder, v: Value, t: Type) -> Value:
    """Cast a number to a type that it may already have."""
    return v if v.type == t else b.emit(CastOp(v, results=[t]))


def only_accumulates(loop: ForOp, op: Matmul) -> bool:
    """Whether a matmul adds to a carried accumulator that nothing else reads or changes."""
    acc = op.acc
    carried = acc.owner is loop.body and acc.index > 0 and len(acc.uses) == 1
    return carried and list(op.result.uses) == [(loop.body.terminator, acc.index - 1)]


def runs_at_all(b: Builder, lb: Value, ub: Value, step: Value) -> Value:
    """Return whether a loop has an iteration."""
    down = (constant_of(step) or 0) < 0
    return b.emit(CmpOp(lb, ub, predicate="gt" if down else "lt"))


def iteration(
    b: Builder,
    loop: ForOp,
    index: Value,
    values: Sequence[Value],
    without: Collection[Op] = (),
) -> dict[Value, Value]:
    """Insert the ops of one iteration except those in `without`, for an index and carried values. Return the mapping
    from values of the body."""
    mapping = dict(zip(loop.body.args, [index, *values], strict=True))
    for op in loop.body:
        if not op.terminator and op not in without:
            b.insert(op.clone(mapping))
    return mapping


def branch_for(b: Builder, condition: Value, values: Sequence[Value], loc: Loc | None) -> IfOp:
    """Insert a branch without code, whose results take the place of values."""
    types, names = [v.type for v in values], [v.name for v in values]
    branch = IfOp(condition, results=types, regions=[Block(), Block()], names=names, loc=loc)
    b.insert(branch)
    for old, new in zip(values, branch.results, strict=True):
        old.replace_all_uses(new)
    return branch


def branch_around(condition: Value, moved: Sequence[Op]) -> tuple[IfOp, list[Value]]:
    """Move ops, each the next one of the one before, into the second branch of an `if`. Return it, and those of their
    results that others use; the caller fills the first branch, with another version of the ops."""
    inside = {x for op in moved for x in op.walk()}
    passed = [v for op in moved for v in op.results if not inside.issuperset(v.users())]
    branch = branch_for(Builder.before_op(moved[0]), condition, passed, moved[0].loc)
    end = Builder(branch.orelse, None, branch.loc).insert(YieldOp(passed))
    for op in moved:
        op.move_before(end)
    return branch, passed


def trip_count(loop: ForOp) -> int | None:
    """Return the number of iterations, if the bounds are constants."""
    bounds = [constant_of(v) for v in (loop.lb, loop.ub, loop.step)]
    return len(range(*bounds)) if None not in bounds and bounds[2] else None


def can_unroll(loop: ForOp, count: int) -> bool:
    """Whether the step is known, and `count` times the step fits its type."""
    step, t = constant_of(loop.step), loop.step.type
    return bool(step) and t.signed and abs(step) * count <= t.get_int_max_value()


def unroll_loop(loop: ForOp, count: int) -> ForOp:
    """Insert before a loop another one whose iterations are `count` of its own. The loop is left with the remainder."""
    step, t = constant_of(loop.step), loop.step.type
    b = Builder.before_op(loop)
    middle = _end_of_groups(b, loop, step, count)
    wide = const(b, step * count, t)
    body = Block([a.type for a in loop.body.args], names=[a.name for a in loop.body.args])
    inside = Builder(body, None, loop.loc)
    first, *values = body.args
    for number in range(count):
        index = first
        if number:
            index = inside.emit(AddOp(first, const(inside, step * number, t)))
        mapping = iteration(inside, loop, index, values)
        values = [mapping.get(v, v) for v in loop.body.terminator.operands]
    inside.insert(YieldOp(values, loc=loop.loc))
    names = [r.name for r in loop.results]
    main = ForOp(
        loop.lb, middle, wide, loop.inits, regions=[body], loc=loop.loc, names=names, **loop.attrs
    )
    b.insert(main)
    loop.set_operands(middle, loop.ub, loop.step, main.results)
    return main


def _end_of_groups(b: Builder, loop: ForOp, step: int, count: int) -> Value:
    """Return where the last whole group of iterations ends, at most the loop's end; computed in 64 bits."""
    lb, ub = [cast(b, v, int64) for v in (loop.lb, loop.ub)]
    by = abs(step)
    span = b.emit(SubOp(ub, lb) if step > 0 else SubOp(lb, ub))
    span = b.emit(MaxOp(span, const(b, 0, int64)))
    span = b.emit(AddOp(span, const(b, by - 1, int64)))
    groups = b.emit(DivOp(span, const(b, by * count, int64)))
    end = b.emit(AddOp(lb, b.emit(MulOp(groups, const(b, step * count, int64)))))
    end = b.emit(MinOp(end, ub) if step > 0 else MaxOp(end, ub))
    return cast(b, end, loop.lb.type)


def split_at(loop: ForOp, middle: Value) -> ForOp:
    """End a loop at `middle`, a value that its induction variable takes or that is beyond its end. Return the loop that
    continues from there, with a body of its own."""
    later = loop.clone({})
    Builder.after_op(loop).insert(later)
    for old, new in zip(loop.results, later.results, strict=True):
        old.replace_all_uses(new)
    later.set_operands(middle, loop.ub, loop.step, loop.results)
    loop.set_operand(1, middle)
    return later


def like(
    op: L, heads: Sequence[Value], values: Sequence[Value], blocks: Sequence[Block], **attrs: Any
) -> L:
    """Return a loop or branch of the same kind with other blocks. `heads`: bounds or a condition; `values`: what a loop
    carries first; of a branch, values of the types of its results."""
    made: Any = type(op)
    if isinstance(op, Loop):
        return made(*heads, values, regions=blocks, loc=op.loc, **attrs)
    types = [v.type for v in values]
    return made(*heads, results=types, regions=blocks, loc=op.loc, **attrs)


def passing(end: Op, heads: Sequence[Value], values: Sequence[Value]) -> Op:
    """Return a terminator of the same kind that passes on other values. `heads`: the condition of a `while`."""
    made: Any = type(end)
    return made(*heads, values, loc=end.loc)


def carried_as(op: Op, n: int) -> list[Value]:
    """Return all values that stand for the n-th value that a loop carries, or that a branch yields."""
    at = n - len(op.results)
    found = [op.results[n], *[block.terminator.operands[at] for block in op.regions]]
    if isinstance(op, Loop):
        found += [op.operands[at], *[block.args[at] for block in op.regions]]
    return found


def with_carried(op: L, inits: Sequence[Value], **attrs: Any) -> L:
    """Replace a loop by one that carries additional values, or a branch by one that yields them; each stays as it is
    until its yield is set."""
    is_loop, count = isinstance(op, Loop), len(op.results)
    for block in op.regions:
        args = [block.add_arg(v.type, v.name) for v in inits] if is_loop else inits
        end = block.terminator
        front = len(end.operands) - count
        values = [*end.operands[front:], *args]
        Builder.before_op(end).insert(passing(end, end.operands[:front], values))
        end.erase()
    front = len(op.operands) - count if is_loop else len(op.operands)
    values = [*(op.operands[front:] if is_loop else op.results), *inits]
    names = [r.name for r in op.results]
    new = like(op, op.operands[:front], values, op.regions, names=names, **{**op.attrs, **attrs})
    op.regions = []
    Builder.before_op(op).insert(new)
    for old, fresh in zip(op.results, new.results, strict=False):
        old.replace_all_uses(fresh)
    op.erase()
    return new


def set_yields(block: Block, values: Sequence[Value]) -> None:
    """Set the last ones of the values that a block passes on: to the next iteration, or out of a branch."""
    end = block.terminator
    for i, v in enumerate(values, len(end.operands) - len(values)):
        end.set_operand(i, v)
