"""Describes where the operands of a dot are: in a buffer, in memory as a load reads them, in either, or packed in
panels.

A *k group* is what one lane multiplies: an element, or `k_pack` neighbours along k that share 32 bits (two bf16, four
bytes). Rows of A and columns of B are counted in elements, k always in k groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.backends.cpu.bounds import slope
from tessera.backends.cpu.dot_plan import TILE, DotPlan
from tessera.backends.cpu.fusion import contiguous_along, contiguous_dimension, prepare
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.values import ZERO, Coord, Point
from tessera.backends.elements.casts import cast
from tessera.dtypes import dtype, int32
from tessera.ir import Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import LoadOp


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
        """Return (address, bytes from one row to the next)."""
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
        """Return (address, bytes from one row to the next), of rows at a uniform distance."""
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
    """B packed in panels, one after the other, each of `depth` rows of its own width. `bias`: address of the column
    sums over k (or ""). `first`: the row that is row 0 of this operand."""

    ptr: str
    packed_type: str  # LLVM type
    depth: int
    bias: str = ""
    first: Coord = ZERO
    affine: bool = True

    def row(self, lo: Lowering, k: Coord, column: Coord, width: int) -> str:
        """Return the address of row `k` of the panel of `width` columns that begins at `column`."""
        at = lo.coord_text(column.times(self.depth).plus(k.plus(self.first).times(width)))
        return lo.em.op(f"getelementptr {self.packed_type}, ptr {self.ptr}, i64 {at}")


@dataclass(frozen=True, slots=True)
class Computed:
    """B as its ops compute it from memory, converted to `t`, a vector of a row at a time."""

    value: Value
    t: dtype
    affine: bool = True

    def vector(self, lo: Lowering, k: Coord, column: Coord, lanes: int) -> str:
        return _elements(lo, self.value, self.t, (k, _run(column, lanes)), lanes)


@dataclass(frozen=True, slots=True)
class Columns:
    """The same for a B whose memory is contiguous along k: a vector of a column at a time."""

    value: Value
    t: dtype

    def vector(self, lo: Lowering, k: Coord, column: Coord, lanes: int) -> str:
        return _elements(lo, self.value, self.t, (_run(k, lanes), column), lanes)


def _run(c: Coord, lanes: int) -> Coord:
    """Return `lanes` successive coordinates."""
    pattern = tuple(range(lanes)) if lanes > 1 else None
    return Coord(c.base, c.terms, pattern, c.extent + lanes - 1)


def _elements(lo: Lowering, v: Value, t: dtype, at: tuple[Coord, Coord], lanes: int) -> str:
    """Return elements of `v`, converted to `t`."""
    lo.memo = {}
    text = lo.text(lo.value(v, Point(at, lanes)), lanes)
    lo.memo = {}
    return cast(lo.lanes(lanes), text, elem_of(v.type), t)


Right = Panels | Packed | InPlace | Computed


def in_place(lo: Lowering, v: Value, t: dtype) -> InPlace | None:
    """Return the operand as a load that need not be copied; None if it is not a load, or not contiguous."""
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
    return InPlace(op.ptr, t, slope(op.ptr, 1) == 1)


def left_in_place(lo: Lowering, v: Value, plan: DotPlan) -> InPlace | None:
    """Return A in place, if the instructions of the plan can read it there."""
    placed = in_place(lo, v, plan.t)
    if placed is None or (not placed.affine and plan.path.k_pack > 1):
        return None
    tops = range(0, plan.m, TILE) if plan.path.tiles else ()
    if not all(uniform_along(lo, placed.ptr, 0, top, TILE) for top in tops):
        return None
    t = int32 if plan.path.k_pack > 1 else plan.t
    return InPlace(placed.ptr, t, placed.affine, plan.path.k_pack)


def uniform_along(lo: Lowering, ptr: Value, dim: int, first: int, lanes: int) -> bool:
    """Whether `lanes` addresses along `dim`, starting at `first`, are equally spaced."""
    x = lo.probe(ptr, dim, first, lanes)
    if not x.affine or x.pattern is None:
        return x.affine
    distance = x.pattern[1] - x.pattern[0]
    return all(p == i * distance for i, p in enumerate(x.pattern))
