"""Operations written in the language itself that order elements: `flip`, `sort`, `topk`, `bitonic_merge`.

Every function here is inlined into the kernel that calls it.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.language import arithmetic, combine, creation, hints, target_info, values
from tessera.language.callable import library
from tessera.language.reductions import _xor, log2_of, max, min, normal_dim, total

__all__ = ["bitonic_merge", "flip", "sort", "topk"]

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr

LAST: constexpr = values.constexpr(
    "only minor dimension is currently supported: exchange the two of a matrix by tl.trans(x), and back"
)


@library
def flip(x: tensor, dim: int | None = None) -> tensor:
    """The elements in reverse order along `dim` (None: the last), bit for bit, in the shape and dtype of `x`.

    Raises:
        invalid-argument: there is no such dimension: `tl.flip(n, 1)`.

    Example:
        >>> tl.flip(n, 0)
        int32[8]: 6, 2, 9, 5, 1, 4, 1, 3
    """
    axis: constexpr = normal_dim(dim, len(x.shape))
    steps: constexpr = log2_of(x.shape[axis])
    # One dimension per bit of the index; reversing exchanges 0 and 1 in each.
    y = creation.reshape(combine.bits_of(x), x.shape[:axis] + [2] * steps + x.shape[axis + 1 :])
    for i in hints.static_range(steps):
        y = y ^ combine.reduce(y, axis + i, _xor, keep_dims=True)
    return combine.from_bits(creation.reshape(y, x.shape), x.dtype)


@library
def _exchange(x: tensor, flip: tensor, bit: constexpr):
    """Order each pair of elements whose indices differ in bit `bit`: ascending, or descending where `flip`."""
    n: constexpr = total(x.shape)
    bits = creation.reshape(combine.bits_of(x), [n // 2 ** (bit + 1), 2, 2**bit])
    partner = bits ^ combine.reduce(bits, 1, _xor, keep_dims=True)
    upper = creation.reshape(creation.arange(0, 2), [1, 2, 1]) == 1
    here = combine.from_bits(bits, x.dtype)
    there = combine.from_bits(partner, x.dtype)
    # Both elements of a pair compute the same comparison: no element is lost or duplicated, whatever compares equal.
    low = arithmetic.where(upper, there, here)
    high = arithmetic.where(upper, here, there)
    swap = (low > high) != flip
    return creation.reshape(arithmetic.where(swap, there, here), x.shape)


@library
def _merge(x: tensor, stage: constexpr, order: constexpr):
    """Sort each run of 2**stage elements, which is bitonic: ascending, descending (order 0, 1) or alternating (2)."""
    n: constexpr = total(x.shape)
    shape: constexpr = x.shape
    y = _one_row(x)
    for i in hints.static_range(stage):
        y = _merge_step(y, n, stage, order, stage - 1 - i)
    return creation.reshape(y, shape)


@library
def _one_row(x: tensor):
    """The rows behind each other on CPUs, where loops over elements of one dimension need no divisions."""
    if target_info.current_target().backend == "cpu":
        return creation.reshape(x, [total(x.shape)])
    else:
        return x


@library
def _merge_step(x: tensor, n: constexpr, stage: constexpr, order: constexpr, bit: constexpr):
    if order == 2:
        runs: constexpr = n // 2 ** (stage + 1)
        parity = creation.reshape(creation.arange(0, 2), [1, 2, 1]) == 1
        parity = creation.broadcast_to(parity, [runs, 2, 2 ** (stage - bit - 1)])
        return _exchange(x, creation.reshape(parity, [n // 2 ** (bit + 1), 1, 1]), bit)
    else:
        return _exchange(x, order == 1, bit)


@library
def _far_exchanges(x: tensor, stage: int, flip: tensor, near: constexpr):
    """The steps of `_merge` at bits from `near` on, for a stage known at run time, in rows of 2**near elements:
    elements of two rows are exchanged whose numbers differ in one bit. Descending where `flip`."""
    n: constexpr = total(x.shape)
    runs: constexpr = n // 2**near
    row = creation.reshape(creation.arange(0, runs), [runs, 1])
    for distance_bit in range(stage - 1 - near, -1, -1):
        distance = 1 << distance_bit
        other = creation.broadcast_to(row ^ distance, [runs, 2**near])
        there = combine.gather(x, other, 0)
        upper = (row & distance) != 0
        low = arithmetic.where(upper, there, x)
        high = arithmetic.where(upper, x, there)
        x = arithmetic.where((low > high) != flip, there, x)
    return x


@library
def _sort_by_loops(x: tensor, stages: constexpr, descending: constexpr, near: constexpr):
    """As `sort`, by a network whose later stages are one loop: the code does not grow with the square of `stages`."""
    n: constexpr = total(x.shape)
    runs: constexpr = n // 2**near
    shape: constexpr = x.shape
    x = _one_row(x)
    for i in hints.static_range(1, near + 1):
        x = _merge(x, i, 2)
    y = creation.reshape(x, [runs, 2**near])
    run = creation.reshape(creation.arange(0, runs) % 2 ** (stages - near), [runs, 1])
    for stage in range(near + 1, stages + 1):
        flip = ((run >> (stage - near)) & 1) != 0
        if descending:
            flip = flip | (stage == stages)
        z = creation.reshape(_far_exchanges(y, stage, flip, near), [n])
        for i in hints.static_range(near):
            bit: constexpr = near - 1 - i
            each = creation.broadcast_to(flip, [runs, 2 ** (near - 1 - bit)])
            z = _exchange(z, creation.reshape(each, [n // 2 ** (bit + 1), 1, 1]), bit)
        y = creation.reshape(z, [runs, 2**near])
    return creation.reshape(y, shape)


@library
def sort(x: tensor, dim: constexpr = None, descending: constexpr = False) -> tensor:
    """The elements sorted along the last dimension, in the shape and dtype of `x`.

    The sort is not stable, and where NaNs end up is unspecified. Source: K. E. Batcher, "Sorting networks and their
    applications", AFIPS 1968 (bitonic sort).

    Raises:
        static-assert: `dim` is not the last dimension: `tl.sort(a, 0)`.
        invalid-argument: there is no such dimension: `tl.sort(n, 1)`.

    Example:
        >>> tl.sort(n)
        int32[8]: 1, 1, 2, 3, 4, 5, 6, 9
    """
    hints.static_assert(len(x.shape) > 0, "sort() takes a tile, not a scalar")
    axis: constexpr = normal_dim(dim, len(x.shape))
    hints.static_assert(axis == len(x.shape) - 1, LAST)
    stages: constexpr = log2_of(x.shape[axis])
    # A step is a loop over memory on CPUs; GPUs exchange by shuffles, which have to know the bit.
    if target_info.current_target().backend == "cpu" and stages > 10:
        return _sort_by_loops(x, stages, descending, 7)  # rows of 128 elements are whole vectors
    else:
        for i in hints.static_range(1, stages + 1):
            x = _merge(x, i, 2 if i < stages else descending)
        return x


@library
def bitonic_merge(x: tensor, dim: constexpr = None, descending: constexpr = False):
    """A sequence that rises and then falls along the last dimension, sorted, in the shape and dtype of `x`.

    Source: as for `sort`, of which it is the last step.

    Raises:
        static-assert: `dim` is not the last dimension: `tl.bitonic_merge(a, 0)`.

    Example:
        >>> tl.bitonic_merge(tl.where(i < 4, i * 2, 15 - i * 2))
        int32[8]: 0, 1, 2, 3, 4, 5, 6, 7
    """
    axis: constexpr = normal_dim(dim, len(x.shape))
    hints.static_assert(axis == len(x.shape) - 1, LAST)
    return _merge(x, log2_of(x.shape[axis]), descending)


@library
def topk(x: tensor, k: constexpr, dim: constexpr = None, descending: constexpr = True):
    """The `k` largest elements along the last dimension, whose extent becomes k, sorted from the largest on.

    Without `descending` they are the smallest, from the smallest on. `k` is a power of two, at most the extent. Dtypes
    below 32 bits widen as in `max` if k is less than the extent.

    Raises:
        static-assert: `k` is no power of two: `tl.topk(n, 3)`.
        static-assert: `k` is larger than the extent: `tl.topk(n, 16)`.
        static-assert: `dim` is not the last dimension: `tl.topk(a, 4, 0)`.

    Example:
        >>> tl.topk(n, 4)
        int32[4]: 9, 6, 5, 4
    """
    axis: constexpr = normal_dim(dim, len(x.shape))
    hints.static_assert(axis == len(x.shape) - 1, LAST)
    small: constexpr = log2_of(k)
    stages: constexpr = log2_of(x.shape[axis])
    hints.static_assert(k == 2**small, "k must be a power of two")
    hints.static_assert(small <= stages, "k must not exceed the extent")
    for i in hints.static_range(1, small + 1):
        x = _merge(x, i, 2 if i < stages else descending)
    # Runs of k, alternately up and down: of each pair of runs the k better elements, taken pairwise, are bitonic again.
    for i in hints.static_range(small, stages):
        x = _better_half(x, small, descending)
        x = _merge(x, small, 2 if i < stages - 1 else descending)
    return x


@library
def _better_half(x: tensor, small: constexpr, descending: constexpr):
    lead: constexpr = x.shape[:-1]
    n: constexpr = x.shape[-1]
    runs = creation.reshape(x, [*lead, n // 2 ** (small + 1), 2, 2**small])
    if descending:
        best = max(runs, axis=len(lead) + 1)
    else:
        best = min(runs, axis=len(lead) + 1)
    return creation.reshape(best, [*lead, n // 2])
