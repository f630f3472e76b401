"""Global memory: loads and stores through pointers, block pointers and descriptors; atomics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tessera.language.builtin import builtin, must_use_result
from tessera.language.callable import library
from tessera.language.values import DESCRIPTOR_METHODS

if TYPE_CHECKING:
    constexpr = Any  # kernels compute with numbers where they are annotated constexpr
else:
    from tessera.language.values import constexpr

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
    check and `padding_option` ("", "zero", "nan") what lies outside. `cache_modifier`: "", ".ca", ".cg", ".cs", ".cv"
    (the dot may be left out); `eviction_policy`: "", "evict_first", "evict_last", "evict_normal".
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
def atomic_load(pointer: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Any:
    """Read elements that other programs may be writing, each in one piece; masked-off lanes undefined.

    `sem` is "acquire" (default; 32- and 64-bit elements) or "relaxed"; `scope` as for the other atomics.
    """


@builtin
def atomic_store(
    pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
) -> Any:
    """Write elements of 32 or 64 bits that other programs may be reading, each in one piece.

    `val` broadcasts to the shape of `pointer` and is cast to its element type. `sem` is "release" (default) or
    "relaxed"; `scope` as for the other atomics.
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

    Without a timeout it waits for ever: of a program that runs after this one (the interpreter and the CPU run
    programs in order) nothing can be awaited.
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
def globaltimer() -> Any:
    """A clock that counts nanoseconds (int64)."""


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


@builtin
def descriptor_gather(desc: Any, x_offsets: Any, y_offset: Any) -> Any:
    """Rows `x_offsets` (1-D ints) of a 2-D array, from column `y_offset` on as many columns as the block has.

    The descriptor's blocks have one row; rows and columns outside the array are the descriptor's padding.
    """


@builtin
def descriptor_scatter(desc: Any, value: Any, x_offsets: Any, y_offset: Any) -> Any:
    """Write `value`, a row for each of `x_offsets`, from column `y_offset` on; what lies outside is dropped."""


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
    _op.__doc__ = _DESCRIPTOR_ATOMIC.format(op=_op.__name__.removeprefix("descriptor_atomic_"))
    DESCRIPTOR_METHODS[_op.__name__.removeprefix("descriptor_")] = _op
