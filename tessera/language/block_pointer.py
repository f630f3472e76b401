"""`block_pointer`: what `make_block_ptr` returns, a strided array in memory and the place of a block in it."""

from __future__ import annotations

from typing import Any

from tessera.language.aggregate import aggregate
from tessera.language.memory import advance
from tessera.language.values import BoundMethod, constexpr, tensor, tuple


@aggregate
class block_pointer:
    """`base`: scalar pointer; `shape`, `strides`, `offsets`: int64 scalars or constexpr ints, one a dimension."""

    base: tensor
    shape: tuple
    strides: tuple
    offsets: tuple
    block_shape: constexpr
    order: constexpr

    @property
    def dtype(self) -> Any:
        return self.base.dtype

    @property
    def advance(self) -> BoundMethod:
        return BoundMethod(self, advance)
