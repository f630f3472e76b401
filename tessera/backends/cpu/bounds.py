"""Finds what a mask compares, so that loops need not test it where it holds.

Masks like `offsets < n` that are true up to some index along the vector dimension split a loop in two: whole vectors
below the bound, where the mask is known to be true, and the rest under the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.values import Coord, Point
from tessera.dtypes import dtype, int1
from tessera.ir import TileType, Value, elem_of, shape_of
from tessera.ops import arith, tile

MOST = 1 << 40  # elements, more than any tile has
LARGEST = 1 << 20  # elements of the largest tile
Corner = tuple[int, ...]  # of a tile: an index along each dimension
Bit = Callable[[Point], str]
Growth = Callable[[int], tuple[int, int] | None]
_MASKS = (arith.AndOp, tile.ExpandDimsOp, tile.BroadcastOp)  # what a mask is made of


def slope(v: Value, dim: int) -> int | None:
    """Return how much an integer or pointer grows per index along `dim`, in elements; None if that is unknown."""
    t = v.type
    if not isinstance(t, TileType) or t.shape[dim] == 1:
        return 0
    op = v.op
    if isinstance(op, (arith.ConstOp, tile.SplatOp)):
        return 0
    if isinstance(op, tile.ArangeOp):
        return 1
    if isinstance(op, (arith.AddOp, arith.SubOp, arith.AddPtrOp)):
        a, b = (slope(x, dim) for x in op.operands)
        if a is None or b is None:
            return None
        return a - b if isinstance(op, arith.SubOp) else a + b
    if isinstance(op, (arith.HintOp, arith.CastOp)):
        wider = elem_of(t).bits >= elem_of(op.x.type).bits
        return slope(op.x, dim) if _is_int(op.x) and _is_int(v) and wider else None
    if isinstance(op, tile.BroadcastOp):
        return 0 if shape_of(op.x.type)[dim] == 1 else slope(op.x, dim)
    if isinstance(op, tile.ExpandDimsOp):
        return 0 if dim == op.axis else slope(op.x, dim - (dim > op.axis))
    return None


def _is_int(v: Value) -> bool:
    e = elem_of(v.type)
    return isinstance(e, dtype) and e.is_int() and e is not int1


@dataclass(frozen=True, slots=True)
class Prefix:
    """A mask in the shape of the nest, and the comparison that it comes from. `dims` maps each dimension of the
    comparison to that of the nest (or None). Along a dimension that `dims` lacks it is the same at all indices."""

    mask: Value
    compare: arith.CmpOp
    dims: tuple[int | None, ...]

    def others(self, dim: int) -> list[int]:
        """Return the dimensions of the nest besides `dim` on which the comparison depends."""
        return [d for d in self.dims if d is not None and d != dim]

    def sides(self) -> tuple[Value, Value] | None:
        """Return the side that must be below the other one (or equal), and this other one."""
        op = self.compare
        if op.predicate in ("lt", "le"):
            return op.lhs, op.rhs
        return (op.rhs, op.lhs) if op.predicate in ("gt", "ge") else None

    def growth(self, dim: int) -> tuple[int, int] | None:
        """Return how much either side grows per index along `dim`; None if that is unknown."""
        if dim not in self.dims or (sides := self.sides()) is None:
            return None if dim in self.dims else (0, 0)
        a, b = (slope(v, self.dims.index(dim)) for v in sides)
        return None if a is None or b is None else (a, b)


def comparisons(lo: Lowering, mask: Value, dims: Sequence[int | None]) -> Iterator[Prefix | None]:
    """Yield the comparisons of integers that all hold where a mask does, and None for anything else that it depends on.
    `dims`: the dimension of the nest for each of the mask's."""
    op = mask.op
    if mask in lo.buffers or not isinstance(op, (*_MASKS, arith.CmpOp)):
        yield None
    elif isinstance(op, arith.AndOp):
        yield from comparisons(lo, op.lhs, dims)
        yield from comparisons(lo, op.rhs, dims)
    elif isinstance(op, tile.ExpandDimsOp):
        yield from comparisons(lo, op.x, (*dims[: op.axis], *dims[op.axis + 1 :]))
    elif isinstance(op, tile.BroadcastOp):
        wide = zip(shape_of(op.x.type), dims, strict=True)
        yield from comparisons(lo, op.x, [None if s == 1 else d for s, d in wide])
    else:
        yield Prefix(mask, op, tuple(dims)) if _is_int(op.lhs) else None


