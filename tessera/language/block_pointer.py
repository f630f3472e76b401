"""Defines what `make_block_ptr` returns: a strided array in memory and the place of a block in it."""

from __future__ import annotations

from typing import Any

from tessera.dtypes import block_type, pointer_type
from tessera.language.aggregate import aggregate
from tessera.language.memory import advance
from tessera.language.values import BoundMethod, constexpr, tensor, tuple


@aggregate
class block_pointer:
    """`base`: scalar pointer; `shape`, `strides`, `offsets`: int64 scalars or constexpr ints, one per dimension."""

    base: tensor
    shape: tuple
    strides: tuple
    offsets: tuple
    block_shape: constexpr

    @property
    def type(self) -> Any:
        """A pointer to a block, as kernels ask for it: `p.type.element_ty` is what a value is cast to for a store."""
        pointer = self.base.dtype
        block = block_type(pointer.element_ty, self.block_shape.value)
        return pointer_type(block, pointer.address_space, pointer.const)

    @property
    def dtype(self) -> Any:
        return self.type

    @property
    def advance(self) -> BoundMethod:
        return BoundMethod(self, advance)
