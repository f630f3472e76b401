"""Unrolls loops with `tl.range(loop_unroll_factor=n)`: n iterations in one body, and a loop for those that are left.

    for i in lb..ub by s (%x = %x0)         %m = lb + (trips // n) * n * s
      ... i, %x ...                     →   %y = for i in lb..%m by n * s (%x = %x0)
      yield %x'                                 ... i, %x ...;  ... i + s, %x' ...;  ...;  yield
                                            for i in %m..ub by s (%x = %y)
                                                ... i, %x ...

The copies stand one after the other: the loads of all can be in flight together."""

from __future__ import annotations

from tessera.dtypes import int64
from tessera.ir import Block, Builder, Module, Value, pass_
from tessera.ir.applications import apply
from tessera.ops import AddOp, CastOp, ConstOp, DivOp, ForOp, MaxOp, MulOp, SubOp, YieldOp
from tessera.passes.neutral.fold import constant_of

LARGEST = 32  # copies of one body


@pass_("unroll", optimization="unroll", counts=True)
def unroll(module: Module) -> None:
    """Unroll every `for` that asks for it and counts up by a constant; loops done lose the attribute."""
    for op in list(module.walk()):
        if isinstance(op, ForOp) and op.unroll:
            step = constant_of(op.step)
            count, op.unroll = min(op.unroll, LARGEST), None
            t = op.step.type
            if step is not None and 0 < step * count <= t.get_int_max_value() and t.signed:
                if apply("unroll", op):
                    _unroll(op, step, count)


def _unroll(loop: ForOp, step: int, count: int) -> None:
    b = Builder.before_op(loop)
    middle = _end(b, loop, step, count)
    wide = b.emit(ConstOp(value=step * count, results=[loop.step.type]))
    body = Block([a.type for a in loop.body.args], names=[a.name for a in loop.body.args])
    inside = Builder(body, None, loop.loc)
    values: list[Value] = list(body.args[1:])
    for number in range(count):
        index = body.args[0]
        if number:
            ahead = inside.emit(ConstOp(value=step * number, results=[index.type]))
            index = inside.emit(AddOp(index, ahead))
        mapping = dict(zip(loop.body.args, [index, *values], strict=True))
        for op in loop.body:
            if not op.terminator:
                inside.insert(op.clone(mapping))
        values = [mapping.get(v, v) for v in loop.body.terminator.operands]
    inside.insert(YieldOp(values, loc=loop.loc))
    names = [r.name for r in loop.results]
    new = ForOp(
        loop.lb, middle, wide, loop.inits, regions=[body], loc=loop.loc, names=names, **loop.attrs
    )
    b.insert(new)
    loop.set_operands(middle, loop.ub, loop.step, new.results)
    loop.num_stages = 1  # a few iterations at most


def _end(b: Builder, loop: ForOp, step: int, count: int) -> Value:
    """Where the last whole group of iterations ends, computed in 64 bits."""

    def const(value: int) -> Value:
        return b.emit(ConstOp(value=value, results=[int64]))

    t = loop.lb.type
    lb, ub = [v if t is int64 else b.emit(CastOp(v, results=[int64])) for v in (loop.lb, loop.ub)]
    span = b.emit(MaxOp(b.emit(SubOp(ub, lb)), const(0)))
    groups = b.emit(DivOp(b.emit(AddOp(span, const(step - 1))), const(step * count)))
    end = b.emit(AddOp(lb, b.emit(MulOp(groups, const(step * count)))))
    return end if t is int64 else b.emit(CastOp(end, results=[t]))
