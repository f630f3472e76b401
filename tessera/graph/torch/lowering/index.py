"""Lowers gathers and scatters: elements whose place is computed are read, or combined into a tensor."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tessera.dtypes import int1, int32
from tessera.graph.index import Expr, expr
from tessera.graph.ir.combine import identity
from tessera.graph.ir.scalars import Scalar, floor_divide, where
from tessera.graph.ir.types import product, row_major
from tessera.graph.torch.lowering.base import Lowering, Tensor, broadcast, placed, rule, whole
from tessera.graph.torch.lowering.pointwise import accumulator_of, cast
from tessera.graph.torch.lowering.view import first_of, reshaped, view
from tessera.graph.torch.types import NotLowered, Size, element_of, torch_type


@rule("gather")
def gather(
    low: Lowering, x: Tensor, at: int, index: Tensor, *, sparse_grad: bool = False
) -> Tensor:
    if not x.rank:
        return low.map(lambda i: low.load(x, []))
    at %= x.rank

    def body(i: list[Expr]) -> Scalar:
        place = low.indirect(low.load(index, i or [0] * index.rank), x.shape[at])
        return low.load(x, [place if k == at else j for k, j in enumerate(i)])

    return low.map(body)


@rule("index_select")
def index_select(low: Lowering, x: Tensor, at: int, index: Tensor) -> Tensor:
    if not x.rank:
        return low.map(lambda i: low.load(x, []))
    at %= x.rank

    def body(i: list[Expr]) -> Scalar:
        place = low.indirect(low.load(index, [i[at]] if index.rank else []), x.shape[at])
        return low.load(x, [place if k == at else j for k, j in enumerate(i)])

    return low.map(body)


@rule("embedding")
def embedding(low: Lowering, weight: Tensor, index: Tensor, *_: Any, **__: Any) -> Tensor:
    def body(i: list[Expr]) -> Scalar:
        row = low.indirect(low.load(index, i[:-1]), weight.shape[0])
        return low.load(weight, [row, i[-1]])

    return low.map(body)


def _advanced(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[list[int], int, list[Tensor]]:
    """(indexed dimensions, where the indices' own dimensions stand, the indices) of `x[indices]`."""
    at = [k for k, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(index.elem == int1 for index in given):
        raise NotLowered("an index of truth values")
    together = not at or at == list(range(at[0], at[-1] + 1))
    return at, at[0] if at and together else 0, given


def _coordinates(
    low: Lowering,
    x: Tensor,
    i: Sequence[Any],
    at: list[int],
    first: int,
    given: list[Tensor],
    checked: bool = True,
) -> list[Any]:
    """Where in x the coordinate i of `x[indices]` is. `checked`: see `Lowering.indirect`."""
    rank = max((index.rank for index in given), default=0)
    own, rest = i[first : first + rank], iter([*i[:first], *i[first + rank :]])
    places = {
        k: low.indirect(low.load(index, broadcast(index, own)), x.shape[k], checked)
        for k, index in zip(at, given, strict=True)
    }
    return [places[k] if k in places else next(rest) for k in range(x.rank)]


def _index(checked: bool, low: Lowering, x: Tensor, indices: Sequence[Any]) -> Tensor:
    at, first, given = _advanced(x, indices)
    return low.map(lambda i: low.load(x, _coordinates(low, x, i, at, first, given, checked)))


rule("index.Tensor")(partial(_index, True))
rule("_unsafe_index.Tensor")(partial(_index, False))


@rule("_unsafe_masked_index")
def masked_index(
    low: Lowering, x: Tensor, mask: Tensor, indices: Sequence[Any], fill: Any
) -> Tensor:
    at, first, given = _advanced(x, indices)

    def body(i: list[Expr]) -> Scalar:
        held = low.load(mask, broadcast(mask, i))
        return low.load(x, _coordinates(low, x, i, at, first, given, False), held, fill)

    return low.map(body)


# --- scatters -----------------------------------------------------------------------------------------------------
def scattered(
    low: Lowering,
    base: Tensor,
    extents: Sequence[Size],
    body: Callable[[list[Expr]], tuple[list[Any], Scalar]],
    mode: str,
) -> Tensor:
    """`base` with the values combined at the coordinates that `body` gives."""
    element_of(torch_type(base.elem))
    value = base.value
    nothing = product(extents) == 0  # eager takes indices of any rank then
    if nothing or not base.map.is_identity or base.shape != value.type.shape:
        (copy,) = low.inner(base.shape, lambda i: low.load(base, i))
        value = copy.value
    if nothing:
        return whole(placed(value, low.out))

    def inner(i: list[Expr]) -> list[Scalar]:
        place, element = body(i)
        return [*(low.position(p) for p in place), element]

    found = low.g.scatter(value, extents, low._body(extents, inner), mode)
    return whole(placed(found, low.out))


REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
}


def _scatter(
    low: Lowering, x: Tensor, at: int, index: Tensor, source: Any, mode: str, fill: Any = None
) -> Tensor:
    at = at % x.rank if x.rank else 0

    def body(i: list[Expr]) -> tuple[list[Any], Scalar]:
        if fill is not None or not isinstance(source, Tensor):
            element = low.const(source if fill is None else fill, x.elem)
        else:
            element = low.load(source, _place_in(source, i))
        place = low.load(index, i)
        return [
            low.indirect(place, x.shape[at]) if k == at else i[k] for k in range(x.rank)
        ], element

    return scattered(low, x, index.shape, body, mode)


def _place_in(x: Tensor, i: list[Expr]) -> list[Expr]:
    """A place of a tensor of the same rank; a tensor without dimensions goes for one of one element."""
    return i if x.rank == len(i) else [expr(0)] * x.rank


@rule("scatter.src", "scatter.value")
def scatter(low: Lowering, x: Tensor, at: int, index: Tensor, source: Any) -> Tensor:
    return _scatter(low, x, at, index, source, "set")


@rule("scatter_add")
def scatter_add(low: Lowering, x: Tensor, at: int, index: Tensor, source: Tensor) -> Tensor:
    return _scatter(low, x, at, index, source, "add")


@rule("scatter.reduce", "scatter.value_reduce")
def scatter_with(
    low: Lowering, x: Tensor, at: int, index: Tensor, source: Any, *, reduce: str
) -> Tensor:
    return _scatter(low, x, at, index, source, REDUCTIONS[reduce])


@rule("scatter_reduce.two")
def scatter_reduce(
    low: Lowering,
    x: Tensor,
    at: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    return _reduced(
        low, x, partial(_scatter, low, at=at, index=index, source=source), reduce, include_self
    )


def _reduced(
    low: Lowering, x: Tensor, combine: Callable[..., Tensor], reduce: str, include_self: bool
) -> Tensor:
    """What `combine(x, mode=..., fill=...)` scatters, values or `fill` in their place, in the mode of a reduction."""
    mode = REDUCTIONS["sum" if reduce == "mean" else reduce]
    base = x
    if not include_self:  # what the scatter reaches starts from what changes nothing
        kind = {"add": "sum", "mul": "prod"}.get(mode, mode)
        base = combine(x, mode="set", fill=identity(kind, x.elem))
    found = combine(base, mode=mode)
    if reduce != "mean":
        return found
    (none,) = low.inner(x.shape, lambda i: low.const(int(include_self), int32))
    counts = combine(none, mode="add", fill=1)
    inside = accumulator_of(x.elem)

    def mean(i: list[Expr]) -> Scalar:
        count = low.load(counts, i)
        total, count = cast(low.load(found, i), inside), cast(where(count < 1, 1, count), inside)
        return (total / count if x.elem.is_floating() else floor_divide(total, count)).rounded(
            x.elem
        )

    return low.map(mean)


def _index_put(
    checked: bool,
    low: Lowering,
    x: Tensor,
    indices: Sequence[Any],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    at, first, given = _advanced(x, indices)
    shape = _broadcast_shape([index.shape for index in given])
    rest = [n for k, n in enumerate(x.shape) if k not in at]
    extents = [*rest[:first], *shape, *rest[first:]]

    def body(i: list[Expr]) -> tuple[list[Any], Scalar]:
        element = cast(low.load(values, broadcast(values, i)), x.elem)
        return _coordinates(low, x, i, at, first, given, checked), element

    return scattered(low, x, extents, body, "add" if accumulate else "set")


rule("index_put")(partial(_index_put, True))
rule("_unsafe_index_put")(partial(_index_put, False))


def _broadcast_shape(shapes: Sequence[Sequence[Size]]) -> list[Size]:
    rank = max((len(s) for s in shapes), default=0)
    found: list[Size] = [1] * rank
    for shape in shapes:
        for k, n in enumerate(shape):
            if n != 1:
                found[rank - len(shape) + k] = n
    return found


def _along(
    mode: str,
    low: Lowering,
    x: Tensor,
    at: int,
    index: Tensor,
    source: Tensor,
    *,
    alpha: Any = 1,
    fill: Any = None,
) -> Tensor:
    """index_add and index_copy: slices of `source`, or `fill` for all elements of them, combined at computed places of
    one dimension."""
    at = at % x.rank if x.rank else 0

    def body(i: list[Expr]) -> tuple[list[Any], Scalar]:
        element = low.load(source, i if source.rank else [])
        element = element if alpha == 1 else element * alpha
        element = element if fill is None else low.const(fill, x.elem)
        if not x.rank:
            return [], element
        place = low.indirect(low.load(index, [i[at]] if index.rank else []), x.shape[at])
        return [place if k == at else j for k, j in enumerate(i)], element

    shape = source.shape if source.rank or not x.rank else (1,) * x.rank
    return scattered(low, x, shape, body, mode)


rule("index_add")(partial(_along, "add"))
rule("index_copy")(partial(_along, "set"))


@rule("index_reduce")
def index_reduce(
    low: Lowering,
    x: Tensor,
    at: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    def combine(base: Tensor, mode: str, fill: Any = None) -> Tensor:
        return _along(mode, low, base, at, index, source, fill=fill)

    return _reduced(low, x, combine, reduce, include_self)


@rule("put")
def put(
    low: Lowering, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    """Elements at places counted through the whole tensor, row by row."""
    given = view(source, reshaped(source.shape, index.shape), index.shape)

    def body(i: list[Expr]) -> tuple[list[Any], Scalar]:
        place = low.indirect(low.load(index, i), product(x.shape))
        steps = zip(x.shape, row_major(x.shape), strict=True)
        return [place // step % n for n, step in steps], low.load(given, i)

    return scattered(low, x, index.shape, body, "add" if accumulate else "set")


@rule("slice_scatter")
def slice_scatter(
    low: Lowering,
    x: Tensor,
    source: Tensor,
    at: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Tensor:
    at %= x.rank
    first = first_of(x.shape[at], start)

    def body(i: list[Expr]) -> Scalar:
        inside = low.within(i[at] - first, expr(source.shape[at]) * step)
        if step != 1:
            chosen = low.position((i[at] - first) % step).eq(0)
            inside = chosen if inside is None else inside & chosen
        place = [(j - first) // step if k == at else j for k, j in enumerate(i)]
        element = low.load(source, place, inside)
        return element if inside is None else where(inside, element, low.load(x, i))

    return low.map(body)
