"""Replaces carried tiles that are only reduced after the loop by the result of the reduction, updated in each
iteration.

    acc = zeros[1024]                               s = 0
    for …: acc = acc + x                    →       for …: s = s + reduce(x)
    s = reduce(acc)                                 (no tile is carried)

The reduction may combine in any order, so this changes only the order of a sum, and a loop over columns writes no
accumulators to memory.
"""

from __future__ import annotations

from tessera.ir import Builder, Module, Op, TileType, Value, elem_of, pass_
from tessera.ir.applications import apply
from tessera.ops import AddOp, Binary, ConstOp, ForOp, MaxOp, MinOp, ReduceOp
from tessera.passes.neutral.loops import const


@pass_("narrow-accumulators", optimization="narrow-accumulators", counts=True)
def narrow_accumulators(module: Module) -> None:
    """Reduce in each iteration what is only reduced after the loop.

    Takes: tile IR. The carried tile starts as the neutral element and is used by one `reduce` of the same operation.
    Gives: loops that carry the result of the reduction. Sums of floats are added in another order.
    Needs: the CPU, where a carried tile is an array in memory.
    Raises: nothing.
    Example: `sum` of tests/filecheck/narrow-accumulators.tir
        for (%a: tile) { add; yield }; reduce; store → for (%a: fp32) { reduce { add; yield }; add; yield }; store
    Compare: in-loop reductions of LLVM LoopVectorize (`-prefer-inloop-reductions`).
    """
    for op in list(module.walk()):
        if isinstance(op, ForOp) and op.parent is not None:
            for result in list(op.results):
                reduction = _reduction(op, result)
                if reduction is not None and apply("narrow-accumulators", op):
                    _narrow(op, result.index, reduction)


def _reduction(loop: ForOp, result: Value) -> ReduceOp | None:
    """Return the reduction that alone uses a loop's result, if it combines as the loop does."""
    if (
        not isinstance(result.type, TileType)
        or len(result.uses) != 1
        or elem_of(result.type).bits < 32
    ):
        return None
    ((user, _),) = result.uses
    arg = loop.carried[result.index]
    update = loop.body.terminator.operands[result.index].op
    if (
        not isinstance(user, ReduceOp)
        or len(user.inputs) != 1
        or not isinstance(update, (AddOp, MaxOp, MinOp))
    ):
        return None
    if len(arg.uses) != 1 or arg not in update.operands or len(update.result.uses) != 1:
        return None
    return (
        user
        if _combines_alike(user, update) and _neutral(loop.inits[result.index], update)
        else None
    )


def _combines_alike(reduction: ReduceOp, update: Binary) -> bool:
    first = reduction.combine.first
    return (
        combines_by(reduction, type(update)) and first is not None and first.attrs == update.attrs
    )


def combines_by(reduction: ReduceOp, kind: type[Op]) -> bool:
    """Whether the region is just one operation, of class `kind`, on its two arguments."""
    first = reduction.combine.first
    end = reduction.combine.terminator
    return (
        first is not None
        and type(first) is kind
        and set(first.operands) == set(reduction.combine.args)
        and list(end.operands) == first.results
    )


def _neutral(init: Value, update: Op) -> bool:
    """Whether combining several copies of the initial element yields that element."""
    return isinstance(init.op, ConstOp) and (not isinstance(update, AddOp) or not init.op.value)


def _narrow(loop: ForOp, place: int, reduction: ReduceOp) -> None:
    update = loop.body.terminator.operands[place].op
    assert update is not None
    arg, t = loop.carried[place], reduction.results[0].type
    (x,) = [v for v in update.operands if v is not arg]
    inside = Builder.before_op(update)
    part = inside.emit(
        ReduceOp([x], axis=reduction.axis, regions=[reduction.combine.clone({})], loc=reduction.loc)
    )
    arg.type = t
    total = inside.emit(type(update)(arg, part, **update.attrs))
    loop.body.terminator.set_operand(place, total)
    update.erase()
    before = Builder.before_op(loop)
    init = loop.inits[place].op
    assert isinstance(init, ConstOp)
    loop.set_operand(3 + place, const(before, init.value, t))
    result = loop.results[place]
    result.type = t
    reduction.results[0].replace_all_uses(result)
    reduction.erase()
