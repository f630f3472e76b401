"""Declares the program model, tile creation and shape manipulation: `program_id`, `arange`, `reshape`, `trans`, …"""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.language.builtin import builtin

if TYPE_CHECKING:
    from tessera.language.operand_types import (
        BoolLike,
        DTypeLike,
        IntLike,
        Ints,
        Option,
        TensorLike,
    )
    from tessera.language.values import tensor
    from tessera.language.values import tuple as tl_tuple

__all__ = [
    "arange", "broadcast", "broadcast_to", "cast", "cat", "expand_dims", "full", "interleave", "item", "join",
    "num_programs", "permute", "program_id", "ravel", "reshape", "split", "squeeze", "to_tensor", "trans",
    "unsqueeze", "view", "zeros", "zeros_like",
]  # fmt: skip


# --- program model ------------------------------------------------------------------------------------
@builtin
def program_id(axis: IntLike) -> tensor:
    """Index of this program instance along an axis of the launch grid: an int32 scalar.

    `axis` is the compile-time int 0, 1 or 2; an axis that the grid does not have gives 0.

    Raises:
        invalid-argument: the axis is another number: `tl.program_id(3)`.

    Example:
        >>> tl.program_id(0)
        int32: 0
    """


@builtin
def num_programs(axis: IntLike) -> tensor:
    """Extent of the launch grid along an axis: an int32 scalar.

    `axis` is the compile-time int 0, 1 or 2; an axis that the grid does not have gives 1.

    Raises:
        invalid-argument: the axis is another number: `tl.num_programs(3)`.

    Example:
        >>> tl.num_programs(0)
        int32: 1
    """


# --- creation -----------------------------------------------------------------------------------------
@builtin
def arange(start: IntLike, end: IntLike) -> tensor:
    """The int32 tile `[start, start + 1, …, end - 1]` of shape [end - start].

    Both bounds are compile-time ints in int32's range. `end - start` is a power of two; `start` need not be one.

    Raises:
        not-constexpr: a bound is known at run time only: `tl.arange(0, tl.num_programs(0))`.
        invalid-argument: the extent is no power of two: `tl.arange(0, 3)`.
        invalid-argument: the extent is not positive: `tl.arange(4, 4)`.
        invalid-argument: a bound is beyond int32: `tl.arange(0, 2**32)`.

    Example:
        >>> tl.arange(4, 8)
        int32[4]: 4, 5, 6, 7
    """


@builtin
def full(shape: Ints, value: TensorLike, dtype: DTypeLike) -> tensor:
    """A tile of `shape` whose elements all are `value` cast to `dtype`.

    `shape` is a list of compile-time ints, each a power of two, with at most 2**20 elements; `[]` gives a scalar.
    `value` is a number or a tensor of one element.

    Raises:
        shape-mismatch: an extent is no power of two: `tl.full([3], 1, tl.int32)`.
        shape-mismatch: the value has several elements: `tl.full([4], x, tl.int32)`.
        not-constexpr: an extent is known at run time only: `tl.full([tl.num_programs(0)], 1, tl.int32)`.
        invalid-argument: `dtype` is no dtype: `tl.full([4], 1, "int32")`.

    Example:
        >>> tl.full([2, 2], 7, tl.int32)
        int32[2, 2]: 7, 7, 7, 7
    """


@builtin
def zeros(shape: Ints, dtype: DTypeLike) -> tensor:
    """A tile of `shape` whose elements all are 0 of `dtype`.

    `shape` is as for `full`.

    Raises:
        shape-mismatch: an extent is no power of two: `tl.zeros([3], tl.float32)`.
        invalid-argument: `dtype` is no dtype: `tl.zeros([4], None)`.

    Example:
        >>> tl.zeros([4], tl.float32)
        fp32[4]: 0, 0, 0, 0
    """


@builtin
def zeros_like(input: TensorLike) -> tensor:
    """Zeros in the shape and dtype of `input`.

    Raises:
        type-mismatch: `input` is no tensor or number: `tl.zeros_like("x")`.

    Example:
        >>> tl.zeros_like(x)
        fp32[8]: 0, 0, 0, 0, 0, 0, 0, 0
    """


@builtin
def to_tensor(x: TensorLike) -> tensor:
    """`x` as a tensor: a number becomes a scalar of its default dtype, a tensor stays.

    A bool gives int1, a float fp32, an int the first of int32, uint32, int64 and uint64 that holds it.

    Raises:
        type-mismatch: `x` is neither a tensor nor a number: `tl.to_tensor("x")`.

    Example:
        >>> tl.to_tensor(5)
        int32: 5
    """


