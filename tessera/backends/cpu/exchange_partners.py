"""Finds the other element of pairs where it lies, instead of by the exclusive or of both.

    y = x ^ broadcast(reduce(x, axis, xor))     →     y = gather(x, 1 - index, axis)

Sorting networks and `flip` of the language are written in the first way, along an axis of two elements, which GPUs do
by shuffles. Here the reduction would be a loop of its own, and its result an array in memory; the gather reads what the
loop of the pair reads anyway.
"""

from __future__ import annotations

from tessera import ops
from tessera.backends.cpu.narrow_accumulators import combines_by
from tessera.dtypes import int32
from tessera.ir import Builder, Module, TileType, Value, pass_, shape_of
from tessera.ir.applications import apply


@pass_("exchange-partners", optimization="exchange-partners", counts=True)
def exchange_partners(module: Module) -> None:
    """Gather the other element of each pair.

    Takes: tile IR.
    Gives: `gather` in place of `xor` with a reduction by `xor` along an axis of two elements.
    Needs: the CPU, where a tile that is read at two places is an array in memory.
    Raises: nothing.
    Example: `pairs` of tests/filecheck/exchange-partners.tir
        reduce { xor; yield }; expand_dims; broadcast; xor → arange; reshape; const; sub; broadcast; gather
    Compare: shuffles by an exclusive or of lanes in Triton's bitonic sort.
    """
    for op in list(module.walk()):
        if isinstance(op, ops.XorOp) and op.parent is not None:
            for x, other in (op.operands, op.operands[::-1]):
                axis = _axis_of_pairs(x, other)
                if axis is not None and apply("exchange-partners", op):
                    index = _other_index(Builder.before_op(op), shape_of(x.type), axis)
                    gather = ops.GatherOp(x, index, axis=axis, loc=op.loc)
                    partner = Builder.before_op(op).emit(gather)
                    op.result.replace_all_uses(partner)
                    op.erase()
                    break


def _axis_of_pairs(x: Value, other: Value) -> int | None:
    """Return the axis of two elements along which `other` is the exclusive or of `x`, repeated; None if it is not."""
    spread = other.op
    wide = spread.x.op if isinstance(spread, ops.BroadcastOp) else None
    reduction = wide.x.op if isinstance(wide, ops.ExpandDimsOp) else None
    if not isinstance(reduction, ops.ReduceOp) or not isinstance(wide, ops.ExpandDimsOp):
        return None
    axis: int = reduction.axis
    pairs = list(reduction.inputs) == [x] and wide.axis == axis and shape_of(x.type)[axis] == 2
    return axis if pairs and combines_by(reduction, ops.XorOp) else None


def _other_index(b: Builder, shape: tuple[int, ...], axis: int) -> Value:
    thin = TileType(tuple(2 if d == axis else 1 for d in range(len(shape))), int32)
    index = b.emit(ops.ReshapeOp(b.emit(ops.ArangeOp(start=0, end=2)), results=[thin]))
    other = b.emit(ops.SubOp(b.emit(ops.ConstOp(value=1, results=[thin])), index))
    return b.emit(ops.BroadcastOp(other, results=[TileType(shape, int32)]))


def takes_partners(op: ops.GatherOp) -> bool:
    """Whether a gather is one that this pass has made, of the other one of two elements."""
    spread = op.index.op
    other = spread.x.op if isinstance(spread, ops.BroadcastOp) else None
    if (
        not isinstance(other, ops.SubOp)
        or not isinstance(other.lhs.op, ops.ConstOp)
        or other.lhs.op.value != 1
    ):
        return False
    index = other.rhs.op
    pair = index.x.op if isinstance(index, ops.ReshapeOp) else None
    thin = shape_of(other.result.type)
    along = thin[op.axis] == 2 and sum(n != 1 for n in thin) == 1
    return along and isinstance(pair, ops.ArangeOp) and (pair.start, pair.end) == (0, 2)
