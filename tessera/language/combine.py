"""Operations over whole tiles: `dot`, reductions and scans by a given function, histogram, gather."""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.dtypes import float32
from tessera.language.builtin import builtin

if TYPE_CHECKING:
    from tessera.language.operand_types import (
        BoolLike,
        Combined,
        CombineFunction,
        DTypeLike,
        IntLike,
        Mask,
        Option,
        StrLike,
        TensorLike,
        Tensors,
    )
    from tessera.language.values import constexpr, tensor

__all__ = ["associative_scan", "dot", "dot_scaled", "gather", "histogram", "reduce"]


@builtin
def dot(
    input: tensor,
    other: tensor,
    acc: tensor | None = None,
    input_precision: Option = None,
    allow_tf32: BoolLike | None = None,
    max_num_imprecise_acc: IntLike | None = None,
    out_dtype: DTypeLike | None = None,
) -> tensor:
    """Matrix product of tiles, `input[.., M, K] @ other[.., K, N] + acc[.., M, N]`.

    Operands are two fp8, or twice the same of int8, fp16, bf16, fp32 and fp64. The result is int32 for int8, fp32 for
    bf16 and fp32, fp64 for fp64, else `out_dtype` (default: the dtype of `acc`, or fp32). `input_precision` says how
    fp32 operands are multiplied: "tf32", "tf32x3", "ieee", "bf16x3" or "bf16x6". CPUs that multiply bf16 in hardware
    (AVX512-BF16, AMX) take subnormal bf16 operands, those below 2**-126, for 0.

    Raises:
        shape-mismatch: the extents of K differ: `tl.dot(a, tl.zeros([32, 16], tl.float32))`.
        shape-mismatch: ranks differ or are below 2: `tl.dot(a, i)`.
        shape-mismatch: `acc` has another shape: `tl.dot(a, a, acc=i)`.
        type-mismatch: dtypes differ: `tl.dot(a, a.to(tl.float16))`.
        type-mismatch: the dtype has no dot: `tl.dot(a.to(tl.int32), a.to(tl.int32))`.
        invalid-argument: the precision is unknown: `tl.dot(a, a, input_precision="fp8")`.

    Example:
        >>> tl.sum(tl.dot(a, a, input_precision="ieee"), 1)
        fp32[16]: 975, 1005, 1005, 1050, 1065, 975, 1005, 1005, 1050, 1065, 975, 1005, 1005, 1050, 1065, 975
    """


@builtin
def dot_scaled(
    lhs: tensor,
    lhs_scale: tensor | constexpr | None,
    lhs_format: StrLike,
    rhs: tensor,
    rhs_scale: tensor | constexpr | None,
    rhs_format: StrLike,
    acc: tensor | None = None,
    fast_math: BoolLike = False,
    lhs_k_pack: BoolLike = True,
    rhs_k_pack: BoolLike = True,
    out_dtype: DTypeLike = float32,
) -> tensor:
    """Matrix product of operands in a microscaling format: each group of 16 or 32 along K has a scale of its own.

    The formats are "e2m1" (uint8, two values a byte, low nibble first, packed along K, or along M or N where
    `…_k_pack` is False), "e4m3" and "e5m2" (fp8 or uint8), "bf16" and "fp16" (or uint16). Scales have the shapes [..,
    M, K/g] and [.., N, K/g]: uint8 as 2**(s - 127) (255: NaN), fp8e4nv, or None. The result is fp32. Scaled operands
    are rounded to bf16 (fp16 if an operand is fp16) and multiplied there, which is exact for the 4- and 8-bit formats
    while nothing underflows; about subnormal bf16 on CPUs see `dot`.

    Source: OCP Microscaling Formats (MX) Specification 1.0.

    Raises:
        invalid-argument: a format is unknown: `tl.dot_scaled(a, None, "e9", a, None, "fp16")`.
        type-mismatch: the dtype of an operand does not fit its format:
            `tl.dot_scaled(a, None, "e4m3", a, None, "e4m3")`.

    Example:
        >>> one = tl.full([16, 32], 0x38, tl.uint8)
        >>> s = tl.full([16, 1], 128, tl.uint8)
        >>> tl.max(tl.dot_scaled(one, s, "e4m3", tl.trans(one), None, "e4m3"), 1)
        fp32[16]: 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64
    """