@builtin
def cat(input: tensor, other: tensor, can_reorder: BoolLike = False, dim: IntLike = 0) -> tensor:
    """Two tiles of one shape and dtype, one after the other along `dim`, whose extent doubles.

    With `can_reorder` (1-D tiles only) the order of the elements is free.

    Raises:
        shape-mismatch: shapes differ: `tl.cat(i, i16)`.
        shape-mismatch: dtypes differ: `tl.cat(i, x)`.
        invalid-argument: there is no such dimension: `tl.cat(i, n, dim=1)`.

    Example:
        >>> tl.cat(i, n)
        int32[16]: 0, 1, 2, 3, 4, 5, 6, 7, 3, 1, 4, 1, 5, 9, 2, 6
    """


# --- shape --------------------------------------------------------------------------------------------
@builtin
def reshape(input: tensor, *shape: Ints, can_reorder: BoolLike = False) -> tensor:
    """The same elements in row-major order under another shape with as many elements.

    The shape is given as ints or as one tuple of compile-time ints; `()` turns a tile of one element into a scalar.
    The dtype stays. With `can_reorder` the order of the elements is free.

    Raises:
        shape-mismatch: the number of elements changes: `tl.reshape(i, 4)`.
        shape-mismatch: an extent is no power of two: `tl.reshape(i, 3)`.

    Example:
        >>> tl.reshape(i, 2, 4)
        int32[2, 4]: 0, 1, 2, 3, 4, 5, 6, 7
    """


@builtin
def view(input: tensor, *shape: Ints) -> tensor:
    """Deprecated: a `reshape` that may change the order of the elements.

    Raises:
        shape-mismatch: the number of elements changes: `tl.view(i, 4)`.

    Example:
        >>> tl.view(tl.zeros([8], tl.int32), 2, 4)
        int32[2, 4]: 0, 0, 0, 0, 0, 0, 0, 0
    """


@builtin
def ravel(x: tensor, can_reorder: BoolLike = False) -> tensor:
    """All elements of `x` as one dimension, in row-major order; with `can_reorder` in any order.

    Raises:
        type-mismatch: `x` is neither a tensor nor a number: `tl.ravel("x")`.

    Example:
        >>> tl.ravel(tl.reshape(i, 2, 4))
        int32[8]: 0, 1, 2, 3, 4, 5, 6, 7
    """


@builtin
def expand_dims(input: TensorLike, axis: Ints) -> tensor:
    """`input` with dimensions of extent 1 inserted at `axis`.

    `axis` is a compile-time int or a tuple of them, counted in the result; negative ones count from its end. `x[:,
    None]` does the same.

    Raises:
        invalid-argument: there is no such dimension: `tl.expand_dims(i, 3)`.
        invalid-argument: a dimension is named twice: `tl.expand_dims(i, (0, 0))`.

    Example:
        >>> tl.expand_dims(i, 0)
        int32[1, 8]: 0, 1, 2, 3, 4, 5, 6, 7
    """


@builtin
def squeeze(x: tensor, dim: IntLike) -> tensor:
    """`x` without its dimension `dim`, whose extent is 1.

    Raises:
        shape-mismatch: the extent is not 1: `tl.squeeze(i, 0)`.
        invalid-argument: there is no such dimension: `tl.squeeze(i, 2)`.

    Example:
        >>> tl.squeeze(tl.reshape(i, 1, 8), 0)
        int32[8]: 0, 1, 2, 3, 4, 5, 6, 7
    """


@builtin
def unsqueeze(x: TensorLike, dim: IntLike) -> tensor:
    """`x` with a dimension of extent 1 inserted, which is dimension `dim` of the result.

    Raises:
        invalid-argument: there is no such dimension: `tl.unsqueeze(i, 3)`.

    Example:
        >>> tl.unsqueeze(i, 1)
        int32[8, 1]: 0, 1, 2, 3, 4, 5, 6, 7
    """


@builtin
def broadcast(input: TensorLike, other: TensorLike) -> tl_tuple:
    """Both operands in their common shape, as a tuple of two; dtypes stay.

    Extents of 1 repeat, and an operand of lower rank gets leading dimensions of extent 1.

    Raises:
        shape-mismatch: extents differ and neither is 1: `tl.broadcast(i, i16)`.

    Example:
        >>> u, v = tl.broadcast(i[:, None], tl.arange(0, 2)[None, :])
        >>> u * 10 + v
        int32[8, 2]: 0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61, 70, 71
    """


