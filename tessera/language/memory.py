"""Declares loads and stores of global memory through pointers, block pointers and tensor descriptors."""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.language.builtin import builtin, must_use_result
from tessera.language.values import DESCRIPTOR_METHODS

if TYPE_CHECKING:
    from tessera.language.block_pointer import block_pointer
    from tessera.language.descriptor import tensor_descriptor
    from tessera.language.operand_types import (
        BoolLike,
        Index,
        Indices,
        Ints,
        Mask,
        PointerLike,
        StrLike,
        TensorLike,
    )
    from tessera.language.values import tensor

__all__ = [
    "advance", "load", "load_tensor_descriptor", "make_block_ptr", "make_tensor_descriptor", "store",
    "store_tensor_descriptor",
]  # fmt: skip


@builtin
def load(
    pointer: PointerLike,
    mask: Mask = None,
    other: TensorLike | None = None,
    boundary_check: Ints = (),
    padding_option: StrLike = "",
    cache_modifier: StrLike = "",
    eviction_policy: StrLike = "",
    volatile: BoolLike = False,
) -> tensor:
    """The elements that `pointer` points to, in its shape and of its element type; a scalar pointer reads one scalar.

    `mask` (int1) and `other` broadcast with `pointer`: lanes whose mask is false read nothing and give `other`, cast
    to the element type, or 0 without one. For block pointers, `boundary_check` names the dimensions to check and
    `padding_option` ("", "zero", "nan") what lies outside. `cache_modifier` is "", ".ca", ".cg", ".cs" or ".cv" (the
    dot may be left out), `eviction_policy` "", "evict_first", "evict_last" or "evict_normal"; neither changes the
    result.

    Source of the modifiers: PTX ISA, `ld`.

    Raises:
        type-mismatch: `pointer` is no pointer: `tl.load(x)`.
        type-mismatch: `mask` is not int1: `tl.load(X + i, mask=i)`.
        shape-mismatch: the operands do not broadcast: `tl.load(X + i, mask=i16 > 0)`.
        invalid-argument: `other` comes without a mask: `tl.load(X + i, other=1.0)`.
        invalid-argument: a block pointer's option is given for another pointer: `tl.load(X + i, boundary_check=(0,))`.
        invalid-argument: a modifier is unknown: `tl.load(X + i, cache_modifier=".wb")`.
        out-of-bounds: the interpreter finds that an element lies outside of its array:
            `tl.store(F + i16, tl.load(X + i16))`.

    Example:
        >>> tl.load(X + i, mask=i < 6, other=-1.0)
        fp32[8]: -2, -1, -0.5, 0, 0.5, 1, -1, -1
    """


@builtin
def store(
    pointer: PointerLike,
    value: TensorLike,
    mask: Mask = None,
    boundary_check: Ints = (),
    cache_modifier: StrLike = "",
    eviction_policy: StrLike = "",
) -> None:
    """Write `value`, broadcast to the shape of `pointer` and cast to its element type, where `mask` (int1) holds.

    `value` and `mask` are not larger than `pointer`. `boundary_check` and `eviction_policy` are as for `load`;
    `cache_modifier` is "", ".wb", ".cg", ".cs" or ".wt".

    Source of the modifiers: PTX ISA, `st`.

    Raises:
        type-mismatch: `pointer` is no pointer: `tl.store(x, x)`.
        type-mismatch: `mask` is not int1: `tl.store(Z + i, i, mask=i)`.
        shape-mismatch: the value is larger than `pointer`: `tl.store(Z, i)`.
        invalid-argument: a modifier is unknown: `tl.store(Z + i, i, cache_modifier=".ca")`.
        out-of-bounds: the interpreter finds that an element lies outside of its array: `tl.store(N + i16, 0)`.

    Example:
        >>> tl.store(Z + i, n, mask=i > 3)
        >>> tl.load(Z + i)
        int32[8]: 0, 0, 0, 0, 5, 9, 2, 6
    """


