"""Runs reductions of tiles without the masks that hold for all of their columns, or for all elements.

    columns < n: a branch asks once whether the tile's last column is there. If so, vectors are loaded as they are.

Vectors over columns are masked by what all rows have in common. Where a vector loop is long, it is split at the bound
as other loops are (loops.py); a short one is unrolled, and would test, or keep in registers, a mask for each vector.
A loop along the rows of a tile is split in each row, whose first vectors are masked nevertheless: there, a branch asks
for the last row, too. Before AVX-512 masked loads also keep a processor from fetching ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.analysis.provenance import reached
from tessera.backends.cpu.bounds import Prefix, first_end
from tessera.backends.cpu.fusion import masks_of
from tessera.backends.cpu.loops import Body, Nest, each
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.values import Coord
from tessera.ir import shape_of
from tessera.ir.applications import apply
from tessera.ops import LoadOp, ReduceOp


def column_masks(lo: Lowering, op: ReduceOp, plan: Nest) -> list[Prefix]:
    """Return the masks of a reduction's operands that hold up to some index along the last of the dimensions that are
    left, and depend on nothing else, in the shape of `plan`, which loops over these dimensions."""
    rest = [d for d in range(len(plan.shape) + 1) if d != op.axis]
    end = len(rest) - 1
    return [
        Prefix(p.mask, p.compare, tuple(None if d is None else end for d in p.dims))
        for p in _masks_along(lo, op, rest[-1])
    ]


def each_column(lo: Lowering, op: ReduceOp, plan: Nest, body: Body) -> None:
    """Emit the nest over the columns of a reduction, with and without masks."""
    masks = column_masks(lo, op, plan)
    if plan.vectors > plan.most or not masks or not apply("whole-tiles", op):
        each(lo, plan, body, masks)
        return
    _choose(
        lo,
        plan.shape,
        {len(plan.shape) - 1: masks},
        lambda: each(lo, plan, body),
        lambda: each(lo, plan, body, unroll=False),
    )


def whole_or_not(lo: Lowering, op: ReduceOp, body: Callable[[], None]) -> None:
    """Emit a reduction of rows without masks, for tiles that are there as a whole, and with them, if it loads under
    masks."""
    shape = shape_of(op.inputs[0].type)
    masks: dict[int, list[Prefix]] = {}
    if _loads_under_masks(lo, op):
        masks = {d: found for d in range(len(shape)) if (found := _masks_along(lo, op, d))}
    if not masks or not apply("whole-tiles", op):
        body()
        return
    _choose(lo, shape, masks, body, body)


def _choose(
    lo: Lowering,
    shape: Sequence[int],
    masks: dict[int, list[Prefix]],
    whole: Callable[[], None],
    other: Callable[[], None],
) -> None:
    """Emit `whole`, in which `masks` of each dimension of a tile are known to hold, and `other`."""
    em, holds = lo.em, "true"
    for d, found in masks.items():
        end = first_end(lo, d, shape[d], [Coord()] * len(shape), found)
        all_there = em.op(f"icmp sge i64 {end}, {shape[d]}")
        holds = lo.both(holds, all_there)

    def without_masks() -> None:
        saved = lo.assumed
        lo.assumed = saved | {p.mask for found in masks.values() for p in found}
        whole()
        lo.assumed = saved

    em.choose(holds, without_masks, other)


def _loads_under_masks(lo: Lowering, op: ReduceOp) -> bool:
    """Whether the loop of a reduction loads vectors under masks; masks of what was computed before cost little."""
    lazy = (v.op for v in reached(op.inputs, lo.sources) if lo.lazy(v))
    return any(isinstance(x, LoadOp) and x.mask is not None for x in lazy)


def _masks_along(lo: Lowering, op: ReduceOp, dim: int) -> list[Prefix]:
    """Return the masks of a reduction's operands that hold up to some index along `dim` and depend on nothing else."""
    shape = shape_of(op.inputs[0].type)
    plan = Nest(shape, tuple(d for d in range(len(shape)) if d != dim), (dim,), 1)
    return [p for p in masks_of(lo, op.inputs, plan) if not p.others(dim)]