def prefix_masks(lo: Lowering, mask: Value, dim: int, even: bool = False) -> list[Prefix]:
    """Return the parts of a mask that are true up to some index along `dim` and false from there on. `even`: those,
    too, that hold everywhere if they hold at the first index, as they are the same at all (those of rows) or true from
    some index on (lower bounds): an access under a mask is slow, even if it holds."""
    op = mask.op
    if isinstance(op, arith.AndOp) and mask not in lo.buffers:
        return prefix_masks(lo, op.lhs, dim, even) + prefix_masks(lo, op.rhs, dim, even)
    (first, *more) = comparisons(lo, mask, range(len(shape_of(mask.type))))
    if first is None or more:
        return []
    t = elem_of(first.compare.lhs.type)
    if dim in first.dims and t.bits == 64 and not t.signed:
        return []  # bounds are computed with signed numbers of 64 bits
    found = [(1, 0), *(((0, 0), (0, 1)) if even else ())]
    known = first.growth(dim) in found and (dim not in first.dims or first.growth(dim) != (0, 0))
    return [Prefix(mask, first.compare, first.dims)] if known else []


def all_inside(lo: Lowering, mask: Value | None) -> str:
    """Return an i1: whether a mask is true everywhere; "false" if it is no `and` of comparisons each of which is known
    to hold everywhere if it does at one corner of the tile. The mask is evaluated at these corners, and at the opposite
    ones, where it is false if an index wraps."""
    if mask is None:
        return "true"
    shape = shape_of(mask.type)
    parts = list(comparisons(lo, mask, range(len(shape))))
    found = [_corners(shape, p.growth) for p in parts if p is not None]
    if None in parts or not all(found):
        return "false"
    corners = [c for pair in found for c in pair]
    return _hold(lo, shape, corners, lambda at: lo.text(lo.value(mask, at), 1))


def undivided(lo: Lowering, op: arith.RemOp) -> str:
    """Return an i1: whether all of a tile of remainders are what is divided, and not negative, as in `columns % n` up
    to column n; "false" if two corners do not tell it."""
    shape, t = shape_of(op.lhs.type), scalar_type(elem_of(op.lhs.type))

    def same(at: Point) -> str:
        x, rest = (lo.text(lo.value(v, at), 1) for v in (op.lhs, op.result))
        above = lo.em.op(f"icmp sge {t} {x}, 0")
        return lo.em.op(f"and i1 {above}, {lo.em.op(f'icmp eq {t} {x}, {rest}')}")

    def growth(d: int) -> tuple[int, int] | None:
        a, b = slope(op.lhs, d), slope(op.rhs, d)
        return None if a is None or b != 0 or not _is_int(op.lhs) else (a, b)

    return _hold(lo, shape, corners, same) if (corners := _corners(shape, growth)) else "false"


def _hold(lo: Lowering, shape: Sequence[int], corners: Iterable[Corner], bit: Bit) -> str:
    """Return an i1: whether all of the i1s `bit` of some elements are true."""
    holds = "true"
    for corner in dict.fromkeys(corners):
        lo.memo = {}
        at = tuple(Coord(i, (), None, s) for i, s in zip(corner, shape, strict=True))
        holds = lo.both(holds, bit(Point(at, 1)))
    lo.memo = {}
    return holds


def _corners(shape: Sequence[int], growth: Growth) -> list[Corner]:
    """Return the indices at which a comparison holds only if it does everywhere, and those of the opposite corner; none
    if they are not known. `growth` of a dimension: how much either side grows along it."""
    growths = [g for d in range(len(shape)) if (g := growth(d)) is not None]
    if len(growths) < len(shape):
        return []
    worst = tuple(0 if a < b else s - 1 for (a, b), s in zip(growths, shape, strict=True))
    return [worst, tuple(s - 1 - i for i, s in zip(worst, shape, strict=True))]


def split_bound(
    lo: Lowering,
    along: tuple[int, int],
    coords: list[Coord],
    masks: list[Prefix],
    step: int,
    start: str = "",
) -> tuple[str, set[Value]]:
    """Return (end of the whole iterations of `step` elements from element `start` (an i64) for which all `masks` hold,
    the masks). `along`: the loop's dimension and its size."""
    em = lo.em
    limit = first_end(lo, *along, coords, masks)
    if start:
        limit = em.op(f"sub nsw i64 {limit}, {start}")
    limit = em.call("i64", "llvm.smax.i64", f"i64 {limit}", "i64 0")
    limit = em.op(f"and i64 {limit}, {-step}")
    return em.op(f"add nsw i64 {limit}, {start}") if start else limit, {p.mask for p in masks}


