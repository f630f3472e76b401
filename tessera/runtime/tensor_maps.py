"""Tensor maps: what the host encodes before a launch for the copy engine of the GPU.

The compiler says, for each map of a kernel, which launch arguments describe the array and in which box and swizzle the
kernel moves its blocks (`metadata.tensor_maps`, made by passes/tensor_maps.py). Maps are kept by what they say."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tessera.errors import LaunchError
from tessera.runtime.cuda import Driver

MAP_BYTES, MAP_ALIGNMENT = 128, 64
MOST_MAPS = 4096  # kept; then all are made anew
# CUtensorMapDataType by the name of the element type
KINDS = {
    "uint8": 0, "int8": 0, "uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5,
    "fp16": 6, "fp32": 7, "fp64": 8, "bf16": 9,
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTE_256_BYTES = 3
FILL_NAN = 1
UNUSED_STRIDE = 16  # elements: of a dimension of extent 1, where any multiple of 16 bytes will do
Word = tuple[str, int]


class TensorMaps:
    """The maps of one kernel: called with its launch arguments, gives the addresses of the encoded maps."""

    def __init__(self, api: Driver, specs: Sequence[Any]) -> None:
        self.api = api
        self.specs = [_Spec(*s) for s in specs]
        self.known: dict[tuple[int, ...], tuple[list[int], list[Any]]] = {}
        self.used = sorted({n for s in self.specs for kind, n in s.words if kind == "arg"})

    def __call__(self, args: Sequence[Any]) -> list[int]:
        key = tuple([_number(args[i]) for i in self.used])
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= MOST_MAPS:
                self.known.clear()
            values = dict(zip(self.used, key, strict=True))
            buffers = [s.encode(self.api, values) for s in self.specs]
            addresses = [_aligned(b) for b in buffers]
            found = self.known[key] = (addresses, buffers)
        return found[0]


def _number(x: Any) -> int:
    if type(x) is int:
        return x
    return x.data_ptr() if hasattr(x, "data_ptr") else int(x or 0)


def _aligned(buffer: Any) -> int:
    address = ctypes.addressof(buffer)
    return (address + MAP_ALIGNMENT - 1) & -MAP_ALIGNMENT


class _Spec:
    """One map: element type, padding, box and swizzle, and where base, extents and strides come from."""

    def __init__(
        self, elem: str, padding: str, box: Sequence[int], swizzle: int, words: Sequence[Any]
    ) -> None:
        self.elem, self.padding, self.box, self.swizzle = elem, padding, tuple(box), swizzle
        self.words: list[Word] = [(w[0], w[1]) for w in words]

    def encode(self, api: Driver, values: dict[int, int]) -> Any:
        """Memory that holds the map, somewhere at a multiple of its alignment."""
        base, *rest = [values[n] if kind == "arg" else n for kind, n in self.words]
        rank = len(self.box)
        extents, strides = rest[:rank], rest[rank:]
        buffer = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        if base == 0:
            return buffer  # a descriptor of nothing, which must not be used
        kind = KINDS.get(self.elem, 0)
        outer = zip(extents[:-1], strides[:-1], strict=True)
        steps = [UNUSED_STRIDE if n == 1 else s for n, s in outer]
        bytes_of = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}[kind]
        result = api.tensor_map_encode()(
            _aligned(buffer), kind, rank, base,
            (ctypes.c_uint64 * rank)(*reversed(extents)),
            (ctypes.c_uint64 * rank)(*[s * bytes_of for s in reversed(steps)]),
            (ctypes.c_uint32 * rank)(*reversed(self.box)), (ctypes.c_uint32 * rank)(*[1] * rank),
            0, SWIZZLES[self.swizzle], PROMOTE_256_BYTES, FILL_NAN if self.padding == "nan" else 0,
        )  # fmt: skip
        if result != 0:
            raise LaunchError(
                f"no tensor map describes the array at {base:#x} with shape {extents} and strides {strides} of "
                f"{self.elem}: {api.describe(result)[0]}",
                help="the base and all strides but the last must be multiples of 16 bytes, the last stride 1",
            )
        return buffer
