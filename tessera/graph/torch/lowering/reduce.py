"""Lowers reductions and scans: sums, extrema with their places, moments, prefix sums."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tessera.dtypes import dtype, float32, float64, int1, int64
from tessera.graph.index import Expr, dim, expr
from tessera.graph.ir.combine import Combine, arg_extremum, arg_identities, simple
from tessera.graph.ir.scalars import Scalar, function, is_inf, where
from tessera.graph.ir.types import CPU, product
from tessera.graph.torch.lowering.base import Lowering, Tensor, dims_of, rule, several, whole
from tessera.graph.torch.lowering.pointwise import accumulator_of, cast, power
from tessera.graph.torch.lowering.view import reshaped, view
from tessera.graph.torch.types import NotLowered, Size, element_of, sizes_of, torch_type
from tessera.ir import Builder, Value
from tessera.ops import arith


def reduced(
    low: Lowering,
    x: Tensor,
    dims: Sequence[int],
    keepdim: bool,
    body: Callable[[list[Size], Callable[[list[Expr]], Scalar]], Any],
    like: Any = None,
) -> list[Tensor]:
    """A loop over what is kept of x; `body(extents, element)` reduces the elements at given coordinates."""
    element_of(torch_type(x.elem))
    kept = [k for k in range(x.rank) if k not in dims]
    shape = [1 if k in dims else x.shape[k] for k in range(x.rank) if keepdim or k not in dims]

    def outer(indices: list[Expr]) -> Any:
        of_kept = [i for k, i in enumerate(indices) if k not in dims] if keepdim else indices

        def element(inner: list[Expr]) -> Scalar:
            place = {**dict(zip(kept, of_kept, strict=True)), **dict(zip(dims, inner, strict=True))}
            return low.load(x, [place[k] for k in range(x.rank)])

        return body([x.shape[k] for k in dims], element)

    return low.loops(shape, outer, like)


def taken(x: Scalar, elem: dtype, inside: dtype) -> Scalar:
    """An element as eager adds it up: converted to the type of the result first, which a caller may have narrowed by
    `dtype=`, then to the type of the sum."""
    narrowed = x.type.is_floating() and elem.is_floating() and elem.bits < x.type.bits
    return cast(cast(x, elem) if narrowed else x, inside)


def added_as(kind: str, elem: dtype) -> str:
    """The reduction that a sum or product is of a type: truth values, of which 1 + 1 is 1, are joined."""
    return {"sum": "any", "prod": "all"}.get(kind, kind) if elem == int1 else kind


def simple_reduction(
    low: Lowering, x: Tensor, kind: str, dims: Any, keepdim: bool, inside: dtype
) -> Tensor:
    """One of the builder's reductions, of the values cast to `inside`."""
    chosen, kind = dims_of(dims, x.rank), added_as(kind, inside)

    def body(extents: list[Size], element: Any) -> Scalar:
        total = low.reduce(kind, extents, lambda i: taken(element(i), low.elem, inside))
        return total.rounded(low.elem)

    (found,) = reduced(low, x, chosen, keepdim, body)
    return found


