"""Replaces loop-carried tiles that are incremented uniformly by a tile from before the loop plus a carried scalar.

    for k (%p: tile<128x32x*fp32> = %p0)          for k (%s: i64 = 0)
      … load %p …                             →      %q = addptr %p0, splat(%s);  … load %q …
      yield addptr %p, splat(%d)                      yield %s + %d

So addresses keep their affine form and no tile of pointers is ever stored."""

from __future__ import annotations

from typing import Any

from tessera import ops
from tessera.dtypes import dtype, int64
from tessera.ir import Builder, Module, Op, TileType, Value, pass_
from tessera.ir.applications import apply
from tessera.passes.neutral.loops import const

_SAME = (ops.HintOp, ops.Rearrangement)
_MATH = (ops.AddOp, ops.SubOp, ops.MulOp, ops.CastOp)


@pass_("scalarise-inductions", optimization="scalar-inductions", counts=True)
def scalarise_inductions(module: Module) -> None:
    """Replace loop-carried tiles that are incremented uniformly by a scalar count.

    Takes: tile IR after `licm`, which shows what is invariant in a loop.
    Gives: `for` loops whose carried tiles have this form carry an int64 instead, of which each use computes the tile.
    Needs: the CPU, where a carried tile is an array in memory.
    Raises: nothing.
    Example: `pointers` of tests/filecheck/scalarise-inductions.tir
        for [%p] (%q: tile) { load %q; addptr; yield } → for [%zero] (%s: i64) { splat; addptr; load; add; yield }
    Compare: LLVM IndVarSimplify and LoopStrengthReduce, the other way round.
    """
    for op in list(module.walk()):
        if isinstance(op, ops.ForOp):
            _visit(op)


def _visit(loop: ops.ForOp) -> None:
    for arg in loop.carried:
        step = _step(loop, arg)
        if step is not None and apply("scalar-inductions", loop):
            _visit(_rewrite(loop, arg, step))  # the loop is a new one now
            return


def _step(loop: ops.ForOp, arg: Value) -> Value | None:
    """Return the uniform tile that is added to a carried tile each time; None if it changes otherwise."""
    if not isinstance(arg.type, TileType):
        return None
    update = loop.body.terminator.operands[arg.index - 1].op
    if isinstance(update, ops.AddPtrOp) and update.ptr is arg and _uniform(update.offset):
        return update.offset
    e = arg.type.elem
    if isinstance(update, ops.AddOp) and isinstance(e, dtype) and e.is_int() and e.bits > 1:
        for a, b in ((update.lhs, update.rhs), (update.rhs, update.lhs)):
            if a is arg and _uniform(b):
                return b
    return None


def _uniform(v: Value) -> bool:
    """Whether all elements of a tile equal one number that scalar ops can compute."""
    op = v.op
    if not isinstance(v.type, TileType) or isinstance(op, ops.SplatOp):
        return True
    if isinstance(op, ops.ConstOp):
        return True
    return isinstance(op, (*_SAME, *_MATH)) and all(_uniform(x) for x in op.operands)


def _scalar(b: Builder, v: Value) -> Value:
    """Return that number."""
    if not isinstance(v.type, TileType):
        return v
    op = v.op
    assert op is not None
    if isinstance(op, ops.SplatOp):
        return op.x
    if isinstance(op, ops.ConstOp):
        return const(b, op.value, v.type.elem)
    if isinstance(op, _SAME):
        return _scalar(b, op.operands[0])
    args = [_scalar(b, x) for x in op.operands]
    return b.emit(type(op)(*args, results=[v.type.elem], **op.attrs))


def _rewrite(loop: ops.ForOp, arg: Value, step: Value) -> ops.ForOp:
    """Carry the sum of the steps instead of the tile; return the new loop."""
    index = arg.index
    tile: Any = arg.type
    update = loop.body.terminator.operands[index - 1].op
    assert update is not None
    pointer = isinstance(update, ops.AddPtrOp)
    before = Builder.before_op(loop)
    count_type = int64 if pointer else tile.elem
    zero = const(before, 0, count_type)
    start, result = loop.inits[index - 1], loop.results[index - 1]
    # Inside: start + carried sum, in place of the carried tile.
    inside = Builder.at_start(loop.body)
    total = loop.body.add_arg(count_type, f"{arg.name}_sum" if arg.name else "")
    moved = _moved(inside, start, total, tile, pointer)
    arg.replace_all_uses(moved)
    end = Builder.before_op(update)
    amount = _scalar(end, step)
    if pointer and amount.type != int64:
        amount = end.emit(ops.CastOp(amount, results=[int64]))
    following = end.emit(ops.AddOp(total, amount))
    inits = [*loop.inits, zero]
    yielded = [*loop.body.terminator.operands, following]
    return _replace(loop, inits, yielded, index, result, start, tile, pointer)


def _moved(b: Builder, start: Value, total: Value, tile: Any, pointer: bool) -> Value:
    amount = b.emit(ops.SplatOp(total, results=[TileType(tile.shape, total.type)]))
    return b.emit((ops.AddPtrOp if pointer else ops.AddOp)(start, amount))


def _replace(
    loop: ops.ForOp,
    inits: list[Value],
    yielded: list[Value],
    index: int,
    result: Value,
    start: Value,
    tile: object,
    pointer: bool,
) -> ops.ForOp:
    """Return a new loop without the carried tile; its result is computed after the loop."""
    terminator = loop.body.terminator
    terminator.set_operands(yielded[: index - 1] + yielded[index:])
    loop.body.erase_arg(index)
    kept = inits[: index - 1] + inits[index:]
    lb, ub, step = loop.lb, loop.ub, loop.step
    loop.drop_operands()
    new = ops.ForOp(
        lb,
        ub,
        step,
        kept,
        results=[v.type for v in kept],
        regions=[loop.body],
        loc=loop.loc,
        **loop.attrs,
    )
    old: Op = loop
    Builder.before_op(old).insert(new)
    results = list(new.results)
    after = Builder.after_op(new)
    others = [*loop.results[: index - 1], *loop.results[index:]]
    for a, b in zip(others, results, strict=False):
        a.replace_all_uses(b)
    if result.uses:
        result.replace_all_uses(_moved(after, start, results[-1], tile, pointer))
    loop.regions = []
    loop.operands = []
    loop.detach()
    return new
