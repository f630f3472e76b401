"""Finds the memory behind the arguments of a launch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np


def root_of(array: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of a view."""
    while isinstance(inner := array.base, np.ndarray):
        array = inner
    return array


def array_extent(x: Any) -> tuple[int, int] | None:
    """Return the (first, end) address of the storage behind an array argument; None for raw addresses."""
    if isinstance(x, np.ndarray):
        array = root_of(cast("np.ndarray", x))
        low = high = array.ctypes.data
        for n, stride in zip(array.shape, array.strides, strict=True):
            reach = (n - 1) * stride
            low, high = low + min(reach, 0), high + max(reach, 0)
        return (low, high + array.itemsize) if array.size else (low, low)
    if hasattr(x, "untyped_storage"):
        s = x.untyped_storage()
        return s.data_ptr(), s.data_ptr() + s.nbytes()
    base = getattr(x, "base", None)  # a typed view of an array
    return None if base is None else array_extent(base)


def address_of(x: Any) -> int:
    """Return the address that a pointer argument stands for."""
    if x is None:
        return 0
    if isinstance(x, np.ndarray):
        return x.ctypes.data
    return x.data_ptr() if hasattr(x, "data_ptr") else int(x)
