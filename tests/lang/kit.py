"""Sample values by dtype name, for table-driven language tests."""

from __future__ import annotations

import numpy as np

SIGNED = ["i8", "i16", "i32", "i64"]
UNSIGNED = ["u8", "u16", "u32", "u64"]
INTS = [*SIGNED, *UNSIGNED]
FLOATS = ["fp16", "bf16", "fp32", "fp64"]
NUMPY = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u16": np.uint16,
    "u32": np.uint32, "u64": np.uint64, "fp16": np.float16, "bf16": np.float32, "fp32": np.float32, "fp64": np.float64,
}  # fmt: skip


def sample(dtype: str, shape: tuple[int, ...], small: bool = False, seed: int = 0) -> np.ndarray:
    """Values over the whole range of an int dtype (`small`: few of them), normal ones of a float dtype.

    bf16 comes as float32 numbers that bf16 represents.
    """
    rng = np.random.default_rng([seed, len(shape), *shape])
    kind = NUMPY[dtype]
    if dtype == "i1":
        return rng.integers(0, 2, shape).astype(kind)
    if dtype in FLOATS:
        x = rng.standard_normal(shape).astype(kind)
        if dtype == "bf16":
            x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
        return x
    info = np.iinfo(kind)
    low, high = (max(info.min, -5), 6) if small else (info.min, info.max)
    return rng.integers(low, high, shape, dtype=kind, endpoint=True)
