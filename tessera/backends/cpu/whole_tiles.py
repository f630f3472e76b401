"""Runs reductions of columns without the masks that hold for all columns of a tile.

    columns < n: a branch asks once whether the tile's last column is there. If so, vectors are loaded as they are.

Vectors over columns are masked by what all rows have in common. Where a vector loop is long, it is split at the bound
as other loops are (loops.py); a short one is unrolled, and would test, or keep in registers, a mask for each vector.
Before AVX-512 masked loads also keep a processor from fetching ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.cpu.fusion import masks_of
from tessera.backends.cpu.loops import Body, Nest, Prefix, each, first_end
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.values import Coord
from tessera.ir import shape_of
from tessera.ir.applications import apply
from tessera.ops import ReduceOp


def column_masks(lo: Lowering, op: ReduceOp, plan: Nest) -> list[Prefix]:
    """Return the masks of a reduction's operands that hold up to some index along the last of the dimensions that are
    left, and depend on nothing else, in the shape of `plan`, which loops over these dimensions."""
    shape = shape_of(op.inputs[0].type)
    rest = [d for d in range(len(shape)) if d != op.axis]
    last = rest[-1]
    whole = Nest(shape, tuple(d for d in range(len(shape)) if d != last), (last,), plan.lanes)
    masks = [p for p in masks_of(lo, op.inputs, whole) if not p.others(last)]
    end = len(rest) - 1
    return [
        Prefix(p.mask, p.compare, tuple(None if d is None else end for d in p.dims)) for p in masks
    ]


def each_column(lo: Lowering, op: ReduceOp, plan: Nest, body: Body) -> None:
    """Emit the nest over the columns of a reduction, with and without masks."""
    masks = column_masks(lo, op, plan)
    if plan.vectors > plan.most or not masks or not apply("whole-tiles", op):
        each(lo, plan, body, masks)
        return
    coords: Sequence[Coord] = [Coord()] * len(plan.shape)
    end = first_end(lo, len(plan.shape) - 1, plan.shape[-1], coords, masks)
    whole = lo.em.op(f"icmp sge i64 {end}, {plan.shape[-1]}")

    def without_masks() -> None:
        saved, lo.assumed = lo.assumed, lo.assumed | {p.mask for p in masks}
        each(lo, plan, body)
        lo.assumed = saved

    lo.em.choose(whole, without_masks, lambda: each(lo, plan, body, unroll=False))
