"""Defines tensor descriptors: what `make_tensor_descriptor` returns, and what a kernel gets for a host's descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tessera.dtypes import block_type
from tessera.language.values import DESCRIPTOR_METHODS, BoundMethod, run_time, tensor, tuple, wrap


class tensor_descriptor_type:
    """The type of a descriptor: the block of its loads and stores, and whether loads round fp32 to tf32."""

    __slots__ = ("block_type", "rounds")

    def __init__(self, block_type: block_type, rounds: bool = False):
        self.block_type, self.rounds = block_type, rounds

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, tensor_descriptor_type)
            and self.block_type == other.block_type
            and self.rounds == other.rounds
        )

    def __hash__(self) -> int:
        return hash((self.block_type, self.rounds))

    @property
    def name(self) -> str:
        return f"tensor_descriptor<{self.block_type}{', tf32' if self.rounds else ''}>"

    def mangle(self) -> str:
        return f"TD{self.block_type.mangle()}{'R' if self.rounds else ''}"

    def __repr__(self) -> str:
        return self.name


if TYPE_CHECKING:
    from tessera.language.tensor_methods import DescriptorMethods
else:

    class DescriptorMethods:  # the front end finds methods by DESCRIPTOR_METHODS
        __slots__ = ()


class tensor_descriptor(run_time, DescriptorMethods):
    """A strided array in global memory, read and written in blocks.

    `base`: scalar pointer; `shape`: tuple of int32 scalars, `strides`: tuple of int64 scalars, both in elements;
    `nans`: whether elements outside are NaN instead of 0, a constexpr bool or an int1 scalar. `handle`: the IR value,
    if it has been made where this descriptor was; control flow carries the parts.
    """

    __slots__ = ("base", "handle", "nans", "shape", "strides", "type")

    def __init__(
        self,
        base: tensor,
        shape: Any,
        strides: Any,
        type: tensor_descriptor_type,
        nans: Any = False,
        handle: Any = None,
    ):
        self.base = base
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.type = type
        self.nans = wrap(nans)
        self.handle = handle

    @property
    def parts(self) -> list[Any]:
        """What distinguishes it from others of its type: base, shape, strides and `nans`."""
        return [self.base, self.shape, self.strides, self.nans]

    def rebuild(self, parts: Sequence[Any]) -> tensor_descriptor:
        """Return a descriptor of the same type with other parts."""
        base, shape, strides, nans = parts
        return tensor_descriptor(base, shape, strides, self.type, nans)

    @property
    def block_type(self) -> block_type:
        return self.type.block_type

    @property
    def block_shape(self) -> tuple:
        return tuple(self.type.block_type.shape)

    @property
    def dtype(self) -> Any:
        return self.type.block_type.element_ty

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            try:
                return BoundMethod(self, DESCRIPTOR_METHODS[name])
            except KeyError:
                raise AttributeError(f"a tensor descriptor has no attribute {name!r}") from None

    def __str__(self) -> str:
        return str(self.type)

    __repr__ = __str__
