"""Holds values of many lanes: arrays whose first axis is the lanes, and their bits.

Integers of up to 64 bits are held as uint64, bfloat as float32 numbers, other floats in their own type."""

from __future__ import annotations

import numpy as np

FLOAT = {"half": np.float16, "bfloat": np.float32, "float": np.float32, "double": np.float64}


def round_bf16(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(np.isnan(x), np.float32(np.nan), up.astype(np.uint32).view(np.float32))


def bits_of(type: str) -> int:
    if type.startswith("ptr"):
        return 64
    return {"half": 16, "bfloat": 16, "float": 32, "double": 64}.get(type) or int(type[1:])


def to_raw(type: str, x: np.ndarray) -> np.ndarray:
    """Return bits as uint64 (integers of up to 64 bits)."""
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
