"""Knows the convolutions of the array library: which operands and results have channels, and what moving them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.graph.index import Expr
from tessera.graph.ir.ops import ExternOp
from tessera.graph.ir.types import Place, TensorType, product
from tessera.ir import Value

FORWARD, BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
RANK = 4  # of what a two-dimensional convolution reads and makes


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A two-dimensional convolution, or its gradients. `tensors`: the batches that it reads; `made`: those that it
    makes; `weight_grad`: the gradient of its weight, where it makes that."""

    op: ExternOp
    tensors: tuple[Value, ...]
    weight: Value
    made: tuple[Value, ...]
    weight_grad: Value | None
    groups: int
    transposed: bool

    @property
    def channels(self) -> tuple[int | Expr, int | Expr]:
        """How many channels a group reads, and how many it makes."""
        first, second = self.weight.type.shape[:2]
        return (first // self.groups, second) if self.transposed else (second, first // self.groups)

    @property
    def kind(self) -> str:
        """How it is counted: "grouped" where channels are in groups of several, which depthwise ones are not;
        "narrowing" where a window of several elements gives at most half as many channels as it reads; else "plain"."""
        read, made = self.channels
        if self.groups > 1:
            return "plain" if read == 1 else "grouped"
        if not isinstance(read, int) or not isinstance(made, int) or is_pointwise(self.weight.type):
            return "plain"
        return "narrowing" if 2 * made <= read else "plain"

    @property
    def work(self) -> int | Expr:
        """Multiplications of one product with the weight; the gradients are two."""
        out = self.tensors[0] if self.op.target == BACKWARD else self.made[0]
        counted = self.tensors[-1] if self.transposed else out
        window = product(self.weight.type.shape[1:])
        times = len(self.made) + (self.weight_grad is not None)
        return product([*counted.type.shape, window, times])


def is_pointwise(weight: TensorType) -> bool:
    """Whether a weight's window is one element: both orders of strides are the same memory then."""
    return all(n == 1 for n in weight.shape[2:])


def channels_last(shape: Sequence[int | Expr]) -> tuple[int | Expr, ...]:
    """Strides of a dense [N, C, H, W] whose channels follow one another in memory."""
    _, c, h, w = shape
    return product([h, w, c]), 1, product([w, c]), c


def lies_so(t: TensorType, strides: Sequence[int | Expr]) -> bool:
    """Whether a tensor lies in memory as these strides say: those of dimensions of one element say nothing."""
    return all(n == 1 or a == b for n, a, b in zip(t.shape, t.all_strides, strides, strict=True))


def is_channels_last(t: TensorType) -> bool:
    return t.rank == RANK and lies_so(t, channels_last(t.shape))


def convolution_of(op: object) -> Convolution | None:
    """What an extern is, if it is a two-dimensional convolution, of a known number of groups, or its gradients."""
    if not isinstance(op, ExternOp) or op.target not in (FORWARD, BACKWARD):
        return None
    backward = op.target == BACKWARD
    first = 3 if backward else 2
    places = [a for a in op.arguments[:first] if isinstance(a, Place)]
    given: list[Value] = [op.args[a.index] for a in places]
    if len(given) != first:
        return None
    *tensors, weight = given
    if weight.type.rank != RANK or any(v.type.rank != RANK for v in tensors):
        return None
    made, weight_grad = list(op.results), None
    if backward:
        wanted = op.arguments[10]
        results = iter(op.results)
        made = [next(results)] if wanted[0] else []
        weight_grad = next(results) if wanted[1] else None
    transposed, groups = op.arguments[first + 4], op.arguments[first + 6]
    if not isinstance(groups, int):
        return None
    return Convolution(
        op, tuple(tensors), weight, tuple(made), weight_grad, groups, bool(transposed)
    )
