"""Operations written in the language itself: reductions, scans, softmax, sorting, grid swizzling.

Every function here is inlined into the kernel that calls it. Names with an underscore are combine functions.
"""

# pyright: basic
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.errors import InvalidArgument
from tessera.language import arithmetic, combine, creation, hints
from tessera.language.aggregate import constexpr_function
from tessera.language.callable import library

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
else:
    from tessera.language.values import constexpr


@constexpr_function
def log2_of(n):
    """log2 of a power of two."""
    return n.bit_length() - 1


@constexpr_function
def normal_dim(dim, rank):
    """A dimension counted from the front; None means the last."""
    if dim is not None and not -rank <= dim < rank:
        raise InvalidArgument(f"invalid axis {dim}. Expected {-rank} <= axis < {rank}")
    return rank - 1 if dim is None else dim % rank


@constexpr_function
def total(dims):
    """The product of extents."""
    n = 1
    for d in dims:
        n *= d
    return n


# --- small helpers --------------------------------------------------------------------------------------
@library
def cdiv(x, div):
    """x / div rounded up, for ints; `div` > 0."""
    return (x + (div - 1)) // div


@library
def sigmoid(x):
    """1 / (1 + exp(-x)) of floats (fp32 or fp64)."""
    return 1 / (1 + arithmetic.exp(-x))


@library
def softmax(x, dim=None, keep_dims: constexpr = False, ieee_rounding: constexpr = False):
    """exp(x) normalised to sum 1 along `dim` (default 0), computed without overflow; the shape of `x`.

    `ieee_rounding` divides with correct rounding. `keep_dims` is accepted for compatibility.
    """
    axis: constexpr = 0 if dim is None else dim
    z = x - max(x, axis, keep_dims=True)
    num = arithmetic.exp(z)
    den = sum(num, axis, keep_dims=True)
    return arithmetic.fdiv(num, den, ieee_rounding)


@library
def swizzle2d(i, j, size_i, size_j, size_g):
    """Turn row-major indices (i, j) of a size_i × size_j grid into an order that is column-major in groups of
    `size_g` rows; the last group may be shorter. Returns the new (i, j)."""
    flat = i * size_j + j
    per_group = size_g * size_j
    first = flat // per_group * size_g
    rows = arithmetic.minimum(size_i - first, size_g)
    rest = flat % per_group
    return first + rest % rows, rest // rows


# --- reductions -------------------------------------------------------------------------------------------
@library
def _add(a, b):
    return a + b


@library
def _mul(a, b):
    return a * b


@library
def _max(a, b):
    return arithmetic.maximum(a, b)


@library
def _min(a, b):
    return arithmetic.minimum(a, b)


@library
def _xor(a, b):
    return a ^ b


@library
def _or(a, b):
    return a | b


@library
def _first_max(value1, index1, value2, index2):
    take = (value1 > value2) | ((value1 == value2) & (index1 < index2))
    take = _or_nan(take, value2)
    return arithmetic.where(take, value1, value2), arithmetic.where(take, index1, index2)


@library
def _any_max(value1, index1, value2, index2):
    take = _or_nan(value1 > value2, value2)
    return arithmetic.where(take, value1, value2), arithmetic.where(take, index1, index2)


@library
def _first_min(value1, index1, value2, index2):
    take = (value1 < value2) | ((value1 == value2) & (index1 < index2))
    take = _or_nan(take, value2)
    return arithmetic.where(take, value1, value2), arithmetic.where(take, index1, index2)


@library
def _any_min(value1, index1, value2, index2):
    take = _or_nan(value1 < value2, value2)
    return arithmetic.where(take, value1, value2), arithmetic.where(take, index1, index2)


@library
def _or_nan(take, value2):
    """A NaN loses on either side: on the left every comparison with it is false, on the right it is looked for."""
    if value2.dtype.is_floating():
        return take | (value2 != value2)
    else:
        return take


@library
def _indices_along(x, axis: constexpr):
    """0, 1, … along `axis` in the shape of `x`."""
    rank: constexpr = len(x.shape)
    left: constexpr = normal_dim(axis, rank)
    n: constexpr = x.shape[left]
    index = creation.reshape(creation.arange(0, n), [1] * left + [n] + [1] * (rank - 1 - left))
    return creation.broadcast_to(index, x.shape)


@library
def _reduce_with_indices(x, axis: constexpr, combine_fn: constexpr, keep_dims: constexpr):
    hints.static_assert(axis is not None, "an axis is needed to return indices")
    return combine.reduce((x, _indices_along(x, axis)), axis, combine_fn, keep_dims=keep_dims)


