"""The host side of a tensor descriptor: a bounds-checked, strided window onto an array, as one argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera import dtypes
from tessera.runtime.arguments.tensors import address_of, element_type, itemsize_of, strides_of

ALIGNMENT = 16  # bytes; what the TMA unit needs of the base and of every outer stride
TRACED = {"FakeTensor", "FunctionalTensor"}  # torch.compile's stand-ins, which have no address


@dataclass
class TensorDescriptor:
    """`base` as `shape` with `strides` (elements), read and written in tiles of `block_shape`.

    Rank 1 to 5, last stride 1. Elements outside `shape` read as `padding` ("zero" or "nan"). With `round_f32_to_tf32`
    loads and gathers give fp32 numbers with 10 bits of mantissa: the nearest, ties to even. AssertionError when the
    array cannot be described.
    """

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    def __post_init__(self) -> None:
        rank = len(self.shape)
        assert len(self.strides) == rank, f"rank mismatch: {self}"
        assert len(self.block_shape) == rank, f"rank mismatch: {self}"
        assert 1 <= rank <= 5, f"rank must be 1 to 5, got {rank}"
        self._check_memory()
        self._check_block()
        kind = element_type(self.base.dtype)
        assert self.padding in ("zero", "nan"), "padding must be 'zero' or 'nan'"
        if self.padding == "nan":
            assert kind in dtypes.FLOATS, "padding 'nan' needs a floating-point type"
        if self.round_f32_to_tf32:
            assert kind is dtypes.float32, "round_f32_to_tf32 needs float32 elements"

    def _check_memory(self) -> None:
        if type(self.base).__name__ not in TRACED:
            assert address_of(self.base) % ALIGNMENT == 0, "base must be 16-byte aligned"
        size = itemsize_of(self.base.dtype)
        for stride in self.strides[:-1]:
            assert stride * size % ALIGNMENT == 0, "strides must be 16-byte aligned"
        for extent in self.shape:
            assert extent > 0, "shape must be positive"
        assert self.strides[-1] == 1, "Last dimension must be contiguous"

    def _check_block(self) -> None:
        elements = 1
        for extent in self.block_shape:
            assert dtypes.is_power_of_two(extent), (
                f"block dimensions must be powers of two: {extent}"
            )
            elements *= extent
        assert elements <= dtypes.MAX_TILE_ELEMENTS, f"a block has at most 2**20 elements: {self}"

    @staticmethod
    def from_tensor(
        tensor: Any,
        block_shape: Sequence[int],
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> TensorDescriptor:
        """The whole of `tensor` (torch, NumPy, cupy) with its own shape and strides."""
        shape, strides = list(tensor.shape), list(strides_of(tensor))
        return TensorDescriptor(tensor, shape, strides, block_shape, padding, round_f32_to_tf32)
