"""Declares atomic operations on global memory, and a clock."""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.language.builtin import builtin
from tessera.language.callable import library

__all__ = [
    "atomic_add", "atomic_and", "atomic_cas", "atomic_load", "atomic_max", "atomic_min", "atomic_or", "atomic_poll",
    "atomic_store", "atomic_xchg", "atomic_xor",
]  # fmt: skip

if TYPE_CHECKING:
    from tessera.language.kernel_typing import constexpr
    from tessera.language.operand_types import Mask, Option, TensorLike
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr


@builtin
def atomic_add(
    pointer: tensor, val: TensorLike, mask: Mask = None, sem: Option = None, scope: Option = None
) -> tensor:
    """`*pointer += val` atomically for each element; the result is the elements before.

    It has the shape of `pointer`. Elements are 32- and 64-bit ints, fp16, bf16, fp32 or fp64; on CPUs also 8- and
    16-bit ints. `val` broadcasts to the shape of `pointer` and is cast to its element type; lanes whose `mask` (int1)
    is false do nothing, and their result is undefined. A scalar pointer acts once for each program. `sem` is
    "acquire", "release", "acq_rel" (default) or "relaxed"; `scope` is "gpu" (default), "cta" or "sys".

    Source of `sem` and `scope`: PTX ISA, Memory Consistency Model.

    Raises:
        type-mismatch: the element type is another one: `tl.atomic_add(F.to(tl.pointer_type(tl.float8e5)) + i, 1)`.
        shape-mismatch: `val` is larger than `pointer`: `tl.atomic_add(Z + i, i16)`.
        invalid-argument: `sem` is unknown: `tl.atomic_add(Z + i, i, sem="seq_cst")`.
        type-mismatch: `mask` is not int1: `tl.atomic_add(Z + i, i, mask=i)`.

    Example:
        >>> tl.atomic_add(Z + i % 2, n)
        >>> tl.load(Z + i)
        int32[8]: 14, 17, 0, 0, 0, 0, 0, 0
    """


@builtin
def atomic_max(
    pointer: tensor, val: TensorLike, mask: Mask = None, sem: Option = None, scope: Option = None
) -> tensor:
    """`*pointer = max(*pointer, val)` atomically for each element; the result is the elements before.

    It has the shape of `pointer`. Elements are 32- and 64-bit ints, fp32 or fp64; on CPUs also 8- and 16-bit ints.
    Shapes, `mask`, `sem` and `scope` are as for `atomic_add`.

    Raises:
        type-mismatch: the element type is another one: `tl.atomic_max(F.to(tl.pointer_type(tl.float16)) + i, 1)`.
        shape-mismatch: `val` is larger than `pointer`: `tl.atomic_max(Z + i, i16)`.

    Example:
        >>> tl.atomic_max(Z + i, n - 3)
        >>> tl.load(Z + i)
        int32[8]: 0, 0, 1, 0, 2, 6, 0, 3
    """


@builtin
def atomic_min(
    pointer: tensor, val: TensorLike, mask: Mask = None, sem: Option = None, scope: Option = None
) -> tensor:
    """`*pointer = min(*pointer, val)` atomically for each element; the result is the elements before.

    It has the shape of `pointer`. Elements are 32- and 64-bit ints, fp32 or fp64; on CPUs also 8- and 16-bit ints.
    Shapes, `mask`, `sem` and `scope` are as for `atomic_add`.

    Raises:
        type-mismatch: the element type is another one: `tl.atomic_min(F.to(tl.pointer_type(tl.float16)) + i, 1)`.
        shape-mismatch: `val` is larger than `pointer`: `tl.atomic_min(Z + i, i16)`.

    Example:
        >>> tl.atomic_min(Z + i, n - 3)
        >>> tl.load(Z + i)
        int32[8]: 0, -2, 0, -2, 0, 0, -1, 0
    """