@library
def sum(input, axis=None, keep_dims: constexpr = False, dtype: constexpr = None):
    """Sum along `axis` (None: of all elements).

    Accumulates in `dtype` if given (the input is cast first), in int32 or uint32 for narrower ints, else in the
    input's dtype.
    """
    return combine.reduce(combine.widen_for_sum(input, dtype), axis, _add, keep_dims=keep_dims)


@library
def max(
    input,
    axis=None,
    return_indices: constexpr = False,
    return_indices_tie_break_left: constexpr = True,
    keep_dims: constexpr = False,
):
    """Maximum along `axis` (None: of all elements), ignoring NaN.

    Dtypes below 32 bits give fp32 or int32. With `return_indices` (an axis is needed) a pair of the maximum, in the
    input's dtype (bf16: fp32), and its int32 index: the lowest among equals if `return_indices_tie_break_left`.
    """
    x = combine.widen_for_max(input, return_indices)
    if return_indices:
        if return_indices_tie_break_left:
            return _reduce_with_indices(x, axis, _first_max, keep_dims)
        else:
            return _reduce_with_indices(x, axis, _any_max, keep_dims)
    else:
        return combine.reduce(x, axis, _max, keep_dims=keep_dims)


@library
def min(
    input,
    axis=None,
    return_indices: constexpr = False,
    return_indices_tie_break_left: constexpr = True,
    keep_dims: constexpr = False,
):
    """Minimum along `axis` (None: of all elements), ignoring NaN; dtypes and indices as for `max`."""
    x = combine.widen_for_max(input, return_indices)
    if return_indices:
        if return_indices_tie_break_left:
            return _reduce_with_indices(x, axis, _first_min, keep_dims)
        else:
            return _reduce_with_indices(x, axis, _any_min, keep_dims)
    else:
        return combine.reduce(x, axis, _min, keep_dims=keep_dims)


@library
def argmax(input, axis, tie_break_left: constexpr = True, keep_dims: constexpr = False):
    """Index (int32) of the maximum along `axis`, the lowest among equals if `tie_break_left`; any where all are NaN."""
    return max(input, axis, True, tie_break_left, keep_dims)[1]


@library
def argmin(input, axis, tie_break_left: constexpr = True, keep_dims: constexpr = False):
    """Index (int32) of the minimum along `axis`, the lowest among equals if `tie_break_left`; any where all are NaN."""
    return min(input, axis, True, tie_break_left, keep_dims)[1]


@library
def xor_sum(input, axis=None, keep_dims: constexpr = False):
    """Exclusive or of all elements along `axis`; ints only, dtype kept."""
    hints.static_assert(input.dtype.is_int(), "xor_sum only supported for integers")
    return combine.reduce(input, axis, _xor, keep_dims=keep_dims)


@library
def reduce_or(input, axis, keep_dims: constexpr = False):
    """Bitwise or of all elements along `axis`; ints only, dtype kept."""
    hints.static_assert(input.dtype.is_int(), "reduce_or only supported for integers")
    return combine.reduce(input, axis, _or, keep_dims=keep_dims)


# --- scans ------------------------------------------------------------------------------------------------
@library
def cumsum(input, axis=0, reverse: constexpr = False, dtype: constexpr = None):
    """Inclusive running sum along `axis`, from the end if `reverse`; dtype as `sum`, bf16 gives fp32."""
    x = combine.promote_bf16(combine.widen_for_sum(input, dtype))
    return combine.associative_scan(x, axis, _add, reverse)


@library
def cumprod(input, axis=0, reverse: constexpr = False, dtype: constexpr = None):
    """Inclusive running product along `axis`, from the end if `reverse`.

    Computed in `dtype` if given (the input is cast first); else bf16 gives fp32 and ints keep their width.
    """
    if dtype is None:
        x = combine.promote_bf16(input)
    else:
        x = input.to(dtype)
    return combine.associative_scan(x, axis, _mul, reverse)


# --- order ------------------------------------------------------------------------------------------------
@library
def flip(x, dim=None):
    """The elements in reverse order along `dim` (None: the last), bit for bit."""
    axis: constexpr = normal_dim(dim, len(x.shape))
    steps: constexpr = log2_of(x.shape[axis])
    # One dimension a bit of the index; reversing is exchanging 0 and 1 in each.
    y = creation.reshape(combine.bits_of(x), x.shape[:axis] + [2] * steps + x.shape[axis + 1 :])
    for i in hints.static_range(steps):
        y = y ^ combine.reduce(y, axis + i, _xor, keep_dims=True)
    return combine.from_bits(creation.reshape(y, x.shape), x.dtype)


