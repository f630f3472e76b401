"""Values of the SIMT simulator: arrays by thread, their bits, and memory. bfloat is held as float32 numbers."""

# pyright: basic
from __future__ import annotations

import re

import numpy as np

from tessera.interp.arith import _fma_f64

SHARED = 0x1000
WINDOW = 1 << 18  # from the shared memory of one block of a cluster to the next one's
PAGE = 1 << 32  # arrays start at multiples of this address, so that no access strays into another
FLOAT = {"half": np.float16, "bfloat": np.float32, "float": np.float32, "double": np.float64}
PTX_BITS = re.compile(r"\.[bfsu](\d+)")


def round_bf16(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), np.float32(np.nan), up.astype(np.uint32).view(np.float32))


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """x * y + z in fp64, rounded once."""
    return _fma_f64(x, y, z)


def add_to(acc: list, i: int, thread: int, value: float, half: bool) -> None:
    """Add to accumulator register i; fp16 ones stand in pairs."""
    if half:
        pair = acc[i // 2][thread : thread + 1].astype(np.uint32).view(np.float16)
        pair[i % 2] += np.float16(value)
        acc[i // 2][thread] = pair.view(np.uint32)[0]
    elif acc[i].dtype == np.uint64:
        acc[i][thread] = np.uint64((int(acc[i][thread]) + int(value)) & 0xFFFFFFFF)
    else:
        acc[i][thread] += value


def bits_of(type: str) -> int:
    if type.startswith("ptr"):
        return 64
    return {"half": 16, "bfloat": 16, "float": 32, "double": 64}.get(type) or int(type[1:])


def to_raw(type: str, x: np.ndarray) -> np.ndarray:
    """Bits as uint64 (integers of up to 64 bits)."""
    if type in ("half", "float", "double"):
        return x.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[x.itemsize]).astype(np.uint64)
    if type == "bfloat":
        return (x.view(np.uint32) >> 16).astype(np.uint64)
    return mask_int(x, bits_of(type))


def from_raw(type: str, raw: np.ndarray) -> np.ndarray:
    if type == "bfloat":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if type in FLOAT:
        t = FLOAT[type]
        return raw.astype(f"u{np.dtype(t).itemsize}").view(t)
    return raw.astype(np.uint64)


def mask_int(x: np.ndarray, bits: int) -> np.ndarray:
    return x & np.uint64((1 << bits) - 1) if bits < 64 else x


def signed(x: np.ndarray, bits: int) -> np.ndarray:
    shift = np.uint64(64 - bits)
    return (x << shift).view(np.int64) >> np.int64(64 - bits)


class Memory:
    """Global arrays at addresses PAGE, 2 PAGE, ..., and the shared memory of each block of a cluster."""

    def __init__(self, shared_bytes: int, blocks: int = 1) -> None:
        self.arrays: list[np.ndarray] = []
        self.shared = np.full((blocks, shared_bytes), 0xA5, np.uint8)

    def add(self, array: np.ndarray) -> int:
        self.arrays.append(array.reshape(-1).view(np.uint8))
        return len(self.arrays) * PAGE

    def place(self, address: int, size: int, shared: bool) -> np.ndarray:
        if shared:
            rank, at = divmod(address - SHARED, WINDOW)
            space = self.shared[rank]
        else:
            number, at = divmod(address % 2**64, PAGE)
            if not 0 < number <= len(self.arrays):
                raise IndexError(f"address {address:#x} is in no array")
            space = self.arrays[number - 1]
        if at < 0 or at + size > len(space):
            raise IndexError(
                f"{size} bytes at {at} of {len(space)} ({'shared' if shared else 'global'})"
            )
        if at % size:
            raise IndexError(f"{size} bytes at {at}: not aligned")
        return space[at : at + size]
