"""Describes where the operands of a dot are: in a buffer, in memory as a load reads them, in either, or packed in
panels.

A *k group* is what one lane multiplies: an element, or `k_pack` neighbours along k that share 32 bits (two bf16, four
bytes). Rows of A and columns of B are counted in elements, k always in k groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.backends.cpu.fusion import contiguous_along, contiguous_dimension, prepare
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.loops import prefix_masks, slope
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.values import ZERO, Coord, Point
from tessera.dtypes import dtype
from tessera.ir import TileType, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import (
    AddOp,
    AddPtrOp,
    AndOp,
    BroadcastOp,
    CastOp,
    ConstOp,
    ExpandDimsOp,
    LoadOp,
    SplatOp,
)

Panel = tuple[int, int, int, int]  # lanes, vectors, first column, number of panels of this kind


@dataclass(frozen=True, slots=True)
class Packed:
    """A row-major buffer: `ptr` is the address of the first k group, `width` the number of k groups in a row."""

    ptr: str
    t: dtype
    width: int
    affine: bool = True

    def address(self, lo: Lowering, row: Coord, column: Coord) -> str:
        at = lo.coord_text(row.times(self.width).plus(column))
        return lo.em.op(f"getelementptr {scalar_type(self.t)}, ptr {self.ptr}, i64 {at}")

    def strided(self, lo: Lowering, row: Coord, column: Coord) -> tuple[str, str]:
        """(address, bytes from one row to the next)."""
        return self.address(lo, row, column), str(self.width * self.t.storage_bytes)


@dataclass(frozen=True, slots=True)
class InPlace:
    """An operand that is read in place: rows at any address, elements of a row contiguous at least in whole vectors
    (`affine`: in the whole row). `k_pack`: elements of a k group."""

    ptr: Value
    t: dtype
    affine: bool
    k_pack: int = 1

    def address(self, lo: Lowering, row: Coord, column: Coord) -> str:
        lo.memo = {}
        return lo.text(lo.value(self.ptr, Point((row, column.times(self.k_pack)), 1)), 1)

    def strided(self, lo: Lowering, row: Coord, column: Coord) -> tuple[str, str]:
        """(address, bytes from one row to the next), of rows at a uniform distance."""
        lo.memo = {}
        rows = Coord(row.base, row.terms, (0, 1), row.extent + 1)
        x = lo.value(self.ptr, Point((rows, column.times(self.k_pack)), 2))
        _, distance = x.pattern or (0, 0)
        step = lo.em.op(
            f"mul nsw i64 {x.step or 1}, {distance * elem_of(self.ptr.type).element_ty.storage_bytes}"
        )
        return self.address(lo, row, column), step


@dataclass(frozen=True, slots=True)
class Either:
    """One of two sources, chosen at run time by `condition` (i1)."""

    condition: str
    first: InPlace
    second: Packed
    affine: bool = True  # both are

    def address(self, lo: Lowering, row: Coord, column: Coord) -> str:
        a, b = self.first.address(lo, row, column), self.second.address(lo, row, column)
        return lo.em.op(f"select i1 {self.condition}, ptr {a}, ptr {b}")

    def strided(self, lo: Lowering, row: Coord, column: Coord) -> tuple[str, str]:
        (a, s), (b, t) = self.first.strided(lo, row, column), self.second.strided(lo, row, column)
        ptr = lo.em.op(f"select i1 {self.condition}, ptr {a}, ptr {b}")
        return ptr, lo.em.op(f"select i1 {self.condition}, i64 {s}, i64 {t}")


Left = Packed | InPlace | Either


@dataclass(frozen=True, slots=True)
class Panels:
    """B packed: panel after panel, each of `depth` rows of its own width. `bias`: address of the sums over k, one a
    column (or "").
    `first`: the row that is row 0 of this operand."""

    ptr: str
    packed_type: str  # LLVM type
    depth: int
    bias: str = ""
    first: Coord = ZERO
    affine: bool = True

    def row(self, lo: Lowering, k: Coord, column: Coord, width: int) -> str:
        """Address of row `k` of the panel of `width` columns that begins at `column`."""
        at = lo.coord_text(column.times(self.depth).plus(k.plus(self.first).times(width)))
        return lo.em.op(f"getelementptr {self.packed_type}, ptr {self.ptr}, i64 {at}")


Right = Panels | Packed | InPlace


def panels(n: int, lanes: int, vectors: int) -> list[Panel]:
    """The panels of `n` columns: as many of `vectors` vectors as fit, and narrower ones for the rest."""
    found: list[Panel] = []
    first, width = 0, lanes * vectors
    if n // width:
        found.append((lanes, vectors, 0, n // width))
        first = n // width * width
    rest = (n - first) // lanes
    if rest:
        found.append((lanes, rest, first, 1))
        first += rest * lanes
    while first < n:
        narrow = 1 << ((n - first).bit_length() - 1)
        found.append((narrow, 1, first, 1))
        first += narrow
    return found


def in_place(lo: Lowering, v: Value, t: dtype) -> InPlace | None:
    """The operand as a load that need not be copied; None if it is no load, or not contiguous."""
    op = v.op
    if not isinstance(op, LoadOp) or not lo.lazy(v) or elem_of(v.type) != t or op.volatile:
        return None
    columns = shape_of(v.type)[1]
    lanes = min(columns & -columns, lo.facts.lanes)
    if (
        columns % lo.facts.lanes
        or contiguous_dimension(lo, op.ptr) is not None
        or not contiguous_along(lo, op.ptr, 1, lanes)
        or not apply("operands-in-place", op)
    ):
        return None
    prepare(lo, [x for x in (op.ptr, op.mask, op.other) if x is not None], None, loop=[])
    return InPlace(op.ptr, t, pointer_slope(op.ptr, 1) == 1)


def pointer_slope(v: Value, dim: int) -> int | None:
    """`slope` of the addresses, through additions to a pointer."""
    op = v.op
    if not isinstance(v.type, TileType) or v.type.shape[dim] == 1:
        return 0
    if isinstance(op, AddPtrOp):
        a, b = pointer_slope(op.ptr, dim), slope(op.offset, dim)
        return None if a is None or b is None else a + b
    if isinstance(op, BroadcastOp):
        return 0 if shape_of(op.x.type)[dim] == 1 else pointer_slope(op.x, dim)
    if isinstance(op, ExpandDimsOp):
        return 0 if dim == op.axis else pointer_slope(op.x, dim - (dim > op.axis))
    return slope(v, dim)


def uniform_along(lo: Lowering, ptr: Value, dim: int, first: int, lanes: int) -> bool:
    """Whether `lanes` addresses from `first` on along `dim` are at one distance from each other."""
    coords = [Coord(0, (), None, 1) for _ in shape_of(ptr.type)]
    coords[dim] = Coord(first, (), tuple(range(lanes)), first + lanes)
    saved_memo_buffers, saved_memo = lo.memo_buffers, lo.memo
    lo.memo_buffers, lo.memo = {}, {}
    with lo.em.discarded():
        x = lo.value(ptr, Point(tuple(coords), lanes))
    lo.memo_buffers, lo.memo = saved_memo_buffers, saved_memo
    if not x.affine or x.pattern is None:
        return x.affine
    distance = x.pattern[1] - x.pattern[0]
    return all(p == i * distance for i, p in enumerate(x.pattern))


def distance(a: Value, b: Value) -> int | None:
    """b - a, in elements, where that is one number for all elements of two tiles of addresses or indices."""
    if a is b:
        return 0
    x, y = a.op, b.op
    for op, other, sign in ((y, a, 1), (x, b, -1)):
        if isinstance(op, AddOp) and isinstance(op.rhs.op, ConstOp):
            rest = distance(other, op.lhs)
            if rest is not None:
                return sign * (rest + int(op.rhs.op.value))
    if type(x) is not type(y) or x is None or y is None or a.type != b.type:
        return None
    if isinstance(x, ConstOp) and isinstance(y, ConstOp):
        return int(y.value) - int(x.value)
    if isinstance(x, (AddOp, AddPtrOp)):
        parts = [distance(p, q) for p, q in zip(x.operands, y.operands, strict=True)]
        return None if None in parts else sum(p for p in parts if p is not None)
    if isinstance(x, (SplatOp, BroadcastOp, ExpandDimsOp)) or (
        isinstance(x, CastOp) and elem_of(a.type).bits >= elem_of(x.operands[0].type).bits
    ):
        return distance(x.operands[0], y.operands[0])
    return None


def all_inside(lo: Lowering, loads: list[Value]) -> str:
    """An i1: whether no mask of the operands is false anywhere. Masks are prefixes: the last element tells."""
    text = "true"
    for v in loads:
        assert isinstance(v.op, LoadOp)
        mask = v.op.mask
        if mask is None:
            continue
        if not _is_prefix(lo, mask):
            return "false"
        lo.memo = {}
        last = tuple(Coord(s - 1, (), None, s) for s in shape_of(mask.type))
        bit = lo.text(lo.value(mask, Point(last, 1)), 1)
        text = bit if text == "true" else lo.em.op(f"and i1 {text}, {bit}")
    lo.memo = {}
    return text


def _is_prefix(lo: Lowering, mask: Value) -> bool:
    """Whether a mask is an `and` of comparisons that change from true to false along one dimension each."""
    if isinstance(mask.op, AndOp):
        return _is_prefix(lo, mask.op.lhs) and _is_prefix(lo, mask.op.rhs)
    return any(prefix_masks(lo, mask, d) for d in range(len(shape_of(mask.type))))