@library
def _exchange(x, flip, bit: constexpr):
    """Order each pair of elements whose indices differ in bit `bit`: ascending, or descending where `flip`."""
    n: constexpr = total(x.shape)
    bits = creation.reshape(combine.bits_of(x), [n // 2 ** (bit + 1), 2, 2**bit])
    partner = bits ^ combine.reduce(bits, 1, _xor, keep_dims=True)
    upper = creation.reshape(creation.arange(0, 2), [1, 2, 1]) == 1
    here = combine.from_bits(bits, x.dtype)
    there = combine.from_bits(partner, x.dtype)
    # Both elements of a pair compute the same comparison: no element is lost or doubled, whatever compares equal.
    low = arithmetic.where(upper, there, here)
    high = arithmetic.where(upper, here, there)
    swap = (low > high) != flip
    return creation.reshape(arithmetic.where(swap, there, here), x.shape)


@library
def _merge(x, stage: constexpr, order: constexpr):
    """Sort each run of 2**stage elements, bitonic before: ascending, descending (order 0, 1) or in turn (2)."""
    n: constexpr = total(x.shape)
    for i in hints.static_range(stage):
        x = _merge_step(x, n, stage, order, stage - 1 - i)
    return x


@library
def _merge_step(x, n: constexpr, stage: constexpr, order: constexpr, bit: constexpr):
    if order == 2:
        runs: constexpr = n // 2 ** (stage + 1)
        parity = creation.reshape(creation.arange(0, 2), [1, 2, 1]) == 1
        parity = creation.broadcast_to(parity, [runs, 2, 2 ** (stage - bit - 1)])
        return _exchange(x, creation.reshape(parity, [n // 2 ** (bit + 1), 1, 1]), bit)
    else:
        return _exchange(x, order == 1, bit)


@library
def sort(x, dim: constexpr = None, descending: constexpr = False):
    """The elements sorted along the last dimension (bitonic, not stable; where NaNs end up is unspecified)."""
    axis: constexpr = normal_dim(dim, len(x.shape))
    hints.static_assert(axis == len(x.shape) - 1, "only minor dimension is currently supported")
    stages: constexpr = log2_of(x.shape[axis])
    for i in hints.static_range(1, stages + 1):
        x = _merge(x, i, 2 if i < stages else descending)
    return x


@library
def bitonic_merge(x, dim: constexpr = None, descending: constexpr = False):
    """A sequence that rises and then falls along the last dimension, sorted."""
    axis: constexpr = normal_dim(dim, len(x.shape))
    hints.static_assert(axis == len(x.shape) - 1, "only minor dimension is currently supported")
    return _merge(x, log2_of(x.shape[axis]), descending)


@library
def topk(x, k: constexpr, dim: constexpr = None, descending: constexpr = True):
    """The `k` largest elements along the last dimension (the smallest unless `descending`), sorted.

    `k` is a power of two, at most the extent. Dtypes below 32 bits widen as in `max` if k is less than the extent.
    """
    axis: constexpr = normal_dim(dim, len(x.shape))
    hints.static_assert(axis == len(x.shape) - 1, "only minor dimension is currently supported")
    small: constexpr = log2_of(k)
    stages: constexpr = log2_of(x.shape[axis])
    hints.static_assert(k == 2**small, "k must be a power of two")
    hints.static_assert(small <= stages, "k must not exceed the extent")
    for i in hints.static_range(1, small + 1):
        x = _merge(x, i, 2 if i < stages else descending)
    # Runs of k, up and down in turn: of each pair of runs the better k elements are, taken pairwise, bitonic again.
    for i in hints.static_range(small, stages):
        x = _better_half(x, small, descending)
        x = _merge(x, small, 2 if i < stages - 1 else descending)
    return x


@library
def _better_half(x, small: constexpr, descending: constexpr):
    lead: constexpr = x.shape[:-1]
    n: constexpr = x.shape[-1]
    runs = creation.reshape(x, [*lead, n // 2 ** (small + 1), 2, 2**small])
    if descending:
        best = max(runs, axis=len(lead) + 1)
    else:
        best = min(runs, axis=len(lead) + 1)
    return creation.reshape(best, [*lead, n // 2])
