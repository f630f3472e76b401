"""Relates the layouts of an op's operands and results, and gives the layouts that ops need by themselves."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tessera import ops
from tessera.ir import Op, SharedType, Value, shape_of
from tessera.layout import LinearLayout, blocked, default_blocked
from tessera.ops.arith import Elementwise

LEAVES = (ops.ConstOp, ops.ArangeOp, ops.SplatOp)
VIEWS = (ops.ExpandDimsOp, ops.TransOp, ops.ReshapeOp, ops.JoinOp, ops.SplitOp)
# Of elements that several threads hold, each would compute these: an exchange takes less.
EXPENSIVE = (ops.FloatUnary, ops.DivOp, ops.PowOp, ops.RemOp)


def is_pointwise(op: Op) -> bool:
    """Whether the operands' layout follows from the result's, and recomputing the op is harmless."""
    return isinstance(op, (Elementwise, ops.BroadcastOp, *LEAVES, *VIEWS))


def operand_layout(op: Op, layout: LinearLayout) -> LinearLayout:
    """Return the layout of a pointwise op's tile operands for a result in `layout` (which `producible` returned)."""
    if isinstance(op, ops.ExpandDimsOp):
        return layout.drop_dim(op.axis)
    if isinstance(op, ops.BroadcastOp):
        return layout.restrict(shape_of(op.x.type))
    if isinstance(op, ops.TransOp):
        inverse = [0] * len(op.order)
        for i, d in enumerate(op.order):
            inverse[d] = i
        return layout.trans(inverse)
    if isinstance(op, ops.ReshapeOp):
        return layout.reshape(shape_of(op.x.type))
    if isinstance(op, ops.JoinOp):
        return layout.split()
    if isinstance(op, ops.SplitOp):
        return layout.join()
    return layout


def result_layout(op: Op, layout: LinearLayout) -> LinearLayout:
    """Return the anchor of the result if the operand's is `layout`. The op needs the operand in
    `operand_layout(op, result_layout(op, layout))`, which is `layout` itself except for splits."""
    if isinstance(op, ops.ExpandDimsOp):
        return layout.expand_dim(op.axis)
    if isinstance(op, ops.TransOp):
        return layout.trans(op.order)
    if isinstance(op, ops.ReshapeOp):
        return layout.reshape(shape_of(op.result.type))
    if isinstance(op, ops.JoinOp):
        return layout.join()
    if isinstance(op, ops.SplitOp):
        return layout.split() if layout.split_bit() == 0 else _spread_halves(layout)
    return layout


def _spread_halves(layout: LinearLayout) -> LinearLayout:
    """Return the layout of the halves of a tile whose last dimension is not in the lowest register bit.

    Lanes and warps that told the halves apart take over register bits. Without that they would hold copies, twice as
    many after each of a row of splits, and in the end every thread all of the tile."""
    halves = _halves(layout)
    bases = {name: list(halves.bases(name)) for name in ("register", "lane", "warp")}
    for name in ("lane", "warp"):
        for i, before in enumerate(layout.bases(name)):
            if any(before) and not any(bases[name][i]) and bases["register"]:
                bases[name][i] = bases["register"].pop()
    return LinearLayout(halves.shape, bases)


def _halves(layout: LinearLayout) -> LinearLayout:
    return layout.drop_dim(layout.rank - 1).unique_registers()


def producible(op: Op, layout: LinearLayout) -> LinearLayout:
    """Return the layout nearest to `layout` in which the op can produce its result: one without copies among a
    thread's registers, and for a join one whose lowest register bit chooses the operand. The conversion to `layout`
    stays in registers."""
    layout = layout.unique_registers()
    if isinstance(op, ops.JoinOp) and layout.split_bit() != 0:
        return _halves(layout).join()
    return layout


def default_layout(shape: tuple[int, ...], num_warps: int, lanes: int) -> LinearLayout:
    """Return the layout where nothing needs another: last dimension fastest, one element at a time."""
    return default_blocked(shape, num_warps, 1, None, lanes)