@builtin
def atomic_and(
    pointer: tensor, val: TensorLike, mask: Mask = None, sem: Option = None, scope: Option = None
) -> tensor:
    """`*pointer &= val` atomically for each element; the result is the elements before.

    It has the shape of `pointer`. Elements are 32- and 64-bit ints, or fp32 and fp64, whose bits are combined; on CPUs
    also 8- and 16-bit ints. Shapes, `mask`, `sem` and `scope` are as for `atomic_add`.

    Raises:
        type-mismatch: the element type is another one: `tl.atomic_and(F.to(tl.pointer_type(tl.float16)) + i, 1)`.
        shape-mismatch: `val` is larger than `pointer`: `tl.atomic_and(Z + i, i16)`.

    Example:
        >>> tl.store(Z + i, i)
        >>> tl.atomic_and(Z + i, n)
        >>> tl.load(Z + i)
        int32[8]: 0, 1, 0, 1, 4, 1, 2, 6
    """


@builtin
def atomic_or(
    pointer: tensor, val: TensorLike, mask: Mask = None, sem: Option = None, scope: Option = None
) -> tensor:
    """`*pointer |= val` atomically for each element; the result is the elements before.

    It has the shape of `pointer`. Elements are 32- and 64-bit ints, or fp32 and fp64, whose bits are combined; on CPUs
    also 8- and 16-bit ints. Shapes, `mask`, `sem` and `scope` are as for `atomic_add`.

    Raises:
        type-mismatch: the element type is another one: `tl.atomic_or(F.to(tl.pointer_type(tl.float16)) + i, 1)`.
        shape-mismatch: `val` is larger than `pointer`: `tl.atomic_or(Z + i, i16)`.

    Example:
        >>> tl.atomic_or(Z + i, n)
        >>> tl.load(Z + i)
        int32[8]: 3, 1, 4, 1, 5, 9, 2, 6
    """


@builtin
def atomic_xor(
    pointer: tensor, val: TensorLike, mask: Mask = None, sem: Option = None, scope: Option = None
) -> tensor:
    """`*pointer ^= val` atomically for each element; the result is the elements before.

    It has the shape of `pointer`. Elements are 32- and 64-bit ints, or fp32 and fp64, whose bits are combined; on CPUs
    also 8- and 16-bit ints. Shapes, `mask`, `sem` and `scope` are as for `atomic_add`.

    Raises:
        type-mismatch: the element type is another one: `tl.atomic_xor(F.to(tl.pointer_type(tl.float16)) + i, 1)`.
        shape-mismatch: `val` is larger than `pointer`: `tl.atomic_xor(Z + i, i16)`.

    Example:
        >>> tl.store(Z + i, i)
        >>> tl.atomic_xor(Z + i, n)
        >>> tl.load(Z + i)
        int32[8]: 3, 0, 6, 2, 1, 12, 4, 1
    """


@builtin
def atomic_xchg(
    pointer: tensor, val: TensorLike, mask: Mask = None, sem: Option = None, scope: Option = None
) -> tensor:
    """`*pointer = val` atomically for each element; the result is the elements before.

    It has the shape of `pointer`. Elements are 32- and 64-bit ints, fp32 or fp64; on CPUs also 8- and 16-bit ints.
    Shapes, `mask`, `sem` and `scope` are as for `atomic_add`.

    Raises:
        type-mismatch: the element type is another one: `tl.atomic_xchg(F.to(tl.pointer_type(tl.float16)) + i, 1)`.
        shape-mismatch: `val` is larger than `pointer`: `tl.atomic_xchg(Z + i, i16)`.

    Example:
        >>> old = tl.atomic_xchg(Z + i, n)
        >>> old + tl.load(Z + i)
        int32[8]: 3, 1, 4, 1, 5, 9, 2, 6
    """


