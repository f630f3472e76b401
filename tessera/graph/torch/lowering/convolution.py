"""Lowers convolutions of single elements, as those of squeeze-and-excitation are: products of two matrices.

convolution [8, 576, 1, 1] by [144, 576, 1, 1]    is [8, 576] @ [576, 144]
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.graph.index import IndexMap, dim, expr
from tessera.graph.torch.lowering.base import Lowering, Tensor, rule, whole
from tessera.graph.torch.lowering.matmul import all_known, multiplied
from tessera.graph.torch.lowering.pointwise import accumulator_of, cast
from tessera.graph.torch.types import NotLowered
from tessera.ir.applications import apply


@rule("convolution")
def convolution(
    low: Lowering, x: Tensor, w: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Tensor:  # fmt: skip
    """On CPUs alone: on an H200 cuBLAS took about as long for mobilenet's in fp32 as cuDNN, or longer."""
    points = all(n == 1 for n in (*x.shape[2:], *w.shape[2:])) and not any(padding)
    if not points or transposed or groups != 1 or x.rank < 3 or x.rank != w.rank:
        raise NotLowered("torch's convolutions are calls of its library")
    if x.device != "cpu" or low.products == "extern" or not all_known([*x.shape, *w.shape]):
        raise NotLowered("torch's convolution is taken to be as fast")
    if not apply("graph-point-convolutions", what="product"):
        raise NotLowered("the options say so")
    p = whole(multiplied(low, _matrix(x, (0, 1)), _matrix(w, (1, 0)), low.elem))
    if bias is None:
        return low.map(lambda i: low.load(p, i[:2]))
    inside = accumulator_of(low.elem)
    return low.map(
        lambda i: (cast(low.load(p, i[:2]), inside) + cast(low.load(bias, i[1:2]), inside)).rounded(
            low.elem
        )
    )


def _matrix(x: Tensor, order: tuple[int, int]) -> Tensor:
    """The view of a tensor of single elements as a matrix, whose dimensions are the first two in this order."""
    zeros = [expr(0)] * (x.rank - 2)
    strides = x.strides or whole(x.value).strides
    assert strides is not None
    places = [dim(order.index(k)) for k in (0, 1)]
    view = x.through(IndexMap(2, [*places, *zeros]), [x.shape[k] for k in order])
    return replace(view, strides=tuple(strides[k] for k in order))
