"""Encodes tensor maps, which the GPU's TMA unit reads, before a launch.

For each map of a kernel the compiler says which launch arguments describe the array, and with which box and swizzle the
kernel moves its blocks (`metadata.tensor_maps`, made by passes/gpu_movement/tensor_maps.py). Maps are cached by the
values of those arguments."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from tessera.analysis.intervals import arguments_of, evaluate, holds
from tessera.backends.llvm.subset_types import words_of
from tessera.errors import LaunchError
from tessera.runtime.cuda.driver_api import Driver
from tessera.runtime.native.launcher import hash_words
from tessera.runtime.native.structures import MAP_BUCKETS, MAP_BYTES, MapEntry
from tessera.runtime.native.structures import Maps as MapTable

MAP_ALIGNMENT = 64  # bytes, of a CUtensorMap
MOST_MAPS = 4096  # kept; a further one clears the cache
# CUtensorMapDataType by the name of the element type
KINDS = {
    "uint8": 0, "int8": 0, "uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5,
    "fp16": 6, "fp32": 7, "fp64": 8, "bf16": 9,
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTE_256_BYTES = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B
FILL_NAN = 1  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
UNUSED_STRIDE = 16  # elements: of a dimension of extent 1, where any multiple of 16 bytes is valid
WORD = (1 << 64) - 1  # a mask of 64 bits
Word = tuple[str, int]


class Maps(NamedTuple):
    """The encoded maps of a launch; their memory lives as long as this. `usable`: the kernel's precondition holds.
    `blocks`: how many CTAs to start, 0 for one each program."""

    usable: bool
    addresses: list[int]
    blocks: int
    entry: Any  # MapEntry
    memory: Any


class Instead(NamedTuple):
    """The kernel to run if a precondition fails: function, launch template, and its own maps."""

    function: int
    config: int
    maps: TensorMaps | None


class TensorMaps:
    """The maps of one kernel; a call with its launch arguments and the grid returns the encoded maps.

    `code` and `precondition` are as in analysis/intervals.py. Native launches look maps up in `table`. If they are
    missing, native launches call `learn` with the values of the arguments that `specs` and the code name, 8 bytes each;
    with a precondition, the grid's extents follow. `instead`: the kernel to run if the precondition fails. `resident`:
    how many CTAs the device has room for, for a kernel whose CTAs run several programs each (else 0); its last memory
    argument holds the grid.
    """

    def __init__(
        self,
        api: Driver,
        specs: Sequence[Any],
        code: Sequence[Any] = (),
        precondition: Sequence[Any] = (),
        instead: Callable[[], Instead] | None = None,
        resident: int = 0,
    ) -> None:
        self.api, self.instead, self.resident = api, instead, resident
        self.specs = [_Spec(*s) for s in specs]
        self.code, self.precondition = code, precondition
        self.known: dict[bytes, Maps] = {}
        named = {n for s in self.specs for kind, n in s.words if kind == "arg"}
        self.used = sorted(named | set(arguments_of(code)))
        self.extents = 3 if precondition else 0
        self.count = len(self.specs) + (resident > 0)
        self._chains = (ctypes.c_uint64 * MAP_BUCKETS)()
        self._arguments = (ctypes.c_uint64 * len(self.used))(*self.used)
        self._learn = self.learn
        fields = {
            "maps": self.count, "used": len(self.used), "arguments": ctypes.addressof(self._arguments),
            "chains": ctypes.addressof(self._chains), "learn": id(self._learn), "extents": self.extents,
        }  # fmt: skip
        self.table = words_of(MapTable, fields)

    @property
    def address(self) -> int:
        """Return the address of the table of maps, for native launches."""
        return ctypes.addressof(self.table)

    def __call__(self, args: Sequence[object], grid: Sequence[int] = (1, 1, 1)) -> Maps:
        words = [_number(args[i]) & WORD for i in self.used] + list(grid[: self.extents])
        key = b"".join([x.to_bytes(8, sys.byteorder) for x in words])
        return self.known.get(key) or self._add(key)

    def learn(self, key: bytes) -> bool:
        """Make the maps for these values, or record that another kernel runs. Return whether the table has them now."""
        return (self.known.get(key) or self._add(key)).entry is not None

    def _add(self, key: bytes) -> Maps:
        words = struct.unpack(f"={len(self.used) + self.extents}q", key)
        args, grid = dict(zip(self.used, words, strict=False)), words[len(self.used) :]
        made = self._encoded(args, grid)
        if made is not None:
            return self._keep(key, True, *made)
        if self.instead is None:
            return Maps(False, [], 0, None, None)
        return self._other(key, self.instead(), args, grid)

    def _encoded(
        self, args: Mapping[int, int], grid: Sequence[int]
    ) -> tuple[list[int], int, Any] | None:
        """Return addresses of the maps, CTAs to start, the maps' memory; None if the precondition fails."""
        values = evaluate(self.code, args, grid)
        if not holds(self.precondition, values):
            return None
        named = {("arg", n): x for n, x in args.items()}
        named |= {("code", i): x[0] for i, x in enumerate(values) if x is not None}
        memory = ctypes.create_string_buffer(MAP_BYTES * self.count + MAP_ALIGNMENT)
        first = _aligned(memory)
        addresses = [first + i * MAP_BYTES for i in range(self.count)]
        try:
            for spec, address in zip(self.specs, addresses, strict=False):
                spec.encode(self.api, named, address)
        except LaunchError:
            if not self.precondition:
                raise
            return None  # the driver requires more than the precondition
        if not self.resident:
            return addresses, 0, memory
        ctypes.memmove(addresses[-1], (ctypes.c_int32 * 3)(*grid), 12)
        return addresses, min(self.resident, prod(grid)), memory

    def _other(
        self, key: bytes, other: Instead, args: Mapping[int, int], grid: Sequence[int]
    ) -> Maps:
        """Record for native launches that another kernel runs."""
        function, config, maps = other
        while maps is not None:
            known = set(maps.used) <= set(self.used) and maps.count <= self.count
            found = maps._encoded(args, grid) if known else None
            if found is not None:
                return self._keep(key, False, *found, function=function, config=config)
            if maps.instead is None:
                return Maps(False, [], 0, None, None)
            function, config, maps = maps.instead()
        return self._keep(key, False, [], 0, None, function=function, config=config)

    def _keep(
        self,
        key: bytes,
        usable: bool,
        addresses: list[int],
        blocks: int,
        memory: object,
        **words: int,
    ) -> Maps:
        if len(self.known) >= MOST_MAPS:  # launches in progress have copies or hold their Maps
            self._chains[:] = [0] * MAP_BUCKETS
            self.known.clear()
        made = hash_words(key)
        fields = {
            "function": 0, "config": 0, **words, "next": self._chains[made % MAP_BUCKETS], "hash": made,
            "words": len(key) // 8,
            "key": ctypes.cast(ctypes.c_char_p(key), ctypes.c_void_p).value or 0, "blocks": blocks,
            "data": addresses[0] if addresses else 0, "maps": len(addresses),
        }  # fmt: skip
        entry = words_of(MapEntry, fields)
        found = self.known[key] = Maps(usable, addresses, blocks, entry, memory)
        self._chains[made % MAP_BUCKETS] = ctypes.addressof(entry)
        return found


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

    def encode(self, api: Driver, values: Mapping[Word, int], address: int) -> None:
        """Write the map at `address`, a multiple of MAP_ALIGNMENT."""
        base, *rest = [word[1] if word[0] == "const" else values[word] for word in self.words]
        base &= WORD
        rank = len(self.box)
        extents, strides = rest[:rank], rest[rank:]
        if base == 0 or 0 in extents:
            return  # a descriptor of nothing, which must not be used: a loop over no tiles does not
        kind = KINDS.get(self.elem, 0)
        outer = zip(extents[:-1], strides[:-1], strict=True)
        steps = [UNUSED_STRIDE if n == 1 else s for n, s in outer]
        bytes_of = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}[kind]
        result = api.tensor_map_encode()(
            address, kind, rank, base,
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