@builtin
def make_block_ptr(
    base: tensor, shape: Indices, strides: Indices, offsets: Indices, block_shape: Ints, order: Ints
) -> block_pointer:
    """Deprecated: a pointer to a block of `block_shape` at element `offsets` of the strided array at `base`.

    `base` is a scalar pointer. `shape`, `strides` and `offsets` are integer scalars, one for each dimension; the
    extents of the block are compile-time powers of two; `order` is a permutation of the dimensions, and a hint only.

    Raises:
        type-mismatch: `base` is no scalar pointer: `tl.make_block_ptr(x, [8], [1], [0], [4], [0])`.
        shape-mismatch: the lists have different lengths:
            `tl.make_block_ptr(A, [16, 16], [16], [0, 0], [4, 4], [1, 0])`.
        shape-mismatch: an extent is no power of two: `tl.make_block_ptr(X, [8], [1], [0], [3], [0])`.
        invalid-argument: `order` is no permutation: `tl.make_block_ptr(A, [16, 16], [16, 1], [0, 0], [4, 4], [0, 0])`.

    Example:
        >>> p = tl.make_block_ptr(A, [16, 16], [16, 1], [14, 0], [4, 4], [1, 0])
        >>> tl.load(p, boundary_check=(0,), padding_option="zero")
        fp32[4, 4]: 4, 1, 3, 0, 0, 2, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0
    """


@must_use_result("a moved copy is returned; the block pointer itself stays where it is")
@builtin
def advance(base: block_pointer, offsets: Indices) -> block_pointer:
    """The block pointer `base` moved by `offsets` elements, one integer scalar for each dimension.

    Raises:
        type-mismatch: it is no block pointer: `p = tl.advance(X, [1])`.
        shape-mismatch: the number of offsets is another one:
            `p = tl.advance(tl.make_block_ptr(X, [8], [1], [0], [4], [0]), [1, 1])`.
        compilation: the result is not used: `tl.advance(tl.make_block_ptr(X, [8], [1], [0], [4], [0]), [1])`.

    Example:
        >>> p = tl.make_block_ptr(A, [16, 16], [16, 1], [0, 0], [2, 4], [1, 0])
        >>> tl.load(tl.advance(p, [3, 4]))
        fp32[2, 4]: 1, 3, 0, 2, 2, 4, 1, 3
    """


@builtin
def make_tensor_descriptor(
    base: tensor,
    shape: Indices,
    strides: Indices,
    block_shape: Ints,
    padding_option: StrLike = "zero",
) -> tensor_descriptor:
    """A descriptor of the strided array at `base`, whose loads and stores move blocks of `block_shape`.

    `base` is a scalar pointer. There are 1 to 5 dimensions; `shape` and `strides` are integer scalars, the last stride
    is the constant 1, and the last extent of the block spans at least 16 bytes. Loads outside of `shape` give the
    padding: "zero", or "nan" for floats.

    Source of the limits: PTX ISA, tensor maps and `cp.async.bulk.tensor`.

    Raises:
        type-mismatch: `base` is no scalar pointer: `d = tl.make_tensor_descriptor(x, [8], [1], [8])`.
        shape-mismatch: the block's rows are shorter than 16 bytes: `d = tl.make_tensor_descriptor(X, [8], [1], [2])`.
        shape-mismatch: the last stride is not 1: `d = tl.make_tensor_descriptor(A, [16, 16], [16, 2], [2, 8])`.
        invalid-argument: the padding is unknown:
            `d = tl.make_tensor_descriptor(X, [8], [1], [8], padding_option="one")`.
        type-mismatch: ints are padded with NaN:
            `d = tl.make_tensor_descriptor(N, [8], [1], [8], padding_option="nan")`.

    Example:
        >>> d = tl.make_tensor_descriptor(A, [16, 16], [16, 1], [2, 8])
        >>> d.load([14, 12])
        fp32[2, 8]: 3, 0, 2, 4, 0, 0, 0, 0, 4, 1, 3, 0, 0, 0, 0, 0
    """


@builtin
def load_tensor_descriptor(desc: tensor_descriptor, offsets: Indices) -> tensor:
    """The block at element `offsets` (int32 scalars), in the descriptor's block shape and dtype; method `desc.load`.

    Elements outside of the array are the descriptor's padding.

    Raises:
        type-mismatch: it is no descriptor: `tl.load_tensor_descriptor(X, [0])`.
        shape-mismatch: the number of offsets is another one:
            `tl.make_tensor_descriptor(X, [8], [1], [8]).load([0, 0])`.
        type-mismatch: an offset is no int32 scalar: `tl.make_tensor_descriptor(X, [8], [1], [8]).load([x])`.

    Example:
        >>> d = tl.make_tensor_descriptor(A, [16, 16], [16, 1], [2, 8])
        >>> tl.load_tensor_descriptor(d, [1, 2])
        fp32[2, 8]: 0, 2, 4, 1, 3, 0, 2, 4, 1, 3, 0, 2, 4, 1, 3, 0
    """