@builtin
def atomic_cas(
    pointer: tensor, cmp: TensorLike, val: TensorLike, sem: Option = None, scope: Option = None
) -> tensor:
    """Store `val` where `*pointer` equals `cmp` bit for bit, atomically; the result is the elements before.

    `cmp` and `val` have exactly the element type and the shape of `pointer`; elements have 16, 32 or 64 bits. `sem`
    and `scope` are as for `atomic_add`.

    Raises:
        type-mismatch: `val` or `cmp` has another dtype or shape: `tl.atomic_cas(Z + i, i, x)`.
        invalid-argument: `sem` is unknown: `tl.atomic_cas(Z + i, i, n, sem="seq_cst")`.

    Example:
        >>> tl.atomic_cas(Z + i, i % 2, n)
        >>> tl.load(Z + i)
        int32[8]: 3, 0, 4, 0, 5, 0, 2, 0
    """


@builtin
def atomic_load(
    pointer: tensor, mask: Mask = None, sem: Option = None, scope: Option = None
) -> tensor:
    """Read elements that other programs may be writing, each in one piece, in the shape of `pointer`.

    Elements have 32 or 64 bits. Lanes whose `mask` (int1) is false read nothing, and their result is undefined. `sem`
    is "acquire" (default) or "relaxed", with which elements may also be narrower; `scope` is as for `atomic_add`.

    Raises:
        type-mismatch: the elements are narrower: `tl.atomic_load(Z.to(tl.pointer_type(tl.int8)) + i)`.
        type-mismatch: `pointer` is no pointer: `tl.atomic_load(x)`.
        invalid-argument: `sem` is another one: `tl.atomic_load(Z + i, sem="release")`.

    Example:
        >>> tl.atomic_load(N + i)
        int32[8]: 3, 1, 4, 1, 5, 9, 2, 6
    """


@builtin
def atomic_store(
    pointer: tensor, val: TensorLike, mask: Mask = None, sem: Option = None, scope: Option = None
) -> None:
    """Write elements of 32 or 64 bits that other programs may be reading, each in one piece.

    `val` broadcasts to the shape of `pointer` and is cast to its element type; lanes whose `mask` (int1) is false
    write nothing. `sem` is "release" (default) or "relaxed"; `scope` is as for `atomic_add`.

    Raises:
        type-mismatch: the elements are narrower: `tl.atomic_store(Z.to(tl.pointer_type(tl.int8)) + i, 1)`.
        shape-mismatch: `val` is larger than `pointer`: `tl.atomic_store(Z + i, i16)`.
        invalid-argument: `sem` is another one: `tl.atomic_store(Z + i, i, sem="acquire")`.

    Example:
        >>> tl.atomic_store(Z + i, n)
        >>> tl.load(Z + i)
        int32[8]: 3, 1, 4, 1, 5, 9, 2, 6
    """


@library
def atomic_poll(
    pointer: Any,
    expected_value: Any,
    sem: constexpr = None,
    scope: constexpr = None,
    timeout_ns: constexpr = None,
) -> Any:
    """Wait until the scalar `*pointer` equals `expected_value`; int1: whether it did within `timeout_ns` nanoseconds.

    Without a timeout it waits for ever. `sem` and `scope` are as for `atomic_load`.

    Raises:
        shape-mismatch: `pointer` has several elements: `tl.atomic_poll(N + i, 3)`.

    Example:
        >>> tl.atomic_poll(N, 3, timeout_ns=1000)
        int1: 1
    """
    value = atomic_load(pointer, None, sem, scope)
    if timeout_ns is None:
        while value != expected_value:
            value = atomic_load(pointer, None, sem, scope)
    else:
        start = globaltimer()
        while (value != expected_value) & (globaltimer() - start < timeout_ns):
            value = atomic_load(pointer, None, sem, scope)
    return value == expected_value


@builtin
def globaltimer() -> tensor:
    """A clock that counts nanoseconds: an int64 scalar.

    Source: PTX ISA, special register `%globaltimer`; on CPUs the monotonic clock of the system.

    Example:
        >>> tl.extra.cuda.globaltimer() > 0
        int1: 1
    """
