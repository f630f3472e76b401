"""Makes descriptors of arrays in which one dimension consists of adjacent slices, each of its own length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.language.ragged import atomic_add_ragged, load_ragged, store_ragged
from tessera.runtime.arguments.descriptor import TensorDescriptor

__all__ = ["atomic_add_ragged", "create_ragged_descriptor", "load_ragged", "store_ragged"]


def create_ragged_descriptor(
    tensor: Any, block_shape: Sequence[int], ragged_dim: int = 0
) -> TensorDescriptor:
    """Return a descriptor of `tensor` for `load_ragged`, `store_ragged` and `atomic_add_ragged`.

    Along `ragged_dim` the array consists of slices that follow one another; these functions take the start and the
    length of one. `block_shape` is as for TensorDescriptor. Raises ValueError for a dimension that the array
    lacks.

    Example:
        >>> from tessera.tools.ragged_tma import create_ragged_descriptor, load_ragged
        >>> @tessera.jit
        ... def read(rows, out, start, size):
        ...     block = load_ragged(rows, start, size, [0, 0])
        ...     tl.store(out + tl.arange(0, 16), tl.reshape(block, 16))
        >>> table, out = np.arange(64, dtype=np.int32).reshape(16, 4), np.full(16, -1, np.int32)
        >>> _ = read[(1,)](create_ragged_descriptor(table, [4, 4]), out, 2, 3)  # rows 2 to 4, then padding
        >>> out.tolist()
        [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 0, 0, 0, 0]
        >>> create_ragged_descriptor(table, [4, 4], ragged_dim=2)
        Traceback (most recent call last):
        ValueError: ragged_dim=2 is no dimension of an array of rank 2
    """
    rank = len(tensor.shape)
    if not -rank <= ragged_dim < rank:
        raise ValueError(f"ragged_dim={ragged_dim} is no dimension of an array of rank {rank}")
    return TensorDescriptor.from_tensor(tensor, list(block_shape))