@builtin
def store_tensor_descriptor(desc: tensor_descriptor, offsets: Indices, value: TensorLike) -> None:
    """Write `value`, of the descriptor's block shape, at element `offsets` (int32 scalars); method `desc.store`.

    The value is cast to the descriptor's dtype; elements outside of the array are dropped.

    Raises:
        shape-mismatch: the value has another shape: `tl.make_tensor_descriptor(F, [8], [1], [8]).store([0], i16)`.
        shape-mismatch: the number of offsets is another one:
            `tl.make_tensor_descriptor(F, [8], [1], [8]).store([0, 0], x)`.

    Example:
        >>> d = tl.make_tensor_descriptor(Z, [2, 4], [4, 1], [2, 4])
        >>> tl.store_tensor_descriptor(d, [0, 1], tl.reshape(n, 2, 4))
        >>> d.load([0, 0])
        int32[2, 4]: 0, 3, 1, 4, 0, 5, 9, 2
    """


@builtin
def descriptor_gather(desc: tensor_descriptor, x_offsets: tensor, y_offset: Index) -> tensor:
    """Rows `x_offsets` of a 2-D array, from column `y_offset` on; method `desc.gather`.

    As many columns are read as the block has. `x_offsets` is a 1-D tile of at least 8 ints (int16 or int32),
    `y_offset` an int32 scalar. The descriptor's blocks have one row. The result has the shape [rows, columns]; what
    lies outside of the array is the descriptor's padding.

    Source of the limits: PTX ISA, `cp.async.bulk.tensor` with `.tile::gather4`.

    Raises:
        shape-mismatch: blocks have several rows:
            `tl.make_tensor_descriptor(A, [16, 16], [16, 1], [2, 8]).gather(n, 0)`.
        type-mismatch: the rows are no ints: `tl.make_tensor_descriptor(A, [16, 16], [16, 1], [1, 8]).gather(x, 0)`.

    Example:
        >>> d = tl.make_tensor_descriptor(A, [16, 16], [16, 1], [1, 8])
        >>> d.gather(n, 0)
        fp32[8, 8]: 3, 0, 2, 4, 1, 3, 0, 2, 1, 3, 0, 2, 4, 1, 3, 0, …
    """


@builtin
def descriptor_scatter(
    desc: tensor_descriptor, value: TensorLike, x_offsets: tensor, y_offset: Index
) -> None:
    """Write `value`, a row for each of `x_offsets`, from column `y_offset` on; method `desc.scatter`.

    Shapes are as for `descriptor.gather`; what lies outside of the array is dropped.

    Raises:
        shape-mismatch: the value has another shape:
            `tl.make_tensor_descriptor(A, [16, 16], [16, 1], [1, 8]).scatter(x, n, 0)`.

    Example:
        >>> d = tl.make_tensor_descriptor(F, [16, 8], [8, 1], [1, 8])
        >>> d.scatter(tl.broadcast_to(x[:, None], 8, 8), i * 2, 0)
        >>> tl.load(F + i * 16)
        fp32[8]: -2, -1, -0.5, 0, 0.5, 1, 2, 3
    """


@builtin
def descriptor_atomic_add(desc: tensor_descriptor, offsets: Indices, value: TensorLike) -> None:
    """`*block += value` at element `offsets`, atomically, without a result; method `desc.atomic_add`.

    `value` has the descriptor's block shape and dtype, which is int32, uint32, uint64, fp32, fp16 or bf16. Elements
    outside of the array are dropped.

    Source: PTX ISA, `cp.reduce.async.bulk.tensor`.

    Raises:
        type-mismatch: the value has another dtype: `tl.make_tensor_descriptor(F, [8], [1], [8]).atomic_add([0], n)`.
        shape-mismatch: the value has another shape:
            `tl.make_tensor_descriptor(Z, [8], [1], [8]).atomic_add([0], i16)`.

    Example:
        >>> d = tl.make_tensor_descriptor(F, [4], [1], [8])
        >>> d.atomic_add([0], x)
        >>> tl.load(F + i)
        fp32[8]: -2, -1, -0.5, 0, 0, 0, 0, 0
    """