@rule("sum.dim_IntList")
def sum_dims(
    low: Lowering, x: Tensor, dims: Any, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    return simple_reduction(low, x, "sum", dims, keepdim, accumulator_of(low.elem))


@rule("sum")
def sum_all(low: Lowering, x: Tensor, dtype: Any = None) -> Tensor:
    return sum_dims(low, x, None)


@rule("prod.dim_int")
def prod_dim(
    low: Lowering, x: Tensor, dim: int, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    return simple_reduction(low, x, "prod", [dim], keepdim, accumulator_of(low.elem))


@rule("prod")
def prod_all(low: Lowering, x: Tensor, dtype: Any = None) -> Tensor:
    return simple_reduction(low, x, "prod", None, False, accumulator_of(low.elem))


@rule("mean.dim")
def mean_dims(
    low: Lowering, x: Tensor, dims: Any, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    inside = accumulator_of(low.elem)
    chosen = dims_of(dims, x.rank)

    def body(extents: list[Size], element: Any) -> Scalar:
        total = low.reduce("sum", extents, lambda i: taken(element(i), low.elem, inside))
        return (total / low.position(expr(product(extents))).to(inside)).rounded(low.elem)

    (found,) = reduced(low, x, chosen, keepdim, body)
    return found


@rule("mean")
def mean_all(low: Lowering, x: Tensor, dtype: Any = None) -> Tensor:
    return mean_dims(low, x, None)


def chosen_of(x: Tensor, dims: Sequence[int]) -> None:
    """Leave to eager to choose one of no elements, for which it has an error, or NaN."""
    if any(x.shape[k] == 0 for k in dims):
        raise NotLowered("a choice among no elements")


def _extremum(
    kind: str, low: Lowering, x: Tensor, dims: Any = None, keepdim: bool = False
) -> Tensor:
    chosen_of(x, dims_of(dims, x.rank))
    return simple_reduction(low, x, kind, dims, keepdim, x.elem)


rule("amax", "max.default")(partial(_extremum, "max"))
rule("amin", "min.default")(partial(_extremum, "min"))


def _truth(kind: str, low: Lowering, x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return simple_reduction(low, x, kind, dims, keepdim, int1)


rule("any", "any.dim", "any.dims")(partial(_truth, "any"))
rule("all", "all.dim", "all.dims")(partial(_truth, "all"))


@rule("aminmax")
def aminmax(
    low: Lowering, x: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> list[Tensor]:
    chosen = dims_of(dim, x.rank) if dim is not None else list(range(x.rank))
    chosen_of(x, chosen)

    def body(extents: list[Size], element: Any) -> list[Scalar]:
        return [low.reduce(kind, extents, element) for kind in ("min", "max")]

    return reduced(low, x, chosen, keepdim, body)


def _arg(
    kind: str, low: Lowering, x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor:
    """The place of an extremum; without a dimension that in row-major order."""
    if not x.rank:
        return low.map(lambda i: low.const(0, int64))
    if dim is None:
        flat = x if x.rank == 1 else _flattened(low, x)
        return _keep_rank(low, _extreme_place(low, flat, kind, 0, False, low.out), x, keepdim)
    return _extreme_place(low, x, kind, dim % x.rank, keepdim, low.out)


def _flattened(low: Lowering, x: Tensor) -> Tensor:
    count = product(x.shape)
    return view(x, reshaped(x.shape, [count]), [count])


def _keep_rank(low: Lowering, found: Tensor, x: Tensor, keepdim: bool) -> Tensor:
    return view(found, [], [1] * x.rank) if keepdim else found


def _extreme_place(
    low: Lowering, x: Tensor, kind: str, at: int, keepdim: bool, like: Any
) -> Tensor:
    chosen_of(x, [at])

    def body(extents: list[Size], element: Any) -> Scalar:
        return low.arg_reduce(kind, extents[0], element)[1]

    (found,) = reduced(low, x, [at], keepdim, body, like)
    return found


rule("argmax")(partial(_arg, "max"))
rule("argmin")(partial(_arg, "min"))


def with_place(
    kind: str, low: Lowering, x: Tensor, dim: int, keepdim: bool = False
) -> list[Tensor]:
    """The largest ("max") or smallest elements along a dimension, and their places."""
    if not x.rank:
        zero = low.loop([], lambda i: low.const(0, int64), low.out[1])
        return [low.loop([], lambda i: low.load(x, i), low.out[0]), zero]

    chosen_of(x, [dim % x.rank])

    def body(extents: list[Size], element: Any) -> Any:
        return low.arg_reduce(kind, extents[0], element)

    return reduced(low, x, [dim % x.rank], keepdim, body)


rule("max.dim")(partial(with_place, "max"))
rule("min.dim")(partial(with_place, "min"))


@rule("linalg_vector_norm")
def vector_norm(
    low: Lowering, x: Tensor, order: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:  # fmt: skip
    inside = accumulator_of(low.elem)
    general = order not in (0, 1, 2, float("inf"), float("-inf"))

    def value(v: Scalar) -> Scalar:
        v = cast(v, inside)
        if order == 0:
            return v.ne(0).to(inside)
        if general:
            return power(abs(v), order)
        return v * v if order == 2 else abs(v)

    kind = {float("inf"): "max", float("-inf"): "min"}.get(order, "sum")

    def body(extents: list[Size], element: Any) -> Scalar:
        total = low.reduce(kind, extents, lambda i: value(element(i)))
        if general:
            total = power(total, total.const(1) / order if isinstance(order, Expr) else 1 / order)
        return (function("sqrt_rn", total) if order == 2 else total).rounded(low.elem)

    (found,) = reduced(low, x, dims_of(dims, x.rank), keepdim, body)
    return found


# --- moments ------------------------------------------------------------------------------------------------------
def _moments(
    low: Lowering, x: Tensor, dims: Any, correction: Any, keepdim: bool, names: str, elem: dtype
) -> Any:
    """The tensors that `names` asks for: "v"ariance, "s"tandard deviation, "m"ean."""
    inside = float64 if elem == float64 else float32

    def body(extents: list[Size], element: Any) -> list[Scalar]:
        mean, squares, count = low.welford(extents, lambda i: cast(element(i), inside))
        mean = low.const(math.nan, inside) if product(extents) == 0 else mean
        free = count - (1 if correction is None else correction)
        variance = squares / where(free < 0, 0, free)
        variance = where(abs(mean) < math.inf, variance, math.nan)
        values = {"v": variance, "m": mean}
        if "s" in names:
            values["s"] = function("sqrt_rn", variance)
        return [values[name].rounded(elem) for name in names]

    return reduced(low, x, dims_of(dims, x.rank), keepdim, body)


@rule("var.correction")
def var(
    low: Lowering, x: Tensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Tensor:
    return _moments(low, x, dims, correction, keepdim, "v", low.elem)[0]


@rule("std.correction")
def std(
    low: Lowering, x: Tensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Tensor:
    return _moments(low, x, dims, correction, keepdim, "s", low.elem)[0]


@rule("var_mean.correction")
def var_mean(
    low: Lowering, x: Tensor, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    return _moments(low, x, dims, correction, keepdim, "vm", element_of(low.out[0].dtype))


# --- scans ----------------------------------------------------------------------------------------------------------
SHORT = 4096  # elements of rows that CPUs add up in their own type


def scanned(
    low: Lowering,
    x: Tensor,
    at: int,
    element: Callable[[Scalar, Expr], list[Scalar]],
    combine: Combine,
    identities: Sequence[Any],
    elems: Sequence[dtype],
) -> list[Tensor]:
    """Prefix combinations along a dimension, of the scalars that `element(x's element, index)` gives. What a CPU scans
    across memory lies as the results do."""
    if not x.rank:
        return low.loops(
            [], lambda i: [v.rounded(e) for v, e in zip(element(low.load(x, []), expr(0)), elems)]
        )
    at %= x.rank
    outer = [n for k, n in enumerate(x.shape) if k != at]
    across = low.g.device == CPU and at < x.rank - 1

    def rounded(rows: Sequence[Tensor], i: list[Expr]) -> list[Scalar]:
        return [low.load(r, i).rounded(e) for r, e in zip(rows, elems, strict=True)]

    def row(indices: list[Expr]) -> list[Any]:
        def one(along: list[Expr]) -> list[Scalar]:
            place = [*indices[:at], along[0], *indices[at:]]
            return element(low.load(x, place), along[0])

        made = low.scan_values(x.shape[at], one, combine, identities)
        if not across:
            return made
        rows = [whole(v) for v in made]
        return [t.value for t in low.inner([x.shape[at]], lambda c: rounded(rows, c))]

    made = low.inner_tensors(outer, row, _across(low, at) if low.g.device == CPU else ())
    rows = [last_to(t, at) for t in made]
    return rows if across else low.loops(x.shape, lambda i: rounded(rows, i))


def _across(low: Lowering, at: int) -> list[Sequence[Size]]:
    """The strides of tensors whose last dimension is moved to `at` later on, such that they lie as results do:
    a scan across memory takes many columns at once then."""
    given = [sizes_of(o.stride()) for o in several(low.out)]
    return [(*s[:at], *s[at + 1 :], s[at]) for s in given]


def last_to(x: Tensor, at: int) -> Tensor:
    """The last dimension, moved."""
    order = [k for k in range(x.rank) if k != at]
    shape = [*x.shape[:-1]]
    shape.insert(at, x.shape[-1])
    return view(x, [*(dim(k) for k in order), dim(at)], shape)


def _plain_scan(kind: str, low: Lowering, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    inside, n = accumulator_of(low.elem), x.shape[dim] if x.rank else 1
    if low.g.device == CPU and low.elem is float32 and not (isinstance(n, int) and n <= SHORT):
        inside = float64  # as eager does
    combine, identities = simple(kind, inside)
    return scanned(
        low, x, dim, lambda v, i: [taken(v, low.elem, inside)], combine, identities, [low.elem]
    )[0]


rule("cumsum")(partial(_plain_scan, "sum"))
rule("cumprod")(partial(_plain_scan, "prod"))


def _last_extremum(kind: str) -> Combine:
    """As `arg_extremum`, but of equal values the last, as eager's cummax."""
    first = arg_extremum(kind)

    def combine(b: Builder, x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
        flipped = [b.emit(arith.NegOp(v[1])) for v in (x, y)]
        value, place = first(b, [x[0], flipped[0]], [y[0], flipped[1]])
        return [value, b.emit(arith.NegOp(place))]

    return combine


def _extremum_scan(kind: str, low: Lowering, x: Tensor, dim: int) -> list[Tensor]:
    elem = element_of(torch_type(x.elem))
    lowest = arg_identities(kind, elem)[0]
    return scanned(
        low, x, dim, lambda v, i: [v, low.position(i)], _last_extremum(kind), (lowest, -1), [elem, int64]
    )  # fmt: skip


rule("cummax")(partial(_extremum_scan, "max"))
rule("cummin")(partial(_extremum_scan, "min"))


@rule("logcumsumexp")
def logcumsumexp(low: Lowering, x: Tensor, dim: int) -> Tensor:
    inside = accumulator_of(low.elem)

    def combine(builder: Builder, x: Sequence[Value], y: Sequence[Value]) -> list[Value]:
        a, b = Scalar(x[0], builder), Scalar(y[0], builder)
        big = a.binary(arith.MaxOp, b, propagate_nan=True)
        small = a.binary(arith.MinOp, b, propagate_nan=True)
        added = big + function("log1p", function("exp", small - big))
        return [where(is_inf(big), big, added).value]

    return scanned(low, x, dim, lambda v, i: [v.to(inside)], combine, (float("-inf"),), [low.elem])[
        0
    ]
