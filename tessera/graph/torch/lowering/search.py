"""Lowers searches in sorted sequences, by bisection, and operations that place elements by running counts."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.dtypes import int64
from tessera.graph.index import Expr
from tessera.graph.ir.scalars import Scalar, is_nan, where
from tessera.graph.torch.lowering.base import Lowering, Tensor, is_tensor, rule
from tessera.graph.torch.lowering.pointwise import AS_GIVEN, cast
from tessera.graph.torch.lowering.promotion import computed_in
from tessera.graph.torch.types import Size

MOST_STEPS = 32  # of a bisection whose length is symbolic: 2**31 elements at most


def _bisected(low: Lowering, count: Size, behind: Callable[[Scalar], Scalar]) -> Scalar:
    """The first index for which `behind` holds, of a sorted sequence; `count` if there is none."""
    steps = count.bit_length() if isinstance(count, int) else MOST_STEPS
    first, last = low.const(0, int64), low.position(count)
    for _ in range(steps):
        open_ = first < last
        middle = (first + last) >> 1
        found = behind(where(open_, middle, 0)) & open_
        first = where(found | ~open_, first, middle + 1)
        last = where(found, middle, last)
    return first


def _place(
    low: Lowering, value: Scalar, count: Size, boundary: Callable[[Scalar], Scalar], right: bool
) -> Scalar:
    """Where a value belongs; a NaN belongs behind all numbers."""

    def behind(index: Scalar) -> Scalar:
        edge = boundary(index)
        if right:
            return (
                value < edge
                if not edge.type.is_floating()
                else (value < edge) | (is_nan(edge) & ~is_nan(value))
            )
        return (value <= edge) | is_nan(edge) if edge.type.is_floating() else value <= edge

    return _bisected(low, count, behind)


@rule("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    low: Lowering, x: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return searchsorted(low, boundaries, x, out_int32=out_int32, right=right)


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    low: Lowering, sequence: Tensor, x: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    right = right or side == "right"
    inside = computed_in(AS_GIVEN, [sequence, x])
    count = sequence.shape[-1] if sequence.rank else 1
    if count == 0:
        return low.map(lambda i: low.const(0, low.elem))

    def body(i: list[Expr]) -> Scalar:
        row = i[:-1] if sequence.rank > 1 else []
        value = cast(low.load(x, i), inside) if is_tensor(x) else low.const(x, inside)

        def boundary(index: Scalar) -> Scalar:
            at = low.computed(index)
            if sorter is not None:
                at = low.computed(low.load(sorter, [*row, at]))
            return cast(low.load(sequence, [*row, at] if sequence.rank else []), inside)

        return _place(low, value, count, boundary, right).to(low.elem)

    return low.map(body)
