"""Makes blocked layouts: every thread owns a small contiguous block, threads and warps tile the shape.

`blocked((64, 64), (1, 8), (4, 8), (4, 1), (1, 0))`: each thread has 8 elements along dim 1, 8 lanes form a row of 64,
the 4 groups of lanes and the 4 warps are along the rows (16 at once), and registers 8..31 repeat that 4 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .coords import bit_shifts
from .linear import LinearLayout
from .matrix_ops import LayoutError, log2

__all__ = ["blocked", "default_blocked", "identity1d", "zeros1d"]

LANES = 32  # of a warp


class BasisBuilder:
    """Assigns the coordinate bits of a shape dim by dim, lowest first."""

    __slots__ = ("bases", "shape", "_used", "_shift")

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self.bases: dict[str, list[int]] = {"register": [], "lane": [], "warp": []}
        self._used = [0] * len(self.shape)
        self._shift = bit_shifts(self.shape)

    def take(self, in_dim: str, dim: int, count: int, *, broadcast: bool = True) -> None:
        """Assign the next `count` bits of `dim` to `in_dim`; past the end of the dim: zero bases, or none at all."""
        for _ in range(count):
            if 1 << self._used[dim] < self.shape[dim]:
                self.bases[in_dim].append(1 << (self._shift[dim] + self._used[dim]))
                self._used[dim] += 1
            elif broadcast:
                self.bases[in_dim].append(0)

    def left(self, dim: int) -> int:
        """Return the bits of `dim` not assigned yet."""
        return log2(self.shape[dim]) - self._used[dim]

    def take_left(self, in_dim: str, dim: int, keep: int = 0) -> None:
        """Assign all bits of `dim` but the last `keep` to `in_dim`."""
        self.take(in_dim, dim, max(self.left(dim) - keep, 0))

    def build(self) -> LinearLayout:
        return LinearLayout.packed(self.shape, self.bases)


def _check(shape: Sequence[int], **lists: Sequence[int]) -> None:
    for name, values in lists.items():
        if len(values) != len(shape):
            raise LayoutError(f"{name} {list(values)} has not the rank of the shape {list(shape)}")


@lru_cache(maxsize=1024)
def blocked(
    shape: tuple[int, ...],
    size_per_thread: tuple[int, ...],
    threads_per_warp: tuple[int, ...],
    warps: tuple[int, ...],
    order: tuple[int, ...],
) -> LinearLayout:
    """Contiguous block per thread; lanes, then warps, then repetitions tile the shape, dim order[0] fastest.

    All extents are powers of two.  A tile larger than one CTA tile wraps around into more registers; for a smaller tile
    redundant lanes and warps hold copies (zero bases), and registers are not duplicated.
    """
    _check(
        shape,
        size_per_thread=size_per_thread,
        threads_per_warp=threads_per_warp,
        warps=warps,
        order=order,
    )
    builder = BasisBuilder(shape)
    for dim in order:
        builder.take("register", dim, log2(size_per_thread[dim]), broadcast=False)
    for dim in order:
        builder.take("lane", dim, log2(threads_per_warp[dim]))
    for dim in order:
        builder.take("warp", dim, log2(warps[dim]))
    for dim in order:
        builder.take_left("register", dim)
    return builder.build()


@lru_cache(maxsize=1024)
def default_blocked(
    shape: tuple[int, ...],
    num_warps: int,
    vec: int = 1,
    order: tuple[int, ...] | None = None,
    lanes: int = LANES,
) -> LinearLayout:
    """Return the coalesced blocked layout: vectors of `vec` along order[0], then as many lanes and warps as fit.

    By default the last dim is fastest.  `vec` is lowered so that no lane is idle while registers
    repeat.
    """
    rank = len(shape)
    dims = order if order is not None else tuple(reversed(range(rank)))
    if rank == 0:
        return LinearLayout.packed((), {"lane": [0] * log2(lanes), "warp": [0] * log2(num_warps)})
    elements = 1
    for size in shape:
        elements *= size
    per_thread = [1] * rank
    per_thread[dims[0]] = max(1, min(vec, shape[dims[0]], elements // (lanes * num_warps)))
    extents: list[list[int]] = []
    taken = per_thread
    for total in (lanes, num_warps):
        extent = [1] * rank
        left = total
        for dim in dims:
            extent[dim] = max(1, min(left, shape[dim] // taken[dim]))
            left //= extent[dim]
        extent[dims[-1]] *= left
        taken = [a * b for a, b in zip(taken, extent, strict=True)]
        extents.append(extent)
    return blocked(shape, tuple(per_thread), tuple(extents[0]), tuple(extents[1]), dims)


def identity1d(size: int, in_dim: str) -> LinearLayout:
    """Return a tile of [size] elements, element i at index i of `in_dim`."""
    return LinearLayout.packed((size,), {in_dim: [1 << i for i in range(log2(size))]})


def zeros1d(size: int, in_dim: str) -> LinearLayout:
    """Return a tile of one element, held at each of `size` indices of `in_dim`."""
    return LinearLayout.packed((1,), {in_dim: [0] * log2(size)})
