"""Describes blocks of ragged arrays: one dimension consists of slices whose positions are known at run time."""

# pyright: reportReturnType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.language.builtin import builtin
from tessera.language.callable import library

if TYPE_CHECKING:
    from tessera.language.descriptor import tensor_descriptor
    from tessera.language.kernel_typing import constexpr
    from tessera.language.operand_types import Index, Indices, IntLike
    from tessera.language.values import tensor
else:
    from tessera.language.values import constexpr


@builtin
def descriptor_slice(
    desc: tensor_descriptor, dim: IntLike, start: Index, size: Index
) -> tensor_descriptor:
    """Return the descriptor of elements `start` to `start + size` of `desc` along the constant dimension `dim`."""


@library
def load_ragged(
    desc: tensor_descriptor, slice_off: Index, slice_size: Index, coords: Indices, ragged_dim: constexpr = 0
):  # fmt: skip
    """The block at `coords` of the slice of `slice_size` elements at `slice_off` along `ragged_dim`.

    `desc` is a descriptor, the others are int32 scalars; what lies outside of the slice is padding. docs/host.md has an
    example.
    """
    return descriptor_slice(desc, ragged_dim, slice_off, slice_size).load(coords)


@library
def store_ragged(
    desc: tensor_descriptor, slice_off: Index, slice_size: Index, coords: Indices, data: tensor,
    ragged_dim: constexpr = 0,
):  # fmt: skip
    """Write `data` to the block at `coords` of the slice, as for `load_ragged`; what lies outside is dropped."""
    descriptor_slice(desc, ragged_dim, slice_off, slice_size).store(coords, data)


@library
def atomic_add_ragged(
    desc: tensor_descriptor, slice_off: Index, slice_size: Index, coords: Indices, data: tensor,
    ragged_dim: constexpr = 0,
):  # fmt: skip
    """Add `data` to the block at `coords` of the slice, atomically; all else is as for `store_ragged`."""
    descriptor_slice(desc, ragged_dim, slice_off, slice_size).atomic_add(coords, data)