def first_end(
    lo: Lowering,
    dim: int,
    size: int,
    coords: Sequence[Coord],
    masks: Iterable[Prefix],
    stays: bool = False,
) -> str:
    """Return an i64: for how many of `size` elements along `dim` all of `masks` hold; it may be negative. `stays`: none
    holds further on."""
    limit = str(size)
    for prefix in masks:
        end = _end(lo, coords, prefix, dim, size if stays else 0)
        limit = lo.em.call("i64", "llvm.smin.i64", f"i64 {limit}", f"i64 {end}")
    return limit


def last_end(
    lo: Lowering, coords: Sequence[Coord], masks: Iterable[Prefix], dim: int, size: int
) -> str:
    """Return an i64: the index along `dim`, of `size` elements, from which on none of `masks` holds; it may be beyond
    the tile."""
    limit = "0"
    for prefix in masks:
        end = _end(lo, coords, prefix, dim, size)
        limit = lo.em.call("i64", "llvm.smax.i64", f"i64 {limit}", f"i64 {end}")
    return limit


def _end(lo: Lowering, coords: Sequence[Coord], prefix: Prefix, dim: int, size: int) -> str:
    """Return an i64: for how many elements along `dim` a mask holds, if the tile had as many; it may be negative.
    `size`, if not 0: the elements for which it must not hold again. All of them are returned if it may, since the
    compared number wraps: `(index - 5).to(uint32) < n` holds from 5 on."""
    op, em = prefix.compare, lo.em
    origin = [*coords]
    origin[dim] = Coord()
    where = Point(tuple(Coord() if d is None else origin[d] for d in prefix.dims), 1)
    sides = prefix.sides()
    if dim not in prefix.dims or sides is None or prefix.growth(dim) != (1, 0):
        return _all_or_none(lo, prefix, where, size)
    lo.memo = {}
    low, _ = sides
    first, bound = (_wide(lo, v, where) for v in sides)
    room = em.op(f"sub nsw i64 {bound}, {first}")
    if op.predicate in ("le", "ge"):
        room = em.op(f"add nsw i64 {room}, 1")
    bits = min(_bits(low), default=64)
    if not size or bits >= 63:
        return room
    wraps = em.op(f"icmp sgt i64 {first}, {(1 << bits) - size}")
    return em.op(f"select i1 {wraps}, i64 {size}, i64 {room}")


def _all_or_none(lo: Lowering, prefix: Prefix, at: Point, size: int) -> str:
    """Return an i64: the elements for which a mask holds that holds for all if it does for the first, at `at`."""
    op, em = prefix.compare, lo.em
    lo.memo = {}
    holds = lo.text(lo.value(op.result, at), 1)
    _, high = prefix.sides() or (op.lhs, op.lhs)
    bits = min(_bits(high), default=64)
    if bits < 63 and any(slope(high, d) for d in range(len(shape_of(high.type)))):
        last = (1 << bits) - LARGEST  # it must not wrap further on
        fits = em.op(f"icmp slt i64 {_wide(lo, high, at)}, {last}")
        holds = lo.both(holds, fits)
    return em.op(f"select i1 {holds}, i64 {size or MOST}, i64 0")


def _bits(v: Value) -> Iterator[int]:
    """Yield how many bits, besides the sign, the sums and casts have by which `v` grows along a dimension."""
    op = v.op
    if isinstance(op, (arith.AddOp, arith.SubOp, arith.CastOp)):
        t = elem_of(v.type)
        yield t.bits - t.signed
    if isinstance(
        op,
        (arith.AddOp, arith.SubOp, arith.CastOp, arith.HintOp, tile.BroadcastOp, tile.ExpandDimsOp),
    ):
        for x in op.operands:
            yield from _bits(x)


def _wide(lo: Lowering, v: Value, at: Point) -> str:
    text, t = lo.text(lo.value(v, at), 1), elem_of(v.type)
    if t.bits == 64:
        return text
    return lo.em.op(f"{'sext' if t.signed else 'zext'} {scalar_type(t)} {text} to i64")
