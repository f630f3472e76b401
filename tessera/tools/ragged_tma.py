"""Descriptors of arrays one of whose dimensions is made of slices that follow one another, each of its own length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.language.ragged import atomic_add_ragged, load_ragged, store_ragged
from tessera.runtime.arguments.descriptor import TensorDescriptor

__all__ = ["atomic_add_ragged", "create_ragged_descriptor", "load_ragged", "store_ragged"]


def create_ragged_descriptor(
    tensor: Any, block_shape: Sequence[int], ragged_dim: int = 0
) -> TensorDescriptor:
    """For `load_ragged` and its like, which take the place and the length of a slice along `ragged_dim`."""
    rank = len(tensor.shape)
    if not -rank <= ragged_dim < rank:
        raise ValueError(f"ragged_dim={ragged_dim} is no dimension of an array of rank {rank}")
    return TensorDescriptor.from_tensor(tensor, list(block_shape))