@builtin
def descriptor_atomic_min(desc: tensor_descriptor, offsets: Indices, value: TensorLike) -> None:
    """`*block = min(*block, value)` at element `offsets`, atomically, without a result; method `desc.atomic_min`.

    `value` has the descriptor's block shape and dtype: ints of 32 or 64 bits, fp16 or bf16. Elements outside of the
    array are dropped.

    Raises:
        type-mismatch: the dtype is another one: `tl.make_tensor_descriptor(F, [8], [1], [8]).atomic_min([0], x)`.

    Example:
        >>> d = tl.make_tensor_descriptor(Z, [4], [1], [8])
        >>> d.atomic_min([0], n - 3)
        >>> tl.load(Z + i)
        int32[8]: 0, -2, 0, -2, 0, 0, 0, 0
    """


@builtin
def descriptor_atomic_max(desc: tensor_descriptor, offsets: Indices, value: TensorLike) -> None:
    """`*block = max(*block, value)` at element `offsets`, atomically, without a result; method `desc.atomic_max`.

    `value` has the descriptor's block shape and dtype: ints of 32 or 64 bits, fp16 or bf16. Elements outside of the
    array are dropped.

    Raises:
        type-mismatch: the dtype is another one: `tl.make_tensor_descriptor(F, [8], [1], [8]).atomic_max([0], x)`.

    Example:
        >>> d = tl.make_tensor_descriptor(Z, [4], [1], [8])
        >>> d.atomic_max([0], n - 3)
        >>> tl.load(Z + i)
        int32[8]: 0, 0, 1, 0, 0, 0, 0, 0
    """


@builtin
def descriptor_atomic_and(desc: tensor_descriptor, offsets: Indices, value: TensorLike) -> None:
    """`*block = *block & value` at element `offsets`, atomically, without a result; method `desc.atomic_and`.

    `value` has the descriptor's block shape and dtype: ints of 32 or 64 bits. Elements outside of the array are
    dropped.

    Raises:
        type-mismatch: the dtype is another one: `tl.make_tensor_descriptor(F, [8], [1], [8]).atomic_and([0], x)`.

    Example:
        >>> tl.store(Z + i, i)
        >>> d = tl.make_tensor_descriptor(Z, [4], [1], [8])
        >>> d.atomic_and([0], n)
        >>> tl.load(Z + i)
        int32[8]: 0, 1, 0, 1, 4, 5, 6, 7
    """


@builtin
def descriptor_atomic_or(desc: tensor_descriptor, offsets: Indices, value: TensorLike) -> None:
    """`*block = *block | value` at element `offsets`, atomically, without a result; method `desc.atomic_or`.

    `value` has the descriptor's block shape and dtype: ints of 32 or 64 bits. Elements outside of the array are
    dropped.

    Raises:
        type-mismatch: the dtype is another one: `tl.make_tensor_descriptor(F, [8], [1], [8]).atomic_or([0], x)`.

    Example:
        >>> d = tl.make_tensor_descriptor(Z, [4], [1], [8])
        >>> d.atomic_or([0], n)
        >>> tl.load(Z + i)
        int32[8]: 3, 1, 4, 1, 0, 0, 0, 0
    """


@builtin
def descriptor_atomic_xor(desc: tensor_descriptor, offsets: Indices, value: TensorLike) -> None:
    """`*block = *block ^ value` at element `offsets`, atomically, without a result; method `desc.atomic_xor`.

    `value` has the descriptor's block shape and dtype: ints of 32 or 64 bits. Elements outside of the array are
    dropped.

    Raises:
        type-mismatch: the dtype is another one: `tl.make_tensor_descriptor(F, [8], [1], [8]).atomic_xor([0], x)`.

    Example:
        >>> d = tl.make_tensor_descriptor(Z, [4], [1], [8])
        >>> d.atomic_xor([0], n)
        >>> tl.load(Z + i)
        int32[8]: 3, 1, 4, 1, 0, 0, 0, 0
    """


DESCRIPTOR_METHODS["load"] = load_tensor_descriptor
DESCRIPTOR_METHODS["store"] = store_tensor_descriptor
DESCRIPTOR_METHODS["gather"] = descriptor_gather
DESCRIPTOR_METHODS["scatter"] = descriptor_scatter
for _op in (
    descriptor_atomic_add,
    descriptor_atomic_min,
    descriptor_atomic_max,
    descriptor_atomic_and,
    descriptor_atomic_or,
    descriptor_atomic_xor,
):
    DESCRIPTOR_METHODS[_op.__name__.removeprefix("descriptor_")] = _op
