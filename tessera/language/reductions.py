"""Operations written in the language itself: reductions, scans, softmax, and a swizzle of grid indices.

Every function here is inlined into the kernel that calls it. Names with an underscore are combine functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tessera.errors import InvalidArgument
from tessera.language import arithmetic, combine, creation, hints
from tessera.language.aggregate import constexpr_function
from tessera.language.callable import library

__all__ = [
    "argmax", "argmin", "cdiv", "cumprod", "cumsum", "max", "min", "reduce_or", "sigmoid", "softmax", "sum",
    "swizzle2d", "xor_sum",
]  # fmt: skip

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.operand_types import Operand
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr


@constexpr_function
def log2_of(n: int) -> int:
    """Return log2 of a power of two."""
    return n.bit_length() - 1


@constexpr_function
def normal_dim(dim: int | None, rank: int) -> int:
    """Return a dimension counted from the front; None means the last one."""
    if dim is not None and not -rank <= dim < rank:
        raise InvalidArgument(f"invalid axis {dim}. Expected {-rank} <= axis < {rank}")
    return rank - 1 if dim is None else dim % rank


@constexpr_function
def total(dims: Sequence[int]) -> int:
    """Return the product of extents."""
    n = 1
    for d in dims:
        n *= d
    return n


# --- small helpers --------------------------------------------------------------------------------------
@library
def cdiv(x: Operand, div: Operand) -> Any:
    """`x / div` rounded up, element by element, of ints with `div` > 0; the dtype is that of `x + div`.

    Python numbers give a compile-time number. `tessera.cdiv` is the same on the host.

    Raises:
        type-mismatch: an operand is a float: `tl.cdiv(x, 4)`.

    Example:
        >>> tl.cdiv(n, 4)
        int32[8]: 1, 1, 1, 1, 2, 3, 1, 2
    """
    return (x + (div - 1)) // div


@library
def sigmoid(x: tensor) -> tensor:
    """1 / (1 + exp(-x)), element by element, of fp32 or fp64.

    Raises:
        type-mismatch: the dtype is another one: `tl.sigmoid(n)`.

    Example:
        >>> tl.sigmoid(x)
        fp32[8]: 0.119203, 0.268941, 0.377541, 0.5, 0.622459, 0.731059, 0.880797, 0.952574
    """
    return 1 / (1 + arithmetic.exp(-x))


@library
def softmax(
    x: tensor,
    dim: int | None = None,
    keep_dims: constexpr = False,
    ieee_rounding: constexpr = False,
) -> tensor:
    """exp(x) divided by its sum along `dim` (0 by default), computed without overflow, of fp32 or fp64.

    The result has the shape and the dtype of `x`. `ieee_rounding` rounds the division correctly; `keep_dims` is
    accepted for compatibility and changes nothing.

    Raises:
        type-mismatch: the dtype is another one: `tl.softmax(n)`.
        invalid-argument: there is no such dimension: `tl.softmax(x, 1)`.

    Example:
        >>> tl.softmax(x)
        fp32[8]: 0.00398615, 0.0108355, 0.0178647, 0.0294539, 0.0485613, 0.0800641, 0.217637, 0.591598
    """
    axis: constexpr = 0 if dim is None else dim
    z = x - max(x, axis, keep_dims=True)
    num = arithmetic.exp(z)
    den = sum(num, axis, keep_dims=True)
    return arithmetic.fdiv(num, den, ieee_rounding)


@library
def swizzle2d(i: Operand, j: Operand, size_i: Operand, size_j: Operand, size_g: Operand):
    """Indices (i, j) of a grid in row-major order, turned into an order that is column-major in groups of rows.

    The grid has `size_i` rows and `size_j` columns, a group `size_g` rows; the last group may have fewer. The result
    is a tuple, the new i and j in the common shape of the operands. Programs that run at the same time then share
    tiles of both operands of a matmul.

    Raises:
        type-mismatch: an index is a float: `tl.swizzle2d(x, x, 2, 4, 2)`.

    Example:
        >>> u, v = tl.swizzle2d(i // 4, i % 4, 2, 4, 2)
        >>> u * 10 + v
        int32[8]: 0, 10, 1, 11, 2, 12, 3, 13
    """
    flat = i * size_j + j
    per_group = size_g * size_j
    first = flat // per_group * size_g
    rows = arithmetic.minimum(size_i - first, size_g)
    rest = flat % per_group
    return first + rest % rows, rest // rows


# --- reductions -------------------------------------------------------------------------------------------
@library
def _add(a: tensor, b: tensor):
    return a + b


@library
def _mul(a: tensor, b: tensor):
    return a * b


@library
def _max(a: tensor, b: tensor):
    return arithmetic.maximum(a, b)


@library
def _min(a: tensor, b: tensor):
    return arithmetic.minimum(a, b)


@library
def _xor(a: tensor, b: tensor):
    return a ^ b


@library
def _or(a: tensor, b: tensor):
    return a | b


@library
def _first_max(value1: tensor, index1: tensor, value2: tensor, index2: tensor):
    take = (value1 > value2) | ((value1 == value2) & (index1 < index2))
    take = _or_nan(take, value2)
    return arithmetic.where(take, value1, value2), arithmetic.where(take, index1, index2)


@library
def _any_max(value1: tensor, index1: tensor, value2: tensor, index2: tensor):
    take = _or_nan(value1 > value2, value2)
    return arithmetic.where(take, value1, value2), arithmetic.where(take, index1, index2)


@library
def _first_min(value1: tensor, index1: tensor, value2: tensor, index2: tensor):
    take = (value1 < value2) | ((value1 == value2) & (index1 < index2))
    take = _or_nan(take, value2)
    return arithmetic.where(take, value1, value2), arithmetic.where(take, index1, index2)


@library
def _any_min(value1: tensor, index1: tensor, value2: tensor, index2: tensor):
    take = _or_nan(value1 < value2, value2)
    return arithmetic.where(take, value1, value2), arithmetic.where(take, index1, index2)


@library
def _or_nan(take: tensor, value2: tensor):
    """NaN loses on either side: every comparison with it on the left is false, and on the right it is tested for."""
    if value2.dtype.is_floating():
        return take | (value2 != value2)
    else:
        return take


@library
def _indices_along(x: tensor, axis: constexpr):
    """Return 0, 1, … along `axis` in the shape of `x`."""
    rank: constexpr = len(x.shape)
    left: constexpr = normal_dim(axis, rank)
    n: constexpr = x.shape[left]
    index = creation.reshape(creation.arange(0, n), [1] * left + [n] + [1] * (rank - 1 - left))
    return creation.broadcast_to(index, x.shape)


@library
def _reduce_with_indices(x: tensor, axis: constexpr, combine_fn: constexpr, keep_dims: constexpr):
    hints.static_assert(axis is not None, "an axis is needed to return indices")
    return combine.reduce((x, _indices_along(x, axis)), axis, combine_fn, keep_dims=keep_dims)


@library
def sum(
    input: tensor, axis: int | None = None, keep_dims: constexpr = False, dtype: constexpr = None
) -> tensor:
    """Sum of the elements of a tile along `axis`, or of all elements (None).

    The result has the shape of `input` without that dimension, or with extent 1 there if `keep_dims`. It is
    accumulated in `dtype` if given (the input is cast first), in int32 or uint32 for narrower ints, else in the dtype
    of `input`.

    Raises:
        invalid-argument: there is no such dimension: `tl.sum(n, 1)`.
        shape-mismatch: `input` is a scalar: `tl.sum(3)`.
        type-mismatch: `input` is a pointer: `tl.sum(X)`.

    Example:
        >>> tl.sum(tl.reshape(n, 2, 4), axis=1)
        int32[2]: 9, 22
    """
    return combine.reduce(combine.widen_for_sum(input, dtype), axis, _add, keep_dims=keep_dims)


@library
def max(
    input: tensor,
    axis: int | None = None,
    return_indices: constexpr = False,
    return_indices_tie_break_left: constexpr = True,
    keep_dims: constexpr = False,
):
    """Maximum of the elements of a tile along `axis`, or of all elements (None); NaN is ignored.

    The shape is as for `sum`; dtypes below 32 bits give fp32 or int32. With `return_indices` the result is a pair: the
    maximum in the dtype of `input` (bf16: fp32), and its int32 index, the lowest among equals if
    `return_indices_tie_break_left`.

    Raises:
        invalid-argument: there is no such dimension: `tl.max(n, 1)`.
        static-assert: indices are asked for without an axis: `tl.max(n, return_indices=True)`.
        shape-mismatch: `input` is a scalar: `tl.max(3)`.

    Example:
        >>> tl.max(x)
        fp32: 3
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
    input: tensor,
    axis: int | None = None,
    return_indices: constexpr = False,
    return_indices_tie_break_left: constexpr = True,
    keep_dims: constexpr = False,
):
    """Minimum of the elements of a tile along `axis`, or of all elements (None); NaN is ignored.

    Shapes, dtypes and indices are as for `max`.

    Raises:
        invalid-argument: there is no such dimension: `tl.min(n, 1)`.
        static-assert: indices are asked for without an axis: `tl.min(n, return_indices=True)`.

    Example:
        >>> value, index = tl.min(n, 0, return_indices=True)
        >>> value * 10 + index
        int32: 11
    """
    x = combine.widen_for_max(input, return_indices)
    if return_indices:
        if return_indices_tie_break_left:
            return _reduce_with_indices(x, axis, _first_min, keep_dims)
        else:
            return _reduce_with_indices(x, axis, _any_min, keep_dims)
    else:
        return combine.reduce(x, axis, _min, keep_dims=keep_dims)