@builtin
def reduce(
    input: Tensors, axis: IntLike | None, combine_fn: CombineFunction, keep_dims: BoolLike = False
) -> Combined:
    """All elements along `axis` (None: all of them) combined by the jitted function `combine_fn`.

    `input` is a tile or a tuple of n tiles of one shape, and so is the result, without the dimension or with extent 1
    there if `keep_dims`. `combine_fn(a0, …, b0, …)` gets 2n scalars and returns n. It must be associative and
    commutative.

    Raises:
        invalid-argument: there is no such dimension: `tl.reduce(n, 1, add)`.
        shape-mismatch: `input` is a scalar: `tl.reduce(3, 0, add)`.
        shape-mismatch: the shapes of several tiles differ: `tl.reduce((n, i16), 0, first_larger)`.
        compilation: the function takes another number of arguments: `tl.reduce(n, 0, first_larger)`.

    Example:
        >>> tl.reduce(n, 0, add)
        int32: 31
    """


@builtin
def associative_scan(
    input: Tensors, axis: IntLike | None, combine_fn: CombineFunction, reverse: BoolLike = False
) -> Combined:
    """Inclusive prefixes along `axis` combined by the jitted function `combine_fn`, from the end if `reverse`.

    `input` is a tile or a tuple of n tiles of one shape, and so is the result. `combine_fn(a0, …, b0, …)` gets 2n
    scalars and returns n. It must be associative.

    Raises:
        invalid-argument: there is no such dimension: `tl.associative_scan(n, 1, add)`.
        not-constexpr: there is no axis: `tl.associative_scan(n, None, add)`.
        shape-mismatch: `input` is a scalar: `tl.associative_scan(3, 0, add)`.
        compilation: the function takes another number of arguments: `tl.associative_scan(n, 0, first_larger)`.

    Example:
        >>> tl.associative_scan((n, i), 0, first_larger)[1]
        int32[8]: 0, 0, 2, 2, 4, 5, 5, 5
    """


@builtin
def histogram(input: tensor, num_bins: IntLike, mask: Mask = None) -> tensor:
    """How often each of 0, …, `num_bins` - 1 occurs in a 1-D tile of ints: int32 of shape [num_bins].

    Other values do not count, nor do elements whose `mask` (int1) is false. `num_bins` is a compile-time power of two.

    Raises:
        type-mismatch: the elements are floats: `tl.histogram(x, 8)`.
        shape-mismatch: the tile has several dimensions: `tl.histogram(a.to(tl.int32), 8)`.
        invalid-argument: the number of bins is no power of two: `tl.histogram(n, 7)`.
        type-mismatch: the mask is not int1: `tl.histogram(n, 8, mask=n)`.

    Example:
        >>> tl.histogram(n, 8)
        int32[8]: 0, 2, 1, 1, 1, 1, 1, 0
    """


@builtin
def gather(src: tensor, index: tensor, axis: IntLike) -> tensor:
    """`src` with the coordinate on `axis` taken from the integer tile `index`, whose shape the result has.

    Ranks are equal, and so are all extents but that of `axis`; the dtype is that of `src`. Where an index is out of
    range the result is undefined.

    Raises:
        type-mismatch: the indices are floats: `tl.gather(n, x, 0)`.
        invalid-argument: there is no such dimension: `tl.gather(n, i, 1)`.
        shape-mismatch: ranks differ: `tl.gather(a, i, 0)`.
        shape-mismatch: another extent differs: `tl.gather(a, tl.reshape(i, 2, 4), 0)`.

    Example:
        >>> tl.gather(n, 7 - i, 0)
        int32[8]: 6, 2, 9, 5, 1, 4, 1, 3
    """


@builtin
def widen_for_sum(input: TensorLike, dtype: DTypeLike | None = None) -> tensor:
    """`input` cast to what `sum` accumulates in: `dtype`, or at least 32 bits for ints; floats stay."""


@builtin
def widen_for_max(input: TensorLike, return_indices: BoolLike = False) -> tensor:
    """`input` cast to what `max` compares in: at least 32 bits; with indices only bf16 widens."""


@builtin
def promote_bf16(input: TensorLike) -> tensor:
    """`input` as fp32 if it is bf16, else unchanged."""


@builtin
def bits_of(input: TensorLike) -> tensor:
    """`input` bit-cast to the signed int of its width (int1 becomes int8)."""


@builtin
def from_bits(input: TensorLike, dtype: DTypeLike) -> tensor:
    """The inverse of `bits_of`."""
