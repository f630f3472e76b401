"""Lowers pooling: windows of one to three dimensions that a reduction runs over, and the ways back."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from tessera.dtypes import dtype, int64
from tessera.graph.index import Expr, expr, maximum
from tessera.graph.ir.combine import lowest
from tessera.graph.ir.scalars import Scalar, where
from tessera.graph.ir.types import product
from tessera.graph.torch.lowering.base import Lowering, Tensor, rule
from tessera.graph.torch.lowering.index import scattered
from tessera.graph.torch.lowering.pointwise import accumulator_of
from tessera.graph.torch.types import NotLowered, Size, element_of, sizes_of, torch_type

MOST_WINDOWS = 16  # that an element lies in, for each of which a gradient is read


def _numbers(value: Any, rank: int, default: Sequence[int] = ()) -> list[int]:
    """A number for each dimension, of one number or a list that may be empty or hold one."""
    found = [value] if isinstance(value, int) else list(value)
    found = found or list(default)
    return found * rank if len(found) == 1 else found


@dataclass(frozen=True)
class Windows:
    """Windows over the last dimensions: each is `window` wide, begins `step` behind the one before it, and `pad`
    outside of the first; its elements are `spread` apart. `sizes`: of what lies under the windows."""

    sizes: tuple[Size, ...]
    window: list[int]
    step: list[int]
    pad: list[int]
    spread: list[int]

    @property
    def rank(self) -> int:
        return len(self.window)

    def place(self, i: Sequence[Expr], r: Sequence[Expr]) -> list[Expr]:
        """Which element the one with the number r of window i is; maybe outside."""
        return [
            i[k - self.rank] * self.step[k] + r[k] * self.spread[k] - self.pad[k]
            for k in range(self.rank)
        ]

    def count(self, low: Lowering, i: Sequence[Expr], padded: bool) -> Scalar:
        """How many elements window i has; `padded`: with those of the padding."""
        count = low.const(1, int64)
        for k in range(self.rank):
            first = low.position(i[k - self.rank] * self.step[k] - self.pad[k])
            last = _least(first + self.window[k], low.position(expr(self.sizes[k]) + self.pad[k]))
            if not padded:
                first, last = (
                    where(first > 0, first, 0),
                    _least(last, low.position(expr(self.sizes[k]))),
                )
            count = count * (last - first)
        return count

    def numbers(self, r: Expr) -> list[Expr]:
        """The numbers along each dimension, of a number of all elements of a window."""
        found: list[Expr] = []
        for n in reversed(self.window):
            found.insert(0, r % n)
            r = r // n
        return found


def _least(a: Scalar, b: Scalar) -> Scalar:
    return where(a < b, a, b)


def _windows(
    rank: int, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any = 1
) -> Windows:
    window = _numbers(kernel, rank)
    return Windows(
        tuple(x.shape[-rank:]), window, _numbers(stride, rank, window), _numbers(padding, rank),
        _numbers(dilation, rank),
    )  # fmt: skip


# --- means --------------------------------------------------------------------------------------------------------
def _divisor(
    low: Lowering, w: Windows, i: Sequence[Expr], padded: bool, override: int | None, inside: dtype
) -> Scalar:
    """What the sum of window i is divided by."""
    return low.const(override, inside) if override else w.count(low, i, padded).to(inside)


def _avg_pool(
    rank: int, low: Lowering, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    w, inside = _windows(rank, x, kernel, stride, padding), accumulator_of(low.elem)

    def body(i: list[Expr]) -> Scalar:
        def element(r: list[Expr]) -> Scalar:
            place = w.place(i, r)
            return low.load(x, [*i[:-rank], *place], low.all_within(place, w.sizes)).to(inside)

        total = low.reduce("sum", w.window, element)
        by = _divisor(low, w, i, count_include_pad, divisor_override, inside)
        return (total / by).rounded(low.elem)

    return low.map(body)


def _avg_pool_backward(
    rank: int, low: Lowering, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    """Each element adds up the shares of the windows that it lies in, which are few."""
    w, inside = _windows(rank, x, kernel, stride, padding), accumulator_of(low.elem)
    outs = grad.shape[-rank:]

    def body(i: list[Expr]) -> Scalar:
        def share(r: list[Expr]) -> Scalar:
            behind = [i[k - rank] + w.pad[k] for k in range(rank)]
            which = [behind[k] // w.step[k] - r[k] for k in range(rank)]
            held = low.all_within(which, outs)
            reach = low.all_within(
                [behind[k] - which[k] * w.step[k] for k in range(rank)], w.window
            )
            held = reach if held is None else held if reach is None else held & reach
            value = low.load(grad, [*i[:-rank], *which], held).to(inside)
            by = _divisor(low, w, which, count_include_pad, divisor_override, inside)
            # The number of elements of a window that there is not may be 0.
            return value / (by if held is None else where(held, by, 1))

        most = [-(-n // s) for n, s in zip(w.window, w.step, strict=True)]
        return low.reduce("sum", most, share).rounded(low.elem)

    return low.map(body)


# --- maxima -------------------------------------------------------------------------------------------------------
def _max_pool(
    rank: int, low: Lowering, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> list[Tensor]:  # fmt: skip
    w = _windows(rank, x, kernel, stride, padding, dilation)
    return _largest(low, x, w, lambda i, r: w.place(i, w.numbers(r)))


def _largest(
    low: Lowering,
    x: Tensor,
    w: Windows,
    place: Callable[[list[Expr], Expr], list[Expr]],
    inside: Callable[[list[Expr], Expr], Scalar | None] = lambda i, r: None,
) -> list[Tensor]:
    """(maxima, their places in the last dimensions) over windows, whose elements are at `place(i, r)`, where these are
    inside."""
    rank, sizes, least = w.rank, w.sizes, lowest(element_of(torch_type(x.elem)))

    def body(i: list[Expr]) -> list[Scalar]:
        def element(r: list[Expr]) -> Scalar:
            at = place(i, r[0])
            held, here = low.all_within(at, sizes), inside(i, r[0])
            held = here if held is None else held if here is None else held & here
            return low.load(x, [*i[:-rank], *at], held, None if held is None else least)

        value, found = low.arg_reduce("max", product(w.window), element, last_nan=True)
        flat = expr(0)
        for n, d, k in zip(sizes, w.spread, place(i, low.computed(found)), strict=True):
            # Where all are the least number the first may be outside: the first inside is as far as k from others.
            flat = flat * n + maximum(k, k % d)
        return [value, low.position(flat)]

    return low.loops(sizes_of(low.out[0].shape), body)


def _max_pool_backward(rank: int, low: Lowering, grad: Tensor, x: Tensor, *args: Any) -> Tensor:
    """The gradients, added up at the places of the maxima, which are the last argument."""
    places, sizes = args[-1], x.shape[-rank:]
    zero = low.inner(x.shape, lambda i: low.const(0, grad.elem))[0]

    def body(i: list[Expr]) -> tuple[list[Any], Scalar]:
        flat = low.computed(low.load(places, i))
        at: list[Expr] = []
        for n in reversed(sizes[1:]):
            at.insert(0, flat % n)
            flat = flat // n
        return [*i[:-rank], flat, *at], low.load(grad, i)

    return scattered(low, zero, grad.shape, body, "add")


def _from_windows(
    rank: int, low: Lowering, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, places: Tensor,
) -> Tensor:  # fmt: skip
    """Each element adds up the gradients of those of its windows whose maximum it is."""
    w, inside = _windows(rank, x, kernel, stride, padding, dilation), accumulator_of(low.elem)
    reach = zip(w.window, w.spread, w.step, strict=True)
    most, outs = [-(-((n - 1) * d + 1) // s) for n, d, s in reach], grad.shape[-rank:]
    if prod(most) > MOST_WINDOWS:
        return _max_pool_backward(rank, low, grad, x, places)

    def body(i: list[Expr]) -> Scalar:
        here = expr(0)
        for n, k in zip(w.sizes, i[-rank:], strict=True):
            here = here * n + k

        def share(r: list[Expr]) -> Scalar:
            which = [(i[k - rank] + w.pad[k]) // w.step[k] - r[k] for k in range(rank)]
            at, held = [*i[:-rank], *which], low.all_within(which, outs)
            place = low.load(places, at, held, None if held is None else -1)
            return where(place.eq(low.position(here)), low.load(grad, at, held).to(inside), 0)

        return low.reduce("sum", most, share).rounded(low.elem)

    return low.map(body)


def _adaptive_max_pool(rank: int, low: Lowering, x: Tensor, _: Any) -> list[Tensor]:
    """Windows that share the elements evenly: they differ in width by one at most."""
    sizes, outs = x.shape[-rank:], sizes_of(low.out[0].shape)[-rank:]
    if not all(isinstance(n, int) for n in (*sizes, *outs)):
        raise NotLowered("windows of symbolic widths")
    widths = [
        max(-(-(o + 1) * n // m) - o * n // m for o in range(m))  # type: ignore[arg-type]
        for n, m in zip(sizes, outs, strict=True)
    ]
    w = Windows(tuple(sizes), widths, [1] * rank, [0] * rank, [1] * rank)

    def bound(i: list[Expr], k: int, over: int) -> Expr:
        """Where the window begins (over = 0), or the rounded-up end of it (over = 1)."""
        j = i[k - rank]
        return (
            j * sizes[k] // outs[k] if not over else ((j + 1) * sizes[k] + outs[k] - 1) // outs[k]
        )

    def place(i: list[Expr], r: Expr) -> list[Expr]:
        return [bound(i, k, 0) + n for k, n in enumerate(w.numbers(r))]

    def inside(i: list[Expr], r: Expr) -> Scalar | None:
        found: Scalar | None = None
        for k, n in enumerate(place(i, r)):
            below = low.position(n) < low.position(bound(i, k, 1))
            found = below if found is None else found & below
        return found

    return _largest(low, x, w, place, inside)


for _rank in (2, 3):
    rule(f"avg_pool{_rank}d")(partial(_avg_pool, _rank))
    rule(f"avg_pool{_rank}d_backward")(partial(_avg_pool_backward, _rank))
    rule(f"max_pool{_rank}d_with_indices")(partial(_max_pool, _rank))
    rule(f"max_pool{_rank}d_with_indices_backward")(partial(_from_windows, _rank))
    rule(f"adaptive_max_pool{_rank}d")(partial(_adaptive_max_pool, _rank))
    rule(f"adaptive_max_pool{_rank}d_backward")(partial(_max_pool_backward, _rank))


# --- enlargement ----------------------------------------------------------------------------------------------------
def _nearest_backward(
    rank: int, low: Lowering, grad: Tensor, _: Any, shape: Sequence[Size], *scales: Any
) -> Tensor:
    """Sums over the elements that an element was repeated to, where it was repeated equally often."""
    times = [
        n // m if isinstance(n, int) and isinstance(m, int) and m else 0
        for n, m in zip(grad.shape[-rank:], shape[-rank:], strict=True)
    ]
    repeated = [t * m for t, m in zip(times, shape[-rank:], strict=True)]
    fits = all(s is None or s == t for s, t in zip(scales, times, strict=False))
    if repeated != list(grad.shape[-rank:]) or not fits:
        raise NotLowered("an enlargement by no whole number")
    inside = accumulator_of(low.elem)

    def body(i: list[Expr]) -> Scalar:
        def element(r: list[Expr]) -> Scalar:
            at = [i[k - rank] * times[k] + r[k] for k in range(rank)]
            return low.load(grad, [*i[:-rank], *at]).to(inside)

        return low.reduce("sum", times, element).rounded(low.elem)

    return low.map(body)


for _rank in (1, 2, 3):
    rule(f"upsample_nearest{_rank}d_backward")(partial(_nearest_backward, _rank))
    rule(f"_upsample_nearest_exact{_rank}d_backward")(partial(_nearest_backward, _rank))
