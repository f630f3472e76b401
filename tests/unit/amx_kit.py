"""Runs code for the matrix unit on machines without it: tile instructions become calls of Python on NumPy tiles."""

# pyright: basic
from __future__ import annotations

import ctypes
import re
from typing import Any

import ml_dtypes
import numpy as np

from tessera.backends.cpu.backend import compile_object
from tessera.backends.cpu.pool import Pool
from tessera.backends.llvm.binding import host, host_features, link_object

ROWS, BYTES = 16, 64


class Tiles:
    """The eight registers, and how often each instruction ran."""

    def __init__(self) -> None:
        self.data = np.zeros((8, ROWS, BYTES), np.uint8)
        self.ran: dict[str, int] = {}
        self.configured = False

    def ldtilecfg(self, ptr: int) -> None:
        palette = np.frombuffer(ctypes.string_at(ptr, 64), np.uint8)
        assert palette[0] == 1
        assert (palette[16:32].view(np.uint16) == BYTES).all()
        assert (palette[48:56] == ROWS).all()
        self.configured = True

    def tilerelease(self) -> None:
        self.configured = False

    def _lines(self, ptr: int, stride: int) -> list[Any]:
        assert self.configured
        return [(ctypes.c_uint8 * BYTES).from_address(ptr + i * stride) for i in range(ROWS)]

    def tileloadd64(self, t: int, ptr: int, stride: int) -> None:
        for i, line in enumerate(self._lines(ptr, stride)):
            self.data[t, i] = np.frombuffer(line, np.uint8)

    tileloaddt164 = tileloadd64

    def tilestored64(self, t: int, ptr: int, stride: int) -> None:
        for i, line in enumerate(self._lines(ptr, stride)):
            line[:] = self.data[t, i].tobytes()

    def tilezero(self, t: int) -> None:
        self.data[t] = 0

    def _add(self, c: int, a: int, b: int, kind: Any, sums: Any) -> None:
        group = 4 // np.dtype(kind).itemsize
        left = self.data[a].view(kind).astype(sums)  # [16, 16 * group]
        words = self.data[b].view(kind).reshape(ROWS, 16, group)  # [k, n, group]
        right = words.transpose(0, 2, 1).reshape(ROWS * group, 16).astype(sums)
        self.data[c].view(sums)[...] += left @ right

    def tdpbf16ps(self, c: int, a: int, b: int) -> None:
        self._add(c, a, b, ml_dtypes.bfloat16, np.float32)

    def tdpbssd(self, c: int, a: int, b: int) -> None:
        self._add(c, a, b, np.int8, np.int32)


BESIDE = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512bf16", "avx512vnni"}


def lacking() -> str:
    """What this machine lacks to run the code around the tile instructions, in words; "" if nothing."""
    return ", ".join(sorted(BESIDE - host_features()))


KINDS = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "i8": ctypes.c_int8}
CALL = re.compile(r"call void @llvm\.x86\.(ldtilecfg|tile\w+|tdp\w+)\(([^)]*)\)")


def run(kernel: Any, grid: tuple[int, int, int], *args: Any) -> Tiles:
    """Launch a kernel compiled for "amx" on one thread; arguments are arrays and ints."""
    tiles, keep = Tiles(), {}

    def address(name: str, operands: str) -> int:
        if name not in keep:
            types = [KINDS[x.split()[0]] for x in operands.split(", ") if x]

            def call(*values: int) -> None:
                tiles.ran[name] = tiles.ran.get(name, 0) + 1
                getattr(tiles, name)(*values)

            keep[name] = ctypes.CFUNCTYPE(None, *types)(call)
        return ctypes.cast(keep[name], ctypes.c_void_p).value or 0

    def replaced(found: re.Match[str]) -> str:
        name, operands = found.groups()
        return f"call void inttoptr (i64 {address(name, operands)} to ptr)({operands})"

    text = re.sub(r"declare void @llvm\.x86\.(ldtilecfg|tile|tdp).*\n", "", kernel.asm["llir"])
    code = link_object(compile_object(CALL.sub(replaced, text), host("native")), [kernel.name])
    slots = np.zeros(len(args), np.int64)
    for i, x in enumerate(args):
        slots[i] = x.ctypes.data if isinstance(x, np.ndarray) else x
    scratch = kernel.metadata.scratch_bytes
    assert Pool(1).launch(code[kernel.name], slots.ctypes.data, grid, scratch) == 0
    return tiles
