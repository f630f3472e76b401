"""Cuts a tile into boxes, the pieces in which the TMA unit moves it between global and shared memory.

A box is a rectangle of elements that is contiguous in shared memory, with its rows swizzled within 128, 64 or 32
bytes. A tile wider than a swizzle takes several adjacent boxes. Example: 64x256 fp16 in a swizzle of 128 bytes:

    4 boxes of 64 rows of 64 elements, at bytes 0, 8192, 16384, 24576
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd, prod

from .linear import LinearLayout
from .shared import shared_linear, shared_swizzled, widest_swizzle

__all__ = ["Boxes", "box_layout", "boxes_of"]

MAX_EXTENT = 256
"""Most elements of a box along one dimension."""
MIN_ROW_BYTES = 16  # of a box's innermost dimension (CUDA, tensor maps)
SWIZZLES = (128, 64, 32)
PLACE_BYTES = 1024
"""Alignment of a box with a swizzle."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """How a tile is cut: extents of a box (in the order of the tile's dimensions), bytes of its swizzle (0: none), and
    the first coordinates of the boxes in their order in shared memory."""

    box: tuple[int, ...]
    swizzle: int
    starts: tuple[tuple[int, ...], ...]

    @property
    def elements(self) -> int:
        """Elements of one box."""
        return prod(self.box)

    def of_rank(self, rank: int) -> Boxes:
        """Return these boxes in an array with more leading dimensions than the tile: extents of 1, starts at 0."""
        more = rank - len(self.box)
        starts = tuple([(*[0] * more, *start) for start in self.starts])
        return Boxes((*[1] * more, *self.box), self.swizzle, starts)

    def shares(self, count: int, bits: int) -> Boxes | None:
        """Cut the boxes so that they form `count` equal runs, into boxes of fewer rows if necessary. None if
        there are too few rows."""
        if len(self.starts) % count == 0:
            return self
        dim = next((i for i, n in enumerate(self.box[:-1]) if n > 1), None)
        more = count // gcd(count, len(self.starts))
        part = self.elements // more * bits // 8
        if dim is None or self.box[dim] % more or part % PLACE_BYTES:
            return None
        rows = self.box[dim] // more
        box = (*self.box[:dim], rows, *self.box[dim + 1 :])
        starts = [
            (*at[:dim], at[dim] + i * rows, *at[dim + 1 :])
            for at in self.starts
            for i in range(more)
        ]
        return Boxes(box, self.swizzle, tuple(starts))


@lru_cache(maxsize=256)
def box_layout(shape: tuple[int, ...], bits: int) -> LinearLayout | None:
    """Return the layout in shared memory that the TMA unit fills best for a tile; None if it cannot move the tile.

    Rows are along the last dimension, with the widest swizzle that they fill."""
    if shape[-1] * bits < MIN_ROW_BYTES * 8:
        return None
    order = tuple(reversed(range(len(shape))))
    width = widest_swizzle(shape, order, bits) if len(shape) > 1 and shape[-2] >= 8 else 0
    layout = (
        shared_swizzled(shape, order, bits, width)
        if width in SWIZZLES
        else shared_linear(shape, order)
    )
    return layout if boxes_of(layout, bits) is not None else None


@lru_cache(maxsize=256)
def boxes_of(layout: LinearLayout, bits: int) -> Boxes | None:
    """Return how the TMA unit fills shared memory in `layout`; None if it cannot."""
    shape: tuple[int, ...] = layout.shape
    inner = shape[-1]
    order = tuple(reversed(range(len(shape))))
    for width in SWIZZLES:
        fits = len(shape) > 1 and shape[-2] >= 8 and inner * bits >= width * 8
        if fits and shared_swizzled(shape, order, bits, width) == layout:
            return _cut(shape, width * 8 // bits, width)
    return _cut(shape, inner, 0) if shared_linear(shape, order) == layout else None


def _cut(shape: tuple[int, ...], width: int, swizzle: int) -> Boxes | None:
    """Cut a tile into boxes of `width` elements of each row. If that is the whole row a box has all rows, else those
    along the last but one dimension."""
    whole = width == shape[-1]
    rows = shape[:-1] if whole else (*[1] * (len(shape) - 2), *shape[-2:-1])
    box: tuple[int, ...] = (*rows, width)
    if any(extent > MAX_EXTENT for extent in box):
        return None
    return Boxes(box, swizzle, tuple(_starts(shape, box)))


def _starts(shape: tuple[int, ...], box: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    steps = [range(0, extent, step) for extent, step in zip(shape, box, strict=True)]
    return product(*steps)
