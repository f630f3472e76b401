"""Moves boxes between global and shared memory as the TMA unit does, by tensor maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.backends.nvidia.simulator.memory import SHARED, Global, Shared
from tessera.errors import SimulatedHazard

NUMPY = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
NAN: dict[str, np.ndarray] = {name: np.array([np.nan], kind) for name, kind in NUMPY.items()}
NAN["bf16"] = np.array([0x7FC0], np.uint16)
PHASES = {128: 7, 64: 3, 32: 1, 0: 0}


class TensorMap:
    """A tensor map as metadata describes it; `args` are the launch arguments as numbers."""

    def __init__(
        self, elem: str, padding: str, box: Sequence[int], swizzle: int, fields: Sequence[tuple[str, int]],
        args: Sequence[int],
    ):  # fmt: skip
        self.elem, self.padding, self.box, self.swizzle = elem, padding, tuple(box), swizzle
        base, *rest = [args[n] if kind == "arg" else n for kind, n in fields]
        self.base, rank = base, len(self.box)
        self.extents, self.strides = rest[:rank], rest[rank:]
        digits = "".join(c for c in elem if c.isdigit())
        self.size = 1 if elem.startswith("fp8") else int(digits) // 8
        self.row = self.box[-1] * self.size
        self.rows = int(np.prod(self.box[:-1], dtype=np.int64))
        self.bytes = self.row * self.rows
        self.index = np.array(list(np.ndindex(*self.box[:-1])), np.int64).reshape(self.rows, -1)
        self._encodable()

    def _encodable(self) -> None:
        """Raise an error unless cuTensorMapEncodeTiled would accept the map."""
        wrong = [
            name
            for name, bad in (
                ("its address is no multiple of 16", self.base % 16 != 0),
                ("a stride is no multiple of 16 bytes", any(s * self.size % 16 for s in self.strides[:-1])),
                ("its last stride is not 1", self.strides[-1] != 1),
                ("a box is longer than 256", max(self.box) > 256),
                ("a box's row is no multiple of 16 bytes", self.row % 16 != 0),
                ("a box's row is longer than its swizzle", bool(self.swizzle) and self.row > self.swizzle),
            )
            if bad
        ]  # fmt: skip
        if wrong:
            raise SimulatedHazard(f"a tensor map cannot be encoded: {wrong[0]}")

    def chunks(self, shared: int) -> np.ndarray:
        """Return the addresses in shared memory of the box's 16-byte pieces, in the order of its elements."""
        if shared % (1024 if self.swizzle == 128 else 128):
            where = f"{shared - SHARED:#x} of shared memory"
            raise SimulatedHazard(f"a box lies at {where}: misaligned address")
        at = shared + np.arange(0, self.bytes, 16)
        return (at ^ ((at >> 7 & PHASES[self.swizzle]) << 4)) - SHARED

    def lines(self, at: Sequence[int], load: bool) -> tuple[np.ndarray, np.ndarray, int, int]:
        """Return the part of a box inside the array, for the box whose first element has coordinates `at`: the numbers
        of its rows, their addresses, and the first and last byte of a row."""
        if at[-1] * self.size % 16:
            raise SimulatedHazard("the last coordinate of a box is no multiple of 16 bytes")
        place = self.index + np.array(at[:-1], np.int64).reshape(1, -1)
        inside = (place >= 0) & (place < np.array(self.extents[:-1]).reshape(1, -1))
        there = np.asarray(inside.all(1))
        # Stores end at a multiple of 16 bytes.
        end = self.extents[-1]
        end = end if load else -(-end * self.size // 16) * 16 // self.size
        first, last = max(0, -at[-1]), min(self.box[-1], end - at[-1])
        if last <= first:
            there[:] = False
        strides = np.array(self.strides[:-1], np.int64)
        start = self.base + ((place[there] * strides).sum(1) + at[-1] + first) * self.size
        return np.nonzero(there)[0], start, first * self.size, max(first, last) * self.size

    def fetch(self, memory: Global, at: Sequence[int]) -> np.ndarray:
        """Return the box's bytes, [rows, bytes of a row]."""
        data = np.zeros((self.rows, self.row), np.uint8)
        if self.padding == "nan":
            data[:] = NAN[self.elem].repeat(self.box[-1]).view(np.uint8)
        rows, start, first, last = self.lines(at, True)
        for which, e in memory.pieces(start.astype(np.uint64), last - first) if rows.size else ():
            places = (start[which] - e.first)[:, None] + np.arange(last - first)
            data[rows[which], first:last] = e.bytes[places]
        return data

    def put(self, memory: Global, at: Sequence[int], data: np.ndarray, reduction: str) -> None:
        rows, start, first, last = self.lines(at, False)
        for which, e in memory.pieces(start.astype(np.uint64), last - first) if rows.size else ():
            places = (start[which] - e.first)[:, None] + np.arange(last - first)
            new = data.reshape(self.rows, self.row)[rows[which], first:last]
            e.bytes[places] = self._combine(reduction, e.bytes[places], new) if reduction else new

    def _combine(self, kind: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        types = {
            "uint32": np.uint32, "int32": np.int32, "int64": np.int64, "uint64": np.uint64, **NUMPY,
        }  # fmt: skip
        a, b = (np.ascontiguousarray(x).view(types[self.elem]) for x in (old, new))
        how = {
            "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }  # fmt: skip
        return how[kind](a, b).view(np.uint8)


def move_in(shared: Shared, chunks: np.ndarray, data: np.ndarray | int) -> None:
    """Write bytes to pieces of 16."""
    rows = shared.bytes.reshape(-1, 16)
    rows[chunks // 16] = data if isinstance(data, int) else data.reshape(-1, 16)
    shared.known[chunks[:, None] + np.arange(16)] = True


def move_out(shared: Shared, chunks: np.ndarray) -> np.ndarray:
    return shared.bytes.reshape(-1, 16)[chunks // 16].reshape(-1)
