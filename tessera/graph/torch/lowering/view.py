"""Lowers views to index maps: they compute nothing but which element is meant, and cost nothing."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.graph.index import Expr, IndexMap, Ranges, dim, expr, is_nonnegative, maximum
from tessera.graph.ir.scalars import where
from tessera.graph.ir.types import product, row_major
from tessera.graph.torch.lowering.base import Lowering, Tensor, dims_of, rule, whole
from tessera.graph.torch.types import NotLowered, Size, sizes_of


def view(x: Tensor, results: Sequence[Expr | int], shape: Sequence[Size]) -> Tensor:
    return x.through(IndexMap(len(shape), results), shape)


def coordinates(rank: int) -> list[Expr]:
    return [dim(k) for k in range(rank)]


@rule("alias", "detach", "conj", "_conj", "resolve_conj", "resolve_neg", "positive", "lift_fresh")
def same(low: Lowering, x: Tensor, *_: Any) -> Tensor:
    # Of a number, as of the 1j in the gradient of 1j * x, too: torch passes it where a tensor is expected.
    if not isinstance(x, Tensor) or not getattr(x.elem, "is_floating", None):
        raise NotLowered("complex numbers")
    return x


@rule("permute")
def permute(low: Lowering, x: Tensor, dims: Sequence[int]) -> Tensor:
    order = [d % x.rank for d in dims]
    results = [dim(order.index(k)) for k in range(x.rank)]
    return view(x, results, [x.shape[d] for d in order])


@rule("t", "numpy_T")
def t(low: Lowering, x: Tensor) -> Tensor:
    return permute(low, x, list(range(x.rank))[::-1])


@rule("transpose.int", "swapaxes")
def transpose(low: Lowering, x: Tensor, a: int, b: int) -> Tensor:
    if not x.rank:
        return x
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return permute(low, x, order)


@rule("unsqueeze")
def unsqueeze(low: Lowering, x: Tensor, at: int) -> Tensor:
    at %= x.rank + 1
    kept = [dim(k + (k >= at)) for k in range(x.rank)]
    return view(x, kept, [*x.shape[:at], 1, *x.shape[at:]])


@rule("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(low: Lowering, x: Tensor, dims: Any = None) -> Tensor:
    chosen = dims_of(dims, x.rank) if dims != [] else []
    gone = [k for k in chosen if x.shape[k] == 1]
    kept = [k for k in range(x.rank) if k not in gone]
    results = [expr(0) if k in gone else dim(kept.index(k)) for k in range(x.rank)]
    return view(x, results, [x.shape[k] for k in kept])


@rule("expand", "broadcast_to", "expand_copy")
def expand(low: Lowering, x: Tensor, *_: Any, **__: Any) -> Tensor:
    shape = low.shape
    new = len(shape) - x.rank
    results = [expr(0) if n == 1 else dim(new + k) for k, n in enumerate(x.shape)]
    return view(x, results, shape)


@rule("slice.Tensor")
def slice_(
    low: Lowering, x: Tensor, at: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Tensor:
    at %= x.rank
    results: list[Any] = coordinates(x.rank)
    results[at] = first_of(x.shape[at], start) + results[at] * step
    return view(x, results, low.shape)


def first_of(count: Size, start: Any) -> Expr:
    """Where a slice starts, within bounds if it has elements. A negative start counts from the end."""
    if start is None:
        return expr(0)
    if isinstance(start, int) and isinstance(count, int):
        return expr(max(start + count, 0) if start < 0 else min(start, count))
    if isinstance(start, int) and start < 0:
        return maximum(expr(count) + start, expr(0))
    return from_end(maximum(expr(start), -expr(count)), count) if signed(start) else expr(start)


def signed(place: Any) -> bool:
    """Whether a place may be negative."""
    return not is_nonnegative(expr(place), Ranges())


def from_end(place: Expr, count: Size) -> Expr:
    """A place that counts from the end if it is negative, as one that counts from the start."""
    return place % maximum(expr(count), expr(1))


@rule("select.int")
def select(low: Lowering, x: Tensor, at: int, index: Any) -> Tensor:
    at %= x.rank
    if not isinstance(index, (int, Expr)):
        raise NotLowered("an index that depends on the data")
    if isinstance(index, int) and index < 0:
        place = expr(x.shape[at]) + index
    else:
        place = from_end(expr(index), x.shape[at]) if signed(index) else expr(index)
    kept = [dim(k - (k > at)) for k in range(x.rank)]
    kept[at] = place
    return view(x, kept, [n for k, n in enumerate(x.shape) if k != at])


@rule("diagonal", "diagonal_copy")
def diagonal(low: Lowering, x: Tensor, offset: int = 0, a: int = 0, b: int = 1) -> Tensor:
    a, b = a % x.rank, b % x.rank
    rest = [k for k in range(x.rank) if k not in (a, b)]
    results: list[Any] = [expr(0)] * x.rank
    for n, k in enumerate(rest):
        results[k] = dim(n)
    along = dim(len(rest))
    results[a], results[b] = along + max(-offset, 0), along + max(offset, 0)
    return view(x, results, low.shape)


@rule("unfold", "unfold_copy")
def unfold(low: Lowering, x: Tensor, at: int, length: int, step: int) -> Tensor:
    if not x.rank:
        return view(x, [], low.shape)
    at %= x.rank
    results = coordinates(x.rank)
    results[at] = dim(at) * step + dim(x.rank)
    return view(x, results, low.shape)


@rule("split_with_sizes", "split_with_sizes_copy", "split.Tensor", "chunk", "unbind.int")
def split(low: Lowering, x: Tensor, *args: Any) -> list[Tensor]:
    at = (args[1] if len(args) > 1 else 0) % x.rank
    parts, start = [], expr(0)
    for fake in low.out:
        shape = sizes_of(fake.shape)
        if len(shape) < x.rank:
            raise NotLowered("parts of another rank")
        results = coordinates(x.rank)
        results[at] = results[at] + start
        parts.append(view(x, results, shape))
        start = start + shape[at]
    return parts


@rule("view", "_unsafe_view", "reshape", "_reshape_alias")
def reshape(low: Lowering, x: Tensor, *_: Any) -> Tensor:
    return view(x, reshaped(x.shape, low.shape), low.shape)


@rule("view_copy.default")
def view_copy(low: Lowering, x: Tensor, *_: Any) -> Tensor:
    taken = reshape(low, x)
    return low.map(lambda i: low.load(taken, i))


def reshaped(old: Sequence[Size], new: Sequence[Size]) -> list[Expr]:
    """For each coordinate of a tensor of shape `old`, what it is in those of shape `new`, in row-major order.

    Runs of dimensions with equal products are done apart, which keeps the expressions short."""
    if any(n == 0 for n in old):
        return [expr(0)] * len(old)
    results: list[Expr] = []
    j = 0
    k = 0
    while k < len(old):
        first_k, first_j = k, j
        k, here, there = k + 1, expr(old[k]), expr(1)
        while here != there:
            if j < len(new) and (k == len(old) or _behind(there, here)):
                there, j = there * new[j], j + 1
            elif k < len(old):
                here, k = here * old[k], k + 1
            else:
                break
        if here != there:
            k, j = len(old), len(new)
        results += _group(old[first_k:k], new[first_j:j], first_j)
    return results


def _behind(there: Expr, here: Expr) -> bool:
    """Whether the product of new dimensions is the smaller one, as far as is known."""
    a, b = there.value, here.value
    return a < b if a is not None and b is not None else a is not None


def _group(old: Sequence[Size], new: Sequence[Size], first: int) -> list[Expr]:
    place = expr(0)
    for k, step in enumerate(row_major(new)):
        if new[k] != 1:
            place = place + dim(first + k) * step
    found = []
    real = [k for k, n in enumerate(old) if n != 1]
    for k, (n, step) in enumerate(zip(old, row_major(old), strict=True)):
        if n == 1:
            found.append(expr(0))
            continue
        coordinate = place // step
        found.append(coordinate if k == real[0] else coordinate % n)
    return found


@rule("as_strided")
def as_strided(
    low: Lowering, x: Tensor, shape: Sequence[Any], strides: Sequence[Any], offset: Any = 0
) -> Tensor:
    """Elements by their place in memory: known where x is a dense value and they are among its own."""
    steps = steps_of(x)
    place = begin = first_place(low, x, offset)
    for k, step in enumerate(strides):
        place = place + dim(k) * step
    flat = whole(x.value)
    if x.value.op is None:  # beside the elements of an argument there are others
        last = begin + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        first, end = expr(begin).value, expr(product(flat.shape) - 1 - last).value
        if first is None or end is None or first < 0 or end < 0:
            raise NotLowered("strides over more than an argument's own elements")
    results = [expr(0)] * flat.rank
    for k, step in steps:
        results[k] = place // step if (k, step) == steps[0] else place // step % flat.shape[k]
    return view(flat, results, sizes_of(low.out.shape))


def steps_of(x: Tensor) -> list[tuple[int, Any]]:
    """The dimensions of a value that is dense in memory with their strides, the largest first."""
    t = x.value.type
    whole_one = x.map.is_identity and all(isinstance(s, int) for s in t.all_strides)
    order = list(range(t.rank))
    if whole_one:
        order.sort(key=lambda k: (-t.all_strides[k], k))
    dense = [t.all_strides[k] for k in order] == list(row_major([t.shape[k] for k in order]))
    if not (x.map.is_identity and dense):
        raise NotLowered("strides over a view, or over a tensor that is not dense")
    return [(k, t.all_strides[k]) for k in order]


def first_place(low: Lowering, x: Tensor, offset: Any) -> Any:
    """Where strided elements of a value begin, counted from its own first one."""
    if offset is None:
        return expr(0)
    if x.value.op is not None:
        return expr(offset)
    return expr(offset) - low.node.args[0].meta["val"].storage_offset()


@rule("as_strided_scatter")
def as_strided_scatter(
    low: Lowering,
    x: Tensor,
    source: Tensor,
    shape: Sequence[Any],
    strides: Sequence[Any],
    offset: Any = None,
) -> Tensor:
    """x with other elements at the places of strided ones, none of which is there twice."""
    steps, begin = steps_of(x), first_place(low, x, offset)
    sizes = [(k, n, step) for k, (n, step) in enumerate(zip(shape, strides, strict=True)) if n != 1]
    if not all(isinstance(n, int) and isinstance(step, int) for _, n, step in sizes):
        raise NotLowered("symbolic strides")
    sizes.sort(key=lambda s: -s[2])
    rest = [sum((n - 1) * step for _, n, step in sizes[k:]) for k in range(1, len(sizes) + 1)]
    if any(step <= far for (_, _, step), far in zip(sizes, rest, strict=True)):
        raise NotLowered("strided elements that overlap")

    def body(i: list[Expr]) -> Any:
        place = sum((i[k] * step for k, step in steps), expr(0)) - begin
        at: list[Any] = [expr(0)] * len(shape)
        inside = low.position(place) >= 0
        for k, n, step in sizes:
            at[k], place = place // step, place % step
            inside = inside & (low.position(at[k]) < n)
        inside = inside & low.position(place).eq(0)
        return where(inside, low.load(source, at, inside), low.load(x, i))

    return low.map(body)


@rule("as_strided_copy")
def as_strided_copy(
    low: Lowering, x: Tensor, shape: Sequence[Any], strides: Sequence[Any], offset: Any = 0
) -> Tensor:
    taken = as_strided(low, x, shape, strides, offset)
    return low.map(lambda i: low.load(taken, i))


@rule("select_scatter")
def select_scatter(low: Lowering, x: Tensor, source: Tensor, at: int, index: int) -> Tensor:
    at %= x.rank
    place = index % x.shape[at] if isinstance(x.shape[at], int) else index
    if not isinstance(place, int) or place < 0:
        raise NotLowered("a symbolic index")

    def body(i: list[Expr]) -> Any:
        from_source = low.load(source, [n for k, n in enumerate(i) if k != at])
        return where(low.position(i[at]).eq(place), from_source, low.load(x, i))

    return low.map(body)


@rule("diagonal_scatter")
def diagonal_scatter(
    low: Lowering, x: Tensor, source: Tensor, offset: int = 0, a: int = 0, b: int = 1
) -> Tensor:
    a, b = a % x.rank, b % x.rank

    def body(i: list[Expr]) -> Any:
        row, column = low.position(i[a]), low.position(i[b])
        on_it = (row + offset).eq(column)
        rest = [n for k, n in enumerate(i) if k not in (a, b)]
        from_source = low.load(source, [*rest, i[a] - max(-offset, 0)], on_it)
        return where(on_it, from_source, low.load(x, i))

    return low.map(body)
