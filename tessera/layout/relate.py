"""Relates two distributed layouts of one tile: where a holder of the second finds its element in the first.

`invert_and_compose(src, dst)` solves src(x) = dst(y) for x, linear in y.  If src holds elements more than once, the
solution is chosen so that data stays put: in the same warp if possible, then the same lane, then the lowest registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .linear import LinearLayout
from .matrix_ops import Columns, Echelon, LayoutError, apply, images

__all__ = ["SourceMap", "broadcast_map", "invert_and_compose", "register_map", "source_map"]

HOLDERS = ("register", "lane", "warp")


@dataclass(frozen=True, slots=True)
class SourceMap:
    """Columns of the map from (register, lane, warp) of dst to those of src, packed with the register lowest.

    Field widths are those of src: `register_bits` and `lane_bits`.
    """

    register: Columns
    lane: Columns
    warp: Columns
    register_bits: int
    lane_bits: int

    def register_of(self, packed: int) -> int:
        return packed & ((1 << self.register_bits) - 1)

    def lane_of(self, packed: int) -> int:
        return (packed >> self.register_bits) & ((1 << self.lane_bits) - 1)

    def warp_of(self, packed: int) -> int:
        return packed >> (self.register_bits + self.lane_bits)

    def unpack(self, packed: int) -> tuple[int, int, int]:
        """Return (register, lane, warp) of src."""
        return self.register_of(packed), self.lane_of(packed), self.warp_of(packed)

    @property
    def keeps_warps(self) -> bool:
        """Whether each warp of dst finds all its elements in the same warp of src."""
        moved = [self.warp_of(c) for c in self.register + self.lane]
        return not any(moved) and all(self.warp_of(c) == 1 << i for i, c in enumerate(self.warp))

    def source(self, register: int, lane: int, warp: int) -> tuple[int, int, int]:
        """Return (register, lane, warp) of src where (register, lane, warp) of dst finds its element."""
        packed = apply(self.register, register) ^ apply(self.lane, lane) ^ apply(self.warp, warp)
        return self.unpack(packed)


def check_same_holders(src: LinearLayout, dst: LinearLayout) -> None:
    """Check that both layouts are of one tile in one set of warps; raise LayoutError otherwise."""
    if src.shape != dst.shape:
        raise LayoutError(f"layouts of different shapes: {list(src.shape)} and {list(dst.shape)}")
    for name in ("lane", "warp"):
        if src.bits(name) != dst.bits(name):
            raise LayoutError(f"layouts over {src.size(name)} and {dst.size(name)} {name}s")
    if src.bits("block") or dst.bits("block"):
        raise LayoutError("exchange between the CTAs of a cluster is not supported")


@lru_cache(maxsize=1024)
def source_map(src: LinearLayout, dst: LinearLayout) -> SourceMap:
    """Return the most local linear map from holders of `dst` to those of `src`; raise LayoutError if src lacks
    elements."""
    check_same_holders(src, dst)
    echelon = Echelon(c for name in HOLDERS for c in src.columns(name))
    shift = {"register": None, "lane": src.bits("register")}
    shift["warp"] = src.bits("register") + src.bits("lane")
    found: dict[str, list[int]] = {}
    for name in HOLDERS:
        own = src.columns(name)
        place = shift[name]
        columns = found.setdefault(name, [])
        for i, element in enumerate(dst.columns(name)):
            # Start from the same lane or warp bit and add only what is missing; the echelon form prefers registers.
            start = 0 if place is None else 1 << (place + i)
            delta = echelon.solve(element if place is None else element ^ own[i])
            if delta is None:
                raise LayoutError(f"{src} does not hold every element of {dst}")
            columns.append(start ^ delta)
    return SourceMap(
        tuple(found["register"]),
        tuple(found["lane"]),
        tuple(found["warp"]),
        src.bits("register"),
        src.bits("lane"),
    )


def invert_and_compose(src: LinearLayout, dst: LinearLayout) -> LinearLayout:
    """Return `source_map` as a layout: in-dims of dst, out shape (src warps, src lanes, src registers)."""
    found = source_map(src, dst)
    shape = (src.size("warp"), src.size("lane"), src.size("register"))
    return LinearLayout.packed(
        shape, {"register": found.register, "lane": found.lane, "warp": found.warp}
    )


@lru_cache(maxsize=1024)
def register_map(src: LinearLayout, dst: LinearLayout) -> tuple[int, ...] | None:
    """Return for each register of dst the register of src, if each thread already holds what dst needs in it, in the
    same registers in every thread. Otherwise return None."""
    found = source_map(src, dst)
    registers = (1 << found.register_bits) - 1
    if any(c & ~registers for c in found.register):
        return None
    moved = (found.register_bits, found.register_bits + found.lane_bits)
    for columns, place in zip((found.lane, found.warp), moved, strict=True):
        if any(c != 1 << (place + i) for i, c in enumerate(columns)):
            return None
    return tuple(images(found.register))


def broadcast_map(src: LinearLayout, dst: LinearLayout) -> tuple[int, ...] | None:
    """Return for each register of dst the register of src, for a broadcast of src (dims of size 1) to dst; None if data
    must first move between threads (convert src to `dst.restrict(src.shape)`)."""
    return register_map(src, dst.restrict(src.shape))
