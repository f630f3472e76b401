"""Packs coordinates of a tile into one int: row-major, each dim in its own bits, the last dim lowest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .matrix_ops import LayoutError, log2

__all__ = ["pack", "unpack"]


@lru_cache(maxsize=4096)
def bit_shifts(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the position of each dim's lowest bit in a packed coordinate, after checking the shape."""
    shifts: list[int] = []
    position = 0
    for size in reversed(shape):
        shifts.append(position)
        position += log2(size)
    return tuple(reversed(shifts))


def pack(shape: tuple[int, ...], coords: Sequence[int]) -> int:
    """Return the row-major flat index of coordinates; raise LayoutError if they are out of range."""
    if len(coords) != len(shape):
        raise LayoutError(f"{list(coords)} has not the rank of the shape {list(shape)}")
    flat = 0
    for value, size, shift in zip(coords, shape, bit_shifts(shape), strict=True):
        if not 0 <= value < size:
            raise LayoutError(f"{list(coords)} lies outside of the shape {list(shape)}")
        flat |= value << shift
    return flat


def unpack(shape: tuple[int, ...], flat: int) -> tuple[int, ...]:
    """Return the coordinates of a row-major flat index."""
    return tuple([(flat >> s) & (n - 1) for s, n in zip(bit_shifts(shape), shape, strict=True)])


def unit_columns(shape: tuple[int, ...]) -> list[list[int]]:
    """Return for each dim the packed coordinates 1, 2, 4, ... along it."""
    return [
        [1 << (shift + i) for i in range(log2(size))]
        for shift, size in zip(bit_shifts(shape), shape, strict=True)
    ]
