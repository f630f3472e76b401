"""Lowers operations that make tensors or lay them out anew: fills, ranges, concatenation, padding, windows."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tessera.dtypes import dtype, float64
from tessera.graph.index import Expr, expr
from tessera.graph.ir.scalars import Scalar, where
from tessera.graph.torch.lowering.base import Float, Lowering, Tensor, rule
from tessera.graph.torch.lowering.pointwise import cast, operand
from tessera.graph.torch.types import NotLowered, element_of, sizes_of, torch_type


@rule("full", "full_like", "new_full", "fill.Scalar")
def full(low: Lowering, shape: Any, value: Any, **_: Any) -> Tensor:
    elem = low.elem
    if isinstance(value, (Expr, Float)):
        return low.map(lambda i: operand(low, value, i, elem))
    if isinstance(value, (complex, Tensor)):
        raise NotLowered("a value that is no number")
    return low.map(lambda i: low.const(value, elem))


@rule("scalar_tensor")
def scalar_tensor(low: Lowering, value: Any, **_: Any) -> Tensor:
    return full(low, [], value)


@rule(
    "zeros", "zeros_like", "new_zeros", "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
    "new_empty_strided", "_new_zeros_with_same_feature_meta",
)  # fmt: skip
def zeros(low: Lowering, *_: Any, **__: Any) -> Tensor:
    """Zeros, also where torch leaves open what the tensor holds: what is written next replaces the loop."""
    return full(low, [], 0)


@rule("ones", "ones_like", "new_ones")
def ones(low: Lowering, *_: Any, **__: Any) -> Tensor:
    return full(low, [], 1)


def nothing(low: Lowering, *_: Any, **__: Any) -> Any:
    """Results that have no elements, whatever the operation."""
    if not isinstance(low.out, (list, tuple)):
        return full(low, [], 0)
    return [low.loop(sizes_of(o.shape), partial(_zero, low, o), o) for o in low.out]


def _zero(low: Lowering, fake: Any, _: list[Expr]) -> Scalar:
    return low.const(0, low.elem_of(fake))


@rule("arange.start_step")
def arange(low: Lowering, start: Any, end: Any, step: Any = 1, **_: Any) -> Tensor:
    elem = low.elem
    if not elem.is_floating():  # as eager, which cuts off the fractions of both before it counts
        start, step = (n if isinstance(n, (int, Expr)) else int(n) for n in (start, step))
        return low.map(lambda i: low.position(i[0] * step + start).to(elem))
    if any(isinstance(n, Expr) for n in (start, step)):
        raise NotLowered("a symbolic range of floats")
    inside = float64
    return low.map(lambda i: (low.position(i[0]).to(inside) * step + start).to(elem))


@rule("iota")
def iota(low: Lowering, length: Any, *, start: Any, step: Any, **_: Any) -> Tensor:
    return arange(low, start, None, step)


@rule("eye", "eye.m")
def eye(low: Lowering, *_: Any, **__: Any) -> Tensor:
    return low.map(lambda i: low.position(i[0]).eq(low.position(i[1])).to(low.elem))


@rule("cat")
def cat(low: Lowering, tensors: Sequence[Tensor], at: int = 0) -> Tensor:
    elem, shape = low.elem, low.shape
    parts = [x for x in tensors if not (x.rank == 1 and x.shape[0] == 0 and len(shape) != 1)]
    at %= len(shape)
    for x in parts:
        element_of(torch_type(x.elem))

    def body(i: list[Expr]) -> Scalar:
        start, found = expr(0), low.const(0, elem)
        for n, x in enumerate(parts):
            place = [j - start if k == at else j for k, j in enumerate(i)]
            inside = low.within(place[at], x.shape[at])
            part = cast(low.load(x, place, inside), elem)
            found = part if n == 0 or inside is None else where(inside, part, found)
            start = start + x.shape[at]
        return found

    return low.map(body)


@rule("stack")
def stack(low: Lowering, tensors: Sequence[Tensor], at: int = 0) -> Tensor:
    at %= len(low.shape)

    return low.map(lambda i: one_of(low, tensors, at, i, low.elem))


def one_of(low: Lowering, tensors: Sequence[Tensor], at: int, i: list[Expr], elem: dtype) -> Scalar:
    """The element of the tensor whose number is the coordinate `at`."""
    place, along = [*i[:at], *i[at + 1 :]], low.position(i[at])
    found = cast(low.load(tensors[-1], place), elem)
    for n, x in reversed(list(enumerate(tensors[:-1]))):
        found = where(along.eq(n), cast(low.load(x, place), elem), found)
    return found


@rule("constant_pad_nd")
def constant_pad(low: Lowering, x: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    """`pad`: (before, after) of the last dimension, then of the one before it, and so on."""
    before = [expr(0)] * x.rank
    for n in range(len(pad) // 2):
        before[x.rank - 1 - n] = expr(pad[2 * n])

    def body(i: list[Expr]) -> Scalar:
        place = [j - b for j, b in zip(i, before, strict=True)]
        inside = low.all_within(place, x.shape)
        return low.load(x, place, inside, None if inside is None else value)

    return low.map(body)


@rule("flip")
def flip(low: Lowering, x: Tensor, dims: Sequence[int]) -> Tensor:
    flipped = {d % x.rank for d in dims} if x.rank else set()
    sizes = x.shape
    return low.map(
        lambda i: low.load(
            x, [expr(sizes[k]) - 1 - j if k in flipped else j for k, j in enumerate(i)]
        )
    )


@rule("roll")
def roll(low: Lowering, x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    shifts = [shifts] if isinstance(shifts, (int, Expr)) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims and x.rank != 1:
        raise NotLowered("a roll of the flattened tensor")
    by = {d % x.rank: s for d, s in zip(dims or [0], shifts, strict=True)}
    if len(by) != len(shifts):
        raise NotLowered("a dimension rolled twice")

    def body(i: list[Expr]) -> Scalar:
        return low.load(x, [(j - by[k]) % x.shape[k] if k in by else j for k, j in enumerate(i)])

    return low.map(lambda i: low.load(x, i)) if any(n == 0 for n in x.shape) else low.map(body)


@rule("repeat")
def repeat(low: Lowering, x: Tensor, times: Sequence[Any]) -> Tensor:
    new = len(times) - x.rank
    if any(n == 0 for n in x.shape):
        return full(low, [], 0)
    return low.map(
        lambda i: low.load(x, [0 if n == 1 else i[new + k] % n for k, n in enumerate(x.shape)])
    )