def written_layout(
    shared: SharedType, num_warps: int, lanes: int, vector_bytes: int
) -> LinearLayout:
    """Return a layout for a tile that is computed for a buffer: the default one, or, where the buffer's rows run along
    the first of two dimensions, one whose threads write vectors along these. Lanes and warps hold different rows."""
    shape = shared.shape
    if len(shape) != 2 or not shared.layout.bases("offset")[0][0]:
        return default_layout(shape, num_warps, lanes)
    along, rows = shape
    vector = min(
        vector_bytes // shared.elem.storage_bytes, along, along * rows // (lanes * num_warps)
    )
    in_lanes = min(lanes, rows)
    in_warps = min(num_warps, rows // in_lanes)
    held = (lanes // in_lanes, in_lanes), (num_warps // in_warps, in_warps)
    return blocked(shape, (max(1, vector), 1), *held, (1, 0))


# --- combinations along an axis -------------------------------------------------------------------------
def reduce_input(layout: LinearLayout, axis: int, num_warps: int, lanes: int) -> LinearLayout:
    """Return `layout` if a reduction along `axis` can work on it, else the default one."""
    return (
        layout if layout.is_axis_separable(axis) else default_layout(layout.shape, num_warps, lanes)
    )


def repeated(
    narrow: LinearLayout, shape: tuple[int, ...], axis: int, num_warps: int, lanes: int
) -> LinearLayout:
    """Return a layout for a tile that repeats one of layout `narrow`: lanes and warps hold the dimensions of that one
    first, and `axis`, which is reduced, last."""
    own = [d for d in reversed(range(len(shape))) if narrow.shape[d] > 1 and d != axis]
    order = (*own, *[d for d in reversed(range(len(shape))) if d not in own])
    vec = narrow.contiguity(order) if own else 1
    return default_blocked(shape, num_warps, vec, order, lanes)


def reduce_result(layout: LinearLayout, axis: int) -> LinearLayout:
    """Return what is left of the input's layout after `axis` is reduced."""
    return layout.drop_dim(axis).unique_registers()


def is_scannable(layout: LinearLayout, axis: int) -> bool:
    """Whether coordinates along `axis` rise with registers, lanes, then warps, and each bit moves along one axis
    only."""
    if not layout.is_axis_separable(axis) or layout.unique_registers() != layout:
        return False
    along = [
        c
        for name in ("register", "lane", "warp")
        for c in layout.columns(name)
        if _moves(layout, c, axis)
    ]
    return along == sorted(along) and len(set(along)) == len(along)


def _moves(layout: LinearLayout, column: int, axis: int) -> bool:
    below = prod(layout.shape[axis + 1 :])
    return bool(column // below % layout.shape[axis])


@lru_cache(maxsize=256)
def scan_layout(shape: tuple[int, ...], axis: int, num_warps: int, lanes: int) -> LinearLayout:
    """Return a layout with neighbours along `axis` in a thread, then lanes, then warps, as a scan goes through them."""
    rank = len(shape)
    others = [d for d in reversed(range(rank)) if d != axis]
    per_thread, lane, warp = [1] * rank, [1] * rank, [1] * rank
    per_thread[axis] = min(shape[axis], max(1, prod(shape) // (lanes * num_warps)))
    lane[axis] = min(lanes, shape[axis] // per_thread[axis])
    left = lanes // lane[axis]
    for d in others:
        lane[d] = min(left, shape[d])
        left //= lane[d]
    lane[others[-1] if others else axis] *= left
    warp[axis] = min(num_warps, max(1, shape[axis] // (per_thread[axis] * lane[axis])))
    warp[others[0] if others else axis] *= num_warps // warp[axis]
    per_thread[axis] = max(per_thread[axis], shape[axis] // (lane[axis] * warp[axis]))
    return blocked(shape, tuple(per_thread), tuple(lane), tuple(warp), (axis, *others))


# --- dots without a matrix instruction --------------------------------------------------------------------
@lru_cache(maxsize=256)
def fma_acc(shape: tuple[int, ...], num_warps: int, lanes: int) -> LinearLayout:
    """Return the accumulator layout of an outer-product loop: square blocks per thread reuse operands most. Of eight
    elements four stand side by side: one access reads them of B, and lanes beside each other read 128 bytes."""
    rows, cols = len(shape) - 2, len(shape) - 1
    each = prod(shape) // (lanes * num_warps)
    high, wide = next(((h, w) for h, w in ((4, 4), (2, 4), (2, 2)) if each >= h * w), (1, 1))
    per_thread, lane, warp = [1] * len(shape), [1] * len(shape), [1] * len(shape)
    per_thread[rows], per_thread[cols] = min(high, shape[rows]), min(wide, shape[cols])
    lane[cols] = min(8, lanes, shape[cols] // per_thread[cols])
    lane[rows] = min(lanes // lane[cols], shape[rows] // per_thread[rows])
    lane[0 if len(shape) > 2 else cols] *= lanes // (lane[cols] * lane[rows])
    warp[rows] = min(num_warps, max(1, shape[rows] // (per_thread[rows] * lane[rows])))
    warp[0 if len(shape) > 2 else cols] *= num_warps // warp[rows]
    return blocked(
        shape, tuple(per_thread), tuple(lane), tuple(warp), (cols, rows, *reversed(range(rows)))
    )


@lru_cache(maxsize=256)
def fma_operand(acc: LinearLayout, depth: int, index: int) -> LinearLayout:
    """Return the layout of operand 0 (A) or 1 (B) for accumulators in `acc`. Each thread has all the rows or columns it
    multiplies, with the bits of K in its lowest register bits."""
    kept = acc.drop_dim(acc.rank - 1 if index == 0 else acc.rank - 2).unique_registers()
    at = acc.rank - 1 if index == 0 else acc.rank - 2
    shape = (*kept.shape[:at], depth, *kept.shape[at:])
    bases = {
        n: [(*b[:at], 0, *b[at:]) for b in kept.bases(n)] for n in ("register", "lane", "warp")
    }
    along = [
        tuple(1 << i if d == at else 0 for d in range(acc.rank))
        for i in range(depth.bit_length() - 1)
    ]
    bases["register"] = along + bases["register"]
    return LinearLayout(shape, bases)


def tile_operands(op: Op) -> list[Value]:
    """Return the operands that are tiles."""
    return [v for v in op.operands if shape_of(v.type)]
