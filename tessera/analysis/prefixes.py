"""Finds in which runs of a mask only the last elements are false: `column + arange < extent` stops at a row's end.

A copy of a whole vector may then read its first bytes alone, and a copy of a run need not be taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tessera.analysis.axis import TOP, AxisAnalysis
from tessera.ir import Value, shape_of
from tessera.ops import arith, gpu, tile


def prefix_width(axis: AxisAnalysis, mask: Value | None, dim: int) -> int:
    """Return the length of the aligned runs along `dim` whose true elements come before the false ones; TOP without a
    mask.

    Example: 8 for `(row < rows) & (8 * k + arange(0, 8) < columns)` of an unknown number of columns
    """
    if mask is None:
        return TOP
    op, found = mask.op, axis.mask_width(mask, dim)
    if isinstance(op, arith.AndOp):
        return max(found, gcd(prefix_width(axis, op.lhs, dim), prefix_width(axis, op.rhs, dim)))
    if isinstance(op, arith.CmpOp):
        return max(found, _falling(axis, op, dim))
    if isinstance(op, gpu.ConvertLayoutOp):
        return max(found, prefix_width(axis, op.x, dim))
    if isinstance(op, tile.BroadcastOp) and shape_of(op.x.type)[dim] > 1:
        return max(found, prefix_width(axis, op.x, dim))
    if isinstance(op, tile.ExpandDimsOp) and dim != op.axis:
        return max(found, prefix_width(axis, op.x, dim - (dim > op.axis)))
    if isinstance(op, tile.TransOp):
        return max(found, prefix_width(axis, op.x, op.order[dim]))
    return found


def _falling(axis: AxisAnalysis, op: arith.CmpOp, dim: int) -> int:
    """Return the length of the runs in which a number that counts up is compared with a bound above. A run that begins
    at a multiple of its length does not wrap around."""
    low, high = op.lhs, op.rhs
    if op.predicate in ("gt", "ge"):
        low, high = high, low
    elif op.predicate not in ("lt", "le"):
        return 1
    counted, bound = axis.facts(low), axis.facts(high)
    return gcd(counted.contiguity[dim], counted.divisibility[dim], bound.constancy[dim])


def conjuncts(mask: Value) -> Iterator[Value]:
    """Yield the masks of which this one is the conjunction."""
    if isinstance(mask.op, arith.AndOp):
        yield from conjuncts(mask.op.lhs)
        yield from conjuncts(mask.op.rhs)
    else:
        yield mask
