"""The register-blocked kernel behind every matrix product, over operands in buffers or where they lie in memory.

`dot_rows` x `dot_vectors` accumulator vectors (6 x 64 fp32 on AVX-512) walk along k: per step the vectors of one row of
B are loaded and one element of A a row is broadcast. Extents that do not divide are cut into near-equal row blocks and
into narrower column panels. In a product of bf16 pairs an element is two neighbours along k, and one instruction
multiplies both.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.text import lane_type, scalar_type, vector_type
from tessera.backends.cpu.values import Coord, Point
from tessera.dtypes import dtype
from tessera.ir import Value

UNROLL_K = 2  # steps along k in one trip: 4 are no faster and twice the code


@dataclass(frozen=True, slots=True)
class Packed:
    """An operand in a row-major buffer: `ptr` of the first element, `width` elements a row."""

    ptr: str
    t: dtype
    width: int
    affine: bool = True

    def address(self, lo: Lowering, row: Coord, column: Coord) -> str:
        at = lo.coord_text(row.times(self.width).plus(column))
        return lo.em.op(f"getelementptr {scalar_type(self.t)}, ptr {self.ptr}, i64 {at}")


@dataclass(frozen=True, slots=True)
class InPlace:
    """An operand where it lies in memory: rows anywhere, elements of a row contiguous at least in whole vectors
    (`affine`: in the whole row)."""

    ptr: Value
    t: dtype
    affine: bool

    pairs: bool = False  # columns count pairs of elements

    def address(self, lo: Lowering, row: Coord, column: Coord) -> str:
        lo.memo = {}
        where = Point((row, column.times(2) if self.pairs else column), 1)
        return lo.text(lo.value(self.ptr, where), 1)


@dataclass(frozen=True, slots=True)
class Either:
    """One of two places, chosen at run time by `condition` (i1)."""

    condition: str
    first: InPlace
    second: Packed
    affine: bool = True  # both are

    def address(self, lo: Lowering, row: Coord, column: Coord) -> str:
        a, b = self.first.address(lo, row, column), self.second.address(lo, row, column)
        return lo.em.op(f"select i1 {self.condition}, ptr {a}, ptr {b}")


Matrix = Packed | InPlace | Either


@dataclass(frozen=True, slots=True)
class Product:
    """c[m][n] (+)= Σ a[m][k] @ b[k][n] over the terms (a, b, k); c is row-major and dense; `zero`: it starts at 0."""

    t: dtype
    m: int
    n: int
    terms: list[tuple[Matrix, Matrix, int]]
    c: str
    zero: bool
    paired: bool = False  # an element of a and b is a pair of bf16 neighbours along k
    unroll: int = UNROLL_K


def split_rows(total: int, most: int) -> list[tuple[int, int, int]]:
    """Near-equal blocks of at most `most` rows: (rows of a block, first row, number of blocks), one or two entries."""
    blocks = -(-total // most)
    big, extra = -(-total // blocks), total % blocks
    if not extra:
        return [(total // blocks, 0, blocks)]
    return [(big, 0, extra), (big - 1, big * extra, blocks - extra)]


def panels(n: int, lanes: int, vectors: int) -> list[tuple[int, int, int, int]]:
    """Column panels: (lanes, vectors, first column, number of panels)."""
    found: list[tuple[int, int, int, int]] = []
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


def product(lo: Lowering, p: Product) -> None:
    lanes = lo.facts.vector_bits // p.t.bits
    for width, vectors, first, count in panels(p.n, lanes, lo.facts.dot_vectors):
        with lo.em.loop(0, count, 1) as panel:
            column = (
                lo.index(panel, 1, count)
                .times(width * vectors)
                .plus(Coord(first, (), None, first + 1))
            )
            for rows, row0, blocks in split_rows(p.m, lo.facts.dot_rows):
                with lo.em.loop(0, blocks, 1) as block:
                    row = (
                        lo.index(block, 1, blocks).times(rows).plus(Coord(row0, (), None, row0 + 1))
                    )
                    _micro(lo, p, rows, vectors, width, row, column)


def _micro(
    lo: Lowering, p: Product, rows: int, vectors: int, lanes: int, row: Coord, column: Coord
) -> None:
    """One block of accumulators over all of k."""
    em, e = lo.em, scalar_type(p.t)
    ty, align = lane_type(p.t, lanes), p.t.storage_bytes
    cells = [[em.alloca(ty) for _ in range(vectors)] for _ in range(rows)]
    corner = em.op(
        f"getelementptr {e}, ptr {p.c}, i64 {lo.coord_text(row.times(p.n).plus(column))}"
    )
    targets = [
        [_at(lo, e, corner, i * p.n + j * lanes) for j in range(vectors)] for i in range(rows)
    ]
    for line, ptrs in zip(cells, targets, strict=True):
        for cell, ptr in zip(line, ptrs, strict=True):
            start = (
                zero_text(p.t, lanes) if p.zero else em.here(f"load {ty}, ptr {ptr}, align {align}")
            )
            em.stmt(f"store {ty} {start}, ptr {cell}")
    for a, b, depth in p.terms:
        wide = p.unroll if b.affine else 1
        unroll = next(u for u in (wide, 2, 1) if u <= wide and depth % u == 0)
        with em.loop(0, depth, unroll) as k0:
            _steps(lo, p, cells, (a, b), (row, lo.index(k0, unroll, depth), column), unroll, lanes)
    for line, ptrs in zip(cells, targets, strict=True):
        for cell, ptr in zip(line, ptrs, strict=True):
            em.stmt(f"store {ty} {em.here(f'load {ty}, ptr {cell}')}, ptr {ptr}, align {align}")


def _steps(
    lo: Lowering, p: Product, cells: list[list[str]], operands: tuple[Matrix, Matrix], at: tuple[Coord, Coord, Coord],
    unroll: int, lanes: int,
) -> None:  # fmt: skip
    """`unroll` steps along k of one block."""
    em, e = lo.em, "i32" if p.paired else scalar_type(p.t)
    ty, align = vector_type(e, lanes), 2 if p.paired else p.t.storage_bytes
    sums = lane_type(p.t, lanes)
    (a, b), (row, k0, column) = operands, at
    lines = [_line(lo, a, row.shifted(i), k0, e) for i in range(len(cells))]
    for u in range(unroll):
        k = k0.shifted(u)
        if b.affine:
            first = b.address(lo, k, column)
            places = [_at(lo, e, first, j * lanes) for j in range(len(cells[0]))]
        else:
            places = [b.address(lo, k, column.shifted(j * lanes)) for j in range(len(cells[0]))]
        bs = [em.here(f"load {ty}, ptr {ptr}, align {align}") for ptr in places]
        for line, cell_row in zip(lines, cells, strict=True):
            x = em.splat(e, em.here(f"load {e}, ptr {_at(lo, e, line, u)}, align {align}"), lanes)
            for cell, y in zip(cell_row, bs, strict=True):
                old = em.here(f"load {sums}, ptr {cell}")
                new = (
                    add_pairs(lo, lanes, x, y, old)
                    if p.paired
                    else multiply_add(lo, p.t, lanes, x, y, old)
                )
                em.stmt(f"store {sums} {new}, ptr {cell}")


def _line(lo: Lowering, a: Matrix, row: Coord, k: Coord, e: str) -> str:
    """Address of a row's element at `k`: where a row is contiguous, its start stays in a register."""
    if not a.affine:
        return a.address(lo, row, k)
    return lo.em.op(f"getelementptr {e}, ptr {a.address(lo, row, Coord())}, i64 {lo.coord_text(k)}")


