"""Global memory: loads and stores through pointers, block pointers and descriptors; atomics."""

from __future__ import annotations

from typing import Any

from tessera.language.builtin import builtin, must_use_result
from tessera.language.values import DESCRIPTOR_METHODS

_ATOMIC = """{what} atomically; returns the value before, masked-off lanes undefined.

    `val` broadcasts to the shape of `pointer` and is cast to its element type; `mask` is int1. `sem` is "acquire",
    "release", "acq_rel" (default) or "relaxed"; `scope` is "gpu" (default), "cta" or "sys". A scalar pointer acts once
    per program. Element types: {types}."""


@builtin
def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: Any = "",
    cache_modifier: Any = "",
    eviction_policy: Any = "",
    volatile: Any = False,
) -> Any:
    """Read the elements `pointer` points to, in its shape (a scalar pointer reads one scalar).

    `mask` (int1) and `other` broadcast with `pointer`; lanes whose mask is false read nothing and give `other`,
    or 0 without one. `other` is cast to the element type. For block pointers, `boundary_check` names the dimensions to
    check and `padding_option` ("", "zero", "nan") what lies outside. `cache_modifier`: "", ".ca", ".cg", ".cs", ".cv";
    `eviction_policy`: "", "evict_first", "evict_last".
    """


@builtin
def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: Any = "",
    eviction_policy: Any = "",
) -> Any:
    """Write `value`, broadcast to the shape of `pointer` and cast to its element type, where `mask` (int1) holds.

    `value` and `mask` may not be larger than `pointer`. `cache_modifier`: "", ".wb", ".cg", ".cs", ".wt".
    """


@builtin
def atomic_add(
    pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> Any: ...


@builtin
def atomic_max(
    pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> Any: ...


@builtin
def atomic_min(
    pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> Any: ...


@builtin
def atomic_and(
    pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> Any: ...


@builtin
def atomic_or(
    pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> Any: ...


@builtin
def atomic_xor(
    pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> Any: ...


@builtin
def atomic_xchg(
    pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> Any: ...


_INTS = "32- and 64-bit ints"
for _op, _what, _types in (
    (atomic_add, "*pointer += val", _INTS + ", fp16, bf16, fp32, fp64"),
    (atomic_max, "*pointer = max(*pointer, val)", _INTS + ", fp32, fp64"),
    (atomic_min, "*pointer = min(*pointer, val)", _INTS + ", fp32, fp64"),
    (atomic_and, "*pointer &= val", _INTS + ", fp32 and fp64 on their bits"),
    (atomic_or, "*pointer |= val", _INTS + ", fp32 and fp64 on their bits"),
    (atomic_xor, "*pointer ^= val", _INTS + ", fp32 and fp64 on their bits"),
    (atomic_xchg, "Exchange *pointer and val", _INTS + ", fp32, fp64"),
):
    _op.__doc__ = _ATOMIC.format(what=_what, types=_types)


@builtin
def atomic_cas(pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> Any:
    """Where `*pointer` equals `cmp` bit for bit, store `val`; returns the value before.

    `cmp` and `val` must have exactly the element type and the shape of `pointer`; elements of 16, 32 or 64 bits.
    """


@builtin
def make_block_ptr(
    base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any
) -> Any:
    """Deprecated. A pointer to a block of `block_shape` at element `offsets` of the strided array at `base`.

    `shape`, `strides` and `offsets` are integer scalars, one a dimension; `order` is a hint only.
    """


@must_use_result("a moved copy is returned; the block pointer itself stays where it is")
@builtin
def advance(base: Any, offsets: Any) -> Any:
    """The block pointer `base` moved by `offsets` elements in each dimension."""


@builtin
def make_tensor_descriptor(
    base: Any, shape: Any, strides: Any, block_shape: Any, padding_option: Any = "zero"
) -> Any:
    """A descriptor of the strided array at `base`, whose loads and stores move blocks of `block_shape`.

    1 to 5 dimensions; the last stride is the constant 1, the last block dimension spans at least 16 bytes.
    Loads outside `shape` give the padding: "zero", or "nan" for floats.
    """


@builtin
def load_tensor_descriptor(desc: Any, offsets: Any) -> Any:
    """The block at element `offsets` (int32); elements outside the array are the descriptor's padding."""


@builtin
def store_tensor_descriptor(desc: Any, offsets: Any, value: Any) -> Any:
    """Write `value`, of the descriptor's block shape, at element `offsets`; elements outside are dropped."""


_DESCRIPTOR_ATOMIC = (
    "Combine `value`, of the descriptor's type, with the block at `offsets` by {op}, atomically."
)


@builtin
def descriptor_atomic_add(desc: Any, offsets: Any, value: Any) -> Any: ...


@builtin
def descriptor_atomic_min(desc: Any, offsets: Any, value: Any) -> Any: ...


@builtin
def descriptor_atomic_max(desc: Any, offsets: Any, value: Any) -> Any: ...


@builtin
def descriptor_atomic_and(desc: Any, offsets: Any, value: Any) -> Any: ...


@builtin
def descriptor_atomic_or(desc: Any, offsets: Any, value: Any) -> Any: ...


@builtin
def descriptor_atomic_xor(desc: Any, offsets: Any, value: Any) -> Any: ...


DESCRIPTOR_METHODS["load"] = load_tensor_descriptor
DESCRIPTOR_METHODS["store"] = store_tensor_descriptor
for _op in (
    descriptor_atomic_add,
    descriptor_atomic_min,
    descriptor_atomic_max,
    descriptor_atomic_and,
    descriptor_atomic_or,
    descriptor_atomic_xor,
):
    _op.__doc__ = _DESCRIPTOR_ATOMIC.format(op=_op.__name__.removeprefix("descriptor_atomic_"))
    DESCRIPTOR_METHODS[_op.__name__.removeprefix("descriptor_")] = _op