@library
def argmax(
    input: tensor, axis: int | None, tie_break_left: constexpr = True, keep_dims: constexpr = False
) -> tensor:
    """Index (int32) of the maximum along `axis`, the lowest among equals if `tie_break_left`.

    The shape is as for `sum`. NaN is ignored; where all elements are NaN the index is any.

    Raises:
        static-assert: there is no axis: `tl.argmax(n, None)`.
        invalid-argument: there is no such dimension: `tl.argmax(n, 1)`.

    Example:
        >>> tl.argmax(n, 0)
        int32: 5
    """
    return max(input, axis, True, tie_break_left, keep_dims)[1]


@library
def argmin(
    input: tensor, axis: int | None, tie_break_left: constexpr = True, keep_dims: constexpr = False
) -> tensor:
    """Index (int32) of the minimum along `axis`, the lowest among equals if `tie_break_left`.

    The shape is as for `sum`. NaN is ignored; where all elements are NaN the index is any.

    Raises:
        static-assert: there is no axis: `tl.argmin(n, None)`.
        invalid-argument: there is no such dimension: `tl.argmin(n, 1)`.

    Example:
        >>> tl.argmin(n, 0)
        int32: 1
    """
    return min(input, axis, True, tie_break_left, keep_dims)[1]


@library
def xor_sum(input: tensor, axis: int | None = None, keep_dims: constexpr = False) -> tensor:
    """Exclusive or of the elements along `axis`, or of all elements (None); ints only, whose dtype stays.

    Raises:
        static-assert: the dtype is a float: `tl.xor_sum(x)`.
        invalid-argument: there is no such dimension: `tl.xor_sum(n, 1)`.

    Example:
        >>> tl.xor_sum(n)
        int32: 15
    """
    hints.static_assert(input.dtype.is_int(), "xor_sum only supported for integers")
    return combine.reduce(input, axis, _xor, keep_dims=keep_dims)


