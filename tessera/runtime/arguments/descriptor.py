"""Implements tensor descriptors on the host: a bounds-checked, strided view of an array, as one argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera import dtypes
from tessera.compiler.tracebacks import trim_traceback
from tessera.errors import InvalidDescriptor
from tessera.runtime.arguments.tensors import address_of, element_type, itemsize_of, strides_of

ALIGNMENT = 16  # bytes; what TMA requires of the base and of every outer stride
TRACED = {"FakeTensor", "FunctionalTensor"}  # torch.compile's placeholders, which have no address


def _demand(holds: bool, problem: str, remedy: str) -> None:
    if not holds:
        raise InvalidDescriptor(problem, help=remedy)


@dataclass
class TensorDescriptor:
    """A view of `base` with `shape` and `strides` (in elements), read and written in blocks of `block_shape`.

    There are 1 to 5 dimensions, and the last stride is 1. Elements outside of `shape` read as `padding` ("zero" or
    "nan"). With `round_f32_to_tf32` loads and gathers round fp32 numbers to 10 bits of mantissa: to nearest, ties to
    even. `TensorDescriptor.from_tensor(tensor, block_shape)` takes shape and strides from the array. It raises
    `descriptor` (an AssertionError) when the array cannot be described.

    Example:
        >>> from tessera.tools.tensor_descriptor import TensorDescriptor
        >>> @tessera.jit
        ... def transposed(a, b):
        ...     b.store([0, 0], a.load([0, 0]).T)
        >>> a, b = np.arange(64, dtype=np.float32).reshape(8, 8), np.zeros((8, 8), np.float32)
        >>> blocks = [TensorDescriptor.from_tensor(x, [8, 8]) for x in (a, b)]
        >>> _ = transposed[(1,)](*blocks)
        >>> bool((b == a.T).all())
        True
        >>> TensorDescriptor(a, [8, 8], [8, 2], [8, 8])
        Traceback (most recent call last):
        tessera.errors.InvalidDescriptor: error[descriptor]: Last dimension must be contiguous...
    """

    base: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str = "zero"
    round_f32_to_tf32: bool = False

    @trim_traceback
    def __post_init__(self) -> None:
        rank, kind = len(self.shape), element_type(self.base.dtype)
        for name, given in (("strides", self.strides), ("block_shape", self.block_shape)):
            text = f"rank mismatch: shape has {rank} dimensions, {name} {len(given)}"
            _demand(len(given) == rank, text, f"give one number of {name} for each dimension")
        _demand(1 <= rank <= 5, f"rank must be 1 to 5, got {rank}", "reshape the array")
        self._check_memory()
        self._check_block()
        _demand(
            self.padding in ("zero", "nan"),
            "padding must be 'zero' or 'nan'",
            'write `padding="zero"`',
        )
        if self.padding == "nan":
            remedy = 'write `padding="zero"` for integers'
            _demand(kind in dtypes.FLOATS, "padding 'nan' needs a floating-point type", remedy)
        if self.round_f32_to_tf32:
            _demand(
                kind is dtypes.float32, "round_f32_to_tf32 needs float32 elements", "leave it out"
            )

    def _check_memory(self) -> None:
        if type(self.base).__name__ not in TRACED:
            remedy = "give a copy: allocations are aligned, views of their middle may not be"
            _demand(address_of(self.base) % ALIGNMENT == 0, "base must be 16-byte aligned", remedy)
        size = itemsize_of(self.base.dtype)
        _demand(
            self.strides[-1] == 1, "Last dimension must be contiguous",
            f"the strides are {tuple(self.strides)}: describe a contiguous copy of the array",
        )  # fmt: skip
        for stride in self.strides[:-1]:
            remedy = f"a stride is {stride * size} bytes: pad the rows to a multiple of 16 bytes"
            _demand(stride * size % ALIGNMENT == 0, "strides must be 16-byte aligned", remedy)
        for extent in self.shape:
            _demand(extent > 0, "shape must be positive", "do not launch for empty arrays")

    def _check_block(self) -> None:
        elements = 1
        for extent in self.block_shape:
            _demand(
                dtypes.is_power_of_two(extent), f"block dimensions must be powers of two: {extent}",
                "take the next one: what is outside of the array reads as the padding",
            )  # fmt: skip
            elements *= extent
        text = f"a block has at most 2**20 elements, {tuple(self.block_shape)} has {elements}"
        _demand(elements <= dtypes.MAX_TILE_ELEMENTS, text, "use smaller blocks, and a larger grid")

    @staticmethod
    def from_tensor(
        tensor: Any,
        block_shape: Sequence[int],
        padding: str = "zero",
        round_f32_to_tf32: bool = False,
    ) -> TensorDescriptor:
        """Describe the whole of `tensor` (torch, NumPy, cupy) with its own shape and strides."""
        shape, strides = list(tensor.shape), list(strides_of(tensor))
        return TensorDescriptor(tensor, shape, strides, block_shape, padding, round_f32_to_tf32)