def add_pairs(lo: Lowering, lanes: int, a: str, b: str, c: str) -> str:
    """c + a0 * b0 + a1 * b1 for lanes that hold pairs of bf16."""
    em, wide = lo.em, f"<{2 * lanes} x bfloat>"
    a, b = (em.op(f"bitcast <{lanes} x i32> {x} to {wide}") for x in (a, b))
    name = f"llvm.x86.avx512bf16.dpbf16ps.{lanes * 32}"
    return em.call(
        f"<{lanes} x float>", name, f"<{lanes} x float> {c}", f"{wide} {a}", f"{wide} {b}"
    )


def zero_text(t: dtype, lanes: int) -> str:
    if lanes > 1:
        return "zeroinitializer"
    return "0" if t.is_int() else "0.0"


def _at(lo: Lowering, e: str, ptr: str, elements: int) -> str:
    return ptr if elements == 0 else lo.em.op(f"getelementptr {e}, ptr {ptr}, i64 {elements}")


def multiply_add(lo: Lowering, t: dtype, lanes: int, a: str, b: str, c: str) -> str:
    x, e = lo.lanes(lanes), scalar_type(t)
    if t.is_int():
        return x.op("add", e, x.op("mul", e, a, b), c)
    return x.call("fma", e, a, b, c)