@library
def reduce_or(input: tensor, axis: int | None, keep_dims: constexpr = False) -> tensor:
    """Bitwise or of the elements along `axis`, or of all elements (None); ints only, whose dtype stays.

    Raises:
        static-assert: the dtype is a float: `tl.reduce_or(x, 0)`.
        invalid-argument: there is no such dimension: `tl.reduce_or(n, 1)`.

    Example:
        >>> tl.reduce_or(n, 0)
        int32: 15
    """
    hints.static_assert(input.dtype.is_int(), "reduce_or only supported for integers")
    return combine.reduce(input, axis, _or, keep_dims=keep_dims)


# --- scans ------------------------------------------------------------------------------------------------
@library
def cumsum(
    input: tensor, axis: int | None = 0, reverse: constexpr = False, dtype: constexpr = None
) -> tensor:
    """Inclusive running sum along `axis`, from the end if `reverse`, in the shape of `input`.

    The dtype is as for `sum`, except that bf16 gives fp32.

    Raises:
        invalid-argument: there is no such dimension: `tl.cumsum(n, 1)`.
        shape-mismatch: `input` is a scalar: `tl.cumsum(3)`.

    Example:
        >>> tl.cumsum(n)
        int32[8]: 3, 4, 8, 9, 14, 23, 25, 31
    """
    x = combine.promote_bf16(combine.widen_for_sum(input, dtype))
    return combine.associative_scan(x, axis, _add, reverse)


@library
def cumprod(
    input: tensor, axis: int | None = 0, reverse: constexpr = False, dtype: constexpr = None
) -> tensor:
    """Inclusive running product along `axis`, from the end if `reverse`, in the shape of `input`.

    It is computed in `dtype` if given (the input is cast first); else bf16 gives fp32, and ints keep their width.

    Raises:
        invalid-argument: there is no such dimension: `tl.cumprod(n, 1)`.
        shape-mismatch: `input` is a scalar: `tl.cumprod(tl.num_programs(0))`.

    Example:
        >>> tl.cumprod(n)
        int32[8]: 3, 3, 12, 12, 60, 540, 1080, 6480
    """
    if dtype is None:
        x = combine.promote_bf16(input)
    else:
        x = input.to(dtype)
    return combine.associative_scan(x, axis, _mul, reverse)
