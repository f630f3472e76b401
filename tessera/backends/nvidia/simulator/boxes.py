"""Tensor maps for the simulator: what the copy engine moves between global and shared memory."""

# pyright: basic
from __future__ import annotations

import numpy as np

NUMPY = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
NAN = {name: np.array([np.nan], kind) for name, kind in NUMPY.items()}
NAN["bf16"] = np.array([0x7FC0], np.uint16)


class TensorMap:
    """As metadata describes it; `args` are the launch arguments as numbers."""

    def __init__(self, elem: str, padding: str, box, swizzle: int, words, args: list[int]):
        self.elem, self.padding, self.box, self.swizzle = elem, padding, tuple(box), swizzle
        base, *rest = [args[n] if kind == "arg" else n for kind, n in words]
        self.base, rank = base, len(self.box)
        self.extents, self.strides = rest[:rank], rest[rank:]
        digits = "".join(c for c in elem if c.isdigit())
        self.size = 1 if elem.startswith("fp8") else int(digits) // 8
        assert all(s * self.size % 16 == 0 for s in self.strides[:-1]), "strides of a map"
        assert self.strides[-1] == 1 and max(self.box) <= 256
        assert not swizzle or self.box[-1] * self.size <= swizzle

    def move(self, memory, shared: int, at: tuple[int, ...], load: bool, reduction: str | None):
        """Move the box whose first element has coordinates `at`; the bytes that count."""
        assert at[-1] * self.size % 16 == 0, "the engine stops at such a coordinate"
        row = self.box[-1] * self.size
        assert shared % (1024 if self.swizzle == 128 else 128) == 0, "place of a box"
        for n, index in enumerate(np.ndindex(*self.box[:-1])):
            place = [a + i for a, i in zip(at, (*index, 0))]
            data = np.zeros(row, np.uint8)
            if load and self.padding == "nan":
                data = NAN[self.elem].repeat(self.box[-1]).view(np.uint8)
            outside = any(not 0 <= x < e for x, e in zip(place[:-1], self.extents[:-1]))
            first = max(0, -place[-1])
            # What is stored ends at a multiple of 16 bytes.
            end = (
                self.extents[-1]
                if load
                else -(-self.extents[-1] * self.size // 16) * 16 // self.size
            )
            last = min(self.box[-1], end - place[-1])
            if not outside and last > first:
                offset = self.base + sum(x * s for x, s in zip(place, self.strides)) * self.size
                mine = None if load else self.line(memory, shared + n * row, row, None)
                for k in range(first, last):
                    there = memory.place(offset + k * self.size, self.size, False)
                    part = slice(k * self.size, (k + 1) * self.size)
                    if mine is None:
                        data[part] = there
                    elif reduction is None:
                        there[:] = mine[part]
                    else:
                        there[:] = self.combine(reduction, there, mine[part])
            if load:
                self.line(memory, shared + n * row, row, data)
        return row * int(np.prod(self.box[:-1]))

    def line(self, memory, start: int, size: int, data):
        """The bytes from `start` on, each 16 of them where the swizzle puts them."""
        phases = {128: 7, 64: 3, 32: 1, 0: 0}[self.swizzle]
        out = np.zeros(size, np.uint8)
        for i in range(0, size, 16):
            address = start + i
            address ^= (address >> 7 & phases) << 4
            there = memory.place(address, 16, True)
            if data is None:
                out[i : i + 16] = there
            else:
                there[:] = data[i : i + 16]
        return out

    def combine(self, kind: str, old, new):
        types = {
            "uint32": np.uint32,
            "int32": np.int32,
            "int64": np.int64,
            "uint64": np.uint64,
            **NUMPY,
        }
        a, b = (x.copy().view(types[self.elem]) for x in (old, new))
        how = {
            "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }  # fmt: skip
        return how[kind](a, b).view(np.uint8)
