"""Arguments of a launch in the simulator."""

# pyright: basic
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tessera.analysis.intervals import evaluate, holds

SCALARS = {"fp32": "float", "fp64": "double", "fp16": "half", "bf16": "bfloat"}


def guarded(metadata: Any, values: list[Any], grid: tuple[int, ...]) -> bool:
    """Whether a launch passes the kernel's guard. Arrays count as aligned, as their copies in the simulator are."""
    numbers = [v.ctypes.data & -16 if isinstance(v, np.ndarray) else v[1] for v in values]
    args = {i: x for i, x in enumerate(numbers) if isinstance(x, int)}
    found = evaluate(getattr(metadata, "host_code", ()), args, grid)
    return holds(getattr(metadata, "guard", ()), found)


def argument(kind: str, value: Any) -> Any:
    """What the simulator takes: an array, or a number with its LLVM type."""
    while hasattr(value, "base") and not isinstance(value, np.ndarray):
        value = value.base  # the bits of a typed view
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "data_ptr"):
        return _storage(value)
    if kind in SCALARS:
        return (SCALARS[kind], float(value))
    return ("i64", int(value or 0))


def _storage(tensor: Any) -> np.ndarray:
    """The bytes from a host tensor's first element to the end of its storage."""
    whole, start = tensor.untyped_storage(), tensor.data_ptr()
    first = whole.data_ptr() if hasattr(whole, "data_ptr") else start
    size = max(first + whole.nbytes() - start, 0)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
