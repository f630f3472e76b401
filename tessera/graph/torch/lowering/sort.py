"""Lowers what depends on the order of elements: sorting, the largest ones, medians."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, log2
from typing import Any

from tessera.dtypes import float32, int64
from tessera.graph.index import Expr, expr
from tessera.graph.ir.scalars import Scalar, is_nan, where
from tessera.graph.ir.types import product
from tessera.graph.passes.expand_sort import HALF, is_medium, is_quick, is_short, ordered
from tessera.graph.torch.lowering.base import Lowering, Tensor, rule
from tessera.graph.torch.lowering.create import one_of
from tessera.graph.torch.lowering.reduce import chosen_of, last_to, with_place
from tessera.graph.torch.lowering.view import reshaped, view
from tessera.graph.torch.types import NotLowered, element_of, torch_type
from tessera.ir import Value
from tessera.ir.applications import apply

# The most elements that are selected of a row, each by a walk through it, and the longest row. On one thread of a Zen 3
# a walk takes 0.2 to 0.5 ns an element, eager 18 for 16 of 100, 3.5 for 8 of 2,000, and 0.7 to 2.3 for 8 of more than
# 8,192. The walks are written out: 16 of rows of 100 take 0.9 s to compile, 32 take 3.5.
SELECTED, SELECTED_OF = 16, 2048
# Eager's time, a tenth less than measured, in comparisons of a network (0.35 ns on a Zen 3): for each element of a row
# of which some are found, and, times log2(k), for each of k that are found; for each element where one is found.
OF_ALL, OF_LARGEST, OF_ONE = 26, 16, 40


def in_order(low: Lowering, x: Tensor, at: int, descending: bool, cost: Any = inf) -> list[Tensor]:
    """x sorted along dimension `at`, and where its elements were. `cost`: eager's, for what is wanted of a row, in
    comparisons of a network; that for the whole order is much more."""
    element_of(torch_type(x.elem))
    n = x.shape[at]
    outer = [n for k, n in enumerate(x.shape) if k != at]
    short = is_short(n, x.device, x.elem) and is_quick(outer, n, x.device)
    if not short and not is_medium(n, x.device, x.elem, cost):
        raise NotLowered("a sort of long rows, or of an unknown number")

    def row(indices: list[Expr]) -> list[Any]:
        def one(along: list[Expr]) -> list[Scalar]:
            place = [*indices[:at], along[0], *indices[at:]]
            return [low.load(x, place), low.position(along[0])]

        return low.sort_values(x.shape[at], one, descending)

    return [last_to(t, at) for t in low.inner_tensors(outer, row)]


def _sorted(low: Lowering, x: Tensor, at: int, descending: bool) -> list[Tensor]:
    if not x.rank:
        return _alone(low, x)
    rows = in_order(low, x, at % x.rank, descending)
    return low.loops(x.shape, lambda i: [low.load(r, i) for r in rows])


def _alone(low: Lowering, x: Tensor) -> list[Tensor]:
    """The one element of a tensor without dimensions, and its place."""
    return low.loops([], lambda i: [low.load(x, []), low.const(0, int64)])


@rule("sort")
def sort(
    low: Lowering, x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> list[Tensor]:
    return _sorted(low, x, dim, descending)


@rule("topk")
def topk(
    low: Lowering, x: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Tensor]:
    if not x.rank:
        return _alone(low, x)
    _decided(x)
    at = dim % x.rank
    if k == 1 and largest:  # NaN is the largest for both
        return with_place("max", low, x, at, True)
    shape = [k if d == at else n for d, n in enumerate(x.shape)]
    if is_selected(x, at, k):
        found = selected(low, x, at, largest, k)
        return low.loops(shape, lambda i: _taken(low, x, at, i, one_of(low, found, at, i, int64)))
    extra = int(OF_LARGEST * k * log2(k)) if isinstance(k, int) and k else 0
    rows = in_order(low, x, at, largest, OF_ALL * x.shape[at] + extra)
    return low.loops(shape, lambda i: [low.load(r, i) for r in rows])


def is_selected(x: Tensor, at: int, count: object) -> bool:
    """Whether the first elements of rows are found one after the other, without the order of the rest."""
    n = x.shape[at]
    if x.device != "cpu" or x.elem != float32 or not isinstance(n, int):
        return False
    if n > SELECTED_OF or not isinstance(count, int) or not 0 < count <= SELECTED:
        return False
    return apply("graph-select-largest", what="topk")


def selected(low: Lowering, x: Tensor, at: int, descending: bool, count: int) -> list[Tensor]:
    """The first `count` elements along `at` in a stable order, as integers of 64 bits whose lower half is the place."""
    n, outer = x.shape[at], [n for k, n in enumerate(x.shape) if k != at]
    last = (1 << 63) - 1

    def joined(i: list[Expr]) -> list[Value]:
        key = ordered(low.load(x, i))
        key = ~key if descending else key
        return [(key.to(int64) << HALF | low.position(i[at])).value]

    (keys,) = low.inner_tensors(x.shape, joined)
    found: list[Tensor] = []

    def least(i: list[Expr]) -> list[Value]:
        before = low.load(found[-1], i) if found else None

        def one(r: list[Expr]) -> Scalar:
            own = low.load(keys, [*i[:at], *r, *i[at:]])
            return own if before is None else where(own > before, own, last)

        return [low.reduce("min", [n], one).value]

    for _ in range(count):
        found += low.inner_tensors(outer, least)
    return found


def _taken(low: Lowering, x: Tensor, at: int, i: list[Expr], chosen: Scalar) -> list[Scalar]:
    """The element that an integer of `selected` names, and its place."""
    place = chosen & ((1 << HALF) - 1)
    return [low.load(x, [*i[:at], low.computed(place), *i[at + 1 :]]), place]


def _decided(x: Tensor) -> None:
    """Leave to eager what it chooses of equal elements, where these are likely: places show it."""
    if not x.elem.is_floating() or x.elem.bits < 32:
        raise NotLowered("which of equal elements eager chooses is not defined")


def _chosen(
    low: Lowering,
    x: Tensor,
    at: int,
    keepdim: bool,
    which: Callable[[list[Expr], Tensor], Scalar],
) -> list[Tensor]:
    """One element of each row, and its place: `which(rest of the coordinates, places in the order of the sort)`."""
    chosen_of(x, [at])
    places = in_order(low, x, at, False, OF_ONE * x.shape[at])[1]
    shape = [1 if d == at else n for d, n in enumerate(x.shape) if keepdim or d != at]

    def body(i: list[Expr]) -> list[Scalar]:
        rest = [*i[:at], *i[at + 1 :]] if keepdim else i
        found = which(rest, places)
        return [low.load(x, [*rest[:at], low.computed(found), *rest[at:]]), found]

    return low.loops(shape, body)


@rule("kthvalue")
def kthvalue(
    low: Lowering, x: Tensor, k: Any, dim: int = -1, keepdim: bool = False
) -> list[Tensor]:
    if not x.rank:
        return _alone(low, x)
    _decided(x)
    at = dim % x.rank
    return _chosen(
        low, x, at, keepdim, lambda i, places: low.load(places, [*i[:at], expr(k) - 1, *i[at:]])
    )


def _median(skip: bool, low: Lowering, x: Tensor, dim: int, keepdim: bool = False) -> list[Tensor]:
    """The lower one of two medians. NaNs are left out if `skip`; else the first one is the median."""
    if not x.rank:
        return _alone(low, x)
    at = dim % x.rank
    n = x.shape[at]

    def which(i: list[Expr], places: Tensor) -> Scalar:
        def nan_at(r: list[Expr]) -> Scalar:
            return is_nan(low.load(x, [*i[:at], r[0], *i[at:]]))

        def kept(k: Any) -> Scalar:
            return low.load(places, [*i[:at], k, *i[at:]])

        if not x.elem.is_floating():
            return kept((n - 1) // 2)
        if skip:
            numbers = low.reduce("sum", [n], lambda r: (~nan_at(r)).to(int64))
            middle = where(numbers > 0, numbers - 1, 0) >> 1
            return kept(low.computed(middle))
        end = low.position(expr(n))
        first = low.reduce("min", [n], lambda r: where(nan_at(r), low.position(r[0]), end))
        return where(first < end, first, kept((n - 1) // 2))

    return _chosen(low, x, at, keepdim, which)


def _median_of_all(skip: bool, low: Lowering, x: Tensor) -> Tensor:
    count = product(x.shape)
    flat = view(x, reshaped(x.shape, [count]), [count])
    out, low.out = low.out, (low.out, low.out)
    found = _median(skip, low, flat, 0)[0]
    low.out = out
    return found


rule("median.dim")(partial(_median, False))
rule("nanmedian.dim")(partial(_median, True))
rule("median.default")(partial(_median_of_all, False))
rule("nanmedian.default")(partial(_median_of_all, True))