@builtin
def broadcast_to(input: TensorLike, *shape: Ints) -> tensor:
    """`input` repeated along its dimensions of extent 1 to `shape`, which has the same rank.

    The shape is given as ints or as one tuple of compile-time ints; the dtype stays.

    Raises:
        shape-mismatch: an extent that changes is not 1: `tl.broadcast_to(i, 16)`.
        shape-mismatch: ranks differ: `tl.broadcast_to(i, 2, 8)`.

    Example:
        >>> tl.broadcast_to(tl.arange(0, 2)[:, None], 2, 4)
        int32[2, 4]: 0, 0, 0, 0, 1, 1, 1, 1
    """


@builtin
def trans(input: tensor, *dims: Ints) -> tensor:
    """`input` with its dimensions permuted by `dims`; without any, with the last two swapped.

    `dims` is a permutation of 0, …, rank - 1, given as ints or as one tuple. `x.T` swaps the last two.

    Raises:
        shape-mismatch: the rank is below 2 and no `dims` are given: `tl.trans(i)`.
        shape-mismatch: `dims` is no permutation: `tl.trans(a, 0, 0)`.

    Example:
        >>> tl.trans(tl.reshape(i, 2, 4))
        int32[4, 2]: 0, 4, 1, 5, 2, 6, 3, 7
    """


@builtin
def permute(input: tensor, *dims: Ints) -> tensor:
    """`input` with its dimensions permuted: dimension i of the result is dimension `dims[i]` of `input`.

    Raises:
        shape-mismatch: `dims` is no permutation of all dimensions: `tl.permute(a, 0)`.

    Example:
        >>> tl.permute(tl.reshape(i, 2, 2, 2), 2, 0, 1)
        int32[2, 2, 2]: 0, 2, 4, 6, 1, 3, 5, 7
    """


@builtin
def join(a: TensorLike, b: TensorLike) -> tensor:
    """Two tensors of one dtype, stacked along a new last dimension of extent 2; they broadcast first.

    Raises:
        type-mismatch: dtypes differ: `tl.join(i, x)`.
        shape-mismatch: the operands do not broadcast: `tl.join(i, i16)`.

    Example:
        >>> tl.join(i, n)
        int32[8, 2]: 0, 3, 1, 1, 2, 4, 3, 1, 4, 5, 5, 9, 6, 2, 7, 6
    """


@builtin
def split(a: tensor) -> tl_tuple:
    """The two slices of a tile along its last dimension, which has extent 2, as a tuple of two.

    A tile of shape [2] gives two scalars. `split` undoes `join`.

    Raises:
        shape-mismatch: the last extent is not 2: `tl.split(i)`.

    Example:
        >>> u, v = tl.split(tl.reshape(i, 4, 2))
        >>> u * v
        int32[4]: 0, 6, 20, 42
    """


@builtin
def interleave(a: TensorLike, b: TensorLike) -> tensor:
    """The elements of `a` and `b` alternating along the last dimension, which doubles: a[0], b[0], a[1], b[1], …

    The operands have one dtype and broadcast first.

    Raises:
        type-mismatch: dtypes differ: `tl.interleave(i, x)`.
        shape-mismatch: the operands do not broadcast: `tl.interleave(i, i16)`.

    Example:
        >>> tl.interleave(tl.arange(0, 4), tl.arange(4, 8))
        int32[8]: 0, 4, 1, 5, 2, 6, 3, 7
    """


@builtin
def item(x: tensor) -> tensor:
    """The element of a tile of one element, as a scalar of its dtype.

    Raises:
        shape-mismatch: there are several elements: `tl.item(i)`.

    Example:
        >>> tl.item(tl.full([1], 3, tl.int32))
        int32: 3
    """


@builtin
def cast(
    input: TensorLike,
    dtype: DTypeLike,
    fp_downcast_rounding: Option = None,
    bitcast: BoolLike = False,
) -> tensor:
    """`input` converted to `dtype` by value, or with `bitcast` its bits taken as a dtype of equal width.

    The shape stays. Floats to ints truncate, ints to narrower ints wrap, and int1 becomes whether the value is not 0.
    `fp_downcast_rounding` ("rtne", the default, or "rtz") may be given where a float becomes a narrower float. The
    method `x.to(dtype)` does the same.

    Raises:
        type-mismatch: a bitcast changes the width: `tl.cast(x, tl.int64, bitcast=True)`.
        type-mismatch: rounding is given for another conversion: `tl.cast(x, tl.int32, fp_downcast_rounding="rtz")`.
        type-mismatch: a pointer becomes a float: `tl.cast(X, tl.float32)`.
        invalid-argument: `dtype` is no dtype: `tl.cast(x, "bf16")`.

    Example:
        >>> tl.cast(x, tl.int32)
        int32[8]: -2, -1, 0, 0, 0, 1, 2, 3
    """
