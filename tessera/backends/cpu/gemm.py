"""Emits matrix multiplications by a plan: blocks of accumulators in registers walk along k.

On vectors, a block is `dot_rows` x `dot_vectors` accumulators (6 x 64 fp32 on AVX-512). Each step loads the vectors of
one row of B and broadcasts one k group of A for each row. A k group (operands.py) may hold two bf16 or four bytes,
which one instruction multiplies and adds, or two 16-bit integers, into which bytes are widened.

On the matrix unit (AMX) a block is 2 x 2 tiles of 16 x 16, fed by two tiles of A and two of B. A tile of A is 16 rows
of 64 bytes in memory order, a tile of B 16 rows of 16 k groups of a panel. The eight tile registers have fixed
numbers: 0 to 3 are accumulators, 4 and 5 rows of A, 6 and 7 columns of B. One configuration serves a whole function. A
block of rows of A is read again for each panel, while B is read once: so tiles of B are loaded with a hint not to keep
them in the L1 cache, where the rows of A stay.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tessera.backends.cpu.dot_plan import TILE, DotPlan
from tessera.backends.cpu.llvm_text import lane_type, scalar_type
from tessera.backends.cpu.loops import places
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.operands import Computed, InPlace, Left, Packed, Panels, Right
from tessera.backends.cpu.values import Coord
from tessera.backends.elements.literals import vector_type

UNROLL_K = 2  # steps along k in one iteration: 4 are no faster and twice the code
UNROLL_TILES = 4  # tiles along k without a loop
STAYS = 32 << 10  # bytes of B that the L1 cache keeps
CONFIG = "tile_config"


@dataclass(frozen=True, slots=True)
class Gemm:
    """c[m][n] (+)= Σ a[m][k] @ b[k][n] over the terms (a, b, k groups); c is row-major and dense.

    `zero`: an i1, whether c starts at 0. `steps`: i64s, between which of consecutive steps of k groups each term is; ()
    for one step."""

    plan: DotPlan
    terms: list[tuple[Left, Right, int]]
    c: str
    zero: str
    steps: tuple[str, ...] = ()


def gemm(lo: Lowering, p: Gemm) -> None:
    """Multiply all blocks: row by row on the matrix unit (AMX), else column by column."""
    if p.plan.path.tiles:
        for rows, first, blocks in p.plan.rows:
            for row in places(lo, rows, first, blocks):
                gemm_rows(lo, p, row, rows)
        return
    for lanes, vectors, first, count in p.plan.panels:
        for column in places(lo, lanes * vectors, first, count):
            for rows, row0, blocks in p.plan.rows:
                for row in places(lo, rows, row0, blocks):
                    _multiply(_VectorBlock(lo, p, rows, vectors, lanes, row, column))


def gemm_rows(lo: Lowering, p: Gemm, row: Coord, rows: int, end: str = "") -> None:
    """Multiply one block of rows, up to column `end` (an i64), if there is one."""
    kind = _TileBlock if p.plan.path.tiles else _VectorBlock
    for lanes, vectors, first, count in p.plan.panels:
        for column in places(lo, lanes * vectors, first, count, end):
            _multiply(kind(lo, p, rows, vectors, lanes, row, column))


def _multiply(block: _VectorBlock | _TileBlock) -> None:
    """Multiply one block of accumulators over all of k."""
    p, lo = block.p, block.lo
    lo.em.choose(p.zero, block.clear, block.load)
    for number, (a, b, depth) in enumerate(p.terms):
        step = block.step(b, depth)
        loop = lo.em.loop(0, depth, step)
        if p.steps:
            low, end = (lo.em.op(f"mul i64 {n}, {depth}") for n in p.steps[number : number + 2])
            loop = lo.em.counted(low, end, str(step), always=True)
        with loop as k:
            at = lo.index(k, step, 1 << 31 if p.steps else depth)
            block.multiply(a, b, at, step)
    block.store()


@dataclass(slots=True)
class _Block:
    """`rows` rows and `vectors` vectors (or tiles) of `lanes` columns of accumulators, from `row` and `column` on."""

    lo: Lowering
    p: Gemm
    rows: int
    vectors: int
    lanes: int
    row: Coord
    column: Coord

    def corner(self, element: str) -> str:
        """Return the address of the block's part of c."""
        at = self.lo.coord_text(self.row.times(self.p.plan.n).plus(self.column))
        return self.lo.em.op(f"getelementptr {element}, ptr {self.p.c}, i64 {at}")


# --- vectors ------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _VectorBlock(_Block):
    """Accumulators in vectors: stack slots that become registers, with the addresses of their part of c and the excess
    (bias) of each column's accumulators."""

    cells: list[list[str]] = field(init=False)
    targets: list[list[str]] = field(init=False)
    biases: list[list[str]] = field(init=False)
    ty: str = field(init=False)

    def __post_init__(self) -> None:
        lo, p, lanes = self.lo, self.p, self.lanes
        columns, e = range(self.vectors), scalar_type(p.plan.acc)
        self.ty = lane_type(p.plan.acc, lanes)
        self.cells = [[lo.em.alloca(self.ty) for _ in columns] for _ in range(self.rows)]
        corner = self.corner(e)
        self.targets = [
            [_at(lo, e, corner, i * p.plan.n + j * lanes) for j in columns]
            for i in range(self.rows)
        ]
        self.biases = [self._biases(j * lanes) for j in columns]

    def _biases(self, offset: int) -> list[str]:
        """Return the excess of the accumulators of these columns for each term."""
        lo, found = self.lo, list[str]()
        for _, b, _ in self.p.terms:
            if isinstance(b, Panels) and b.bias:
                ptr = lo.em.op(f"getelementptr i32, ptr {b.bias}, i64 {lo.coord_text(self.column)}")
                where = _at(lo, "i32", ptr, offset)
                found.append(lo.em.here(f"load <{self.lanes} x i32>, ptr {where}, align 4"))
        return found

    def clear(self) -> None:
        self._start(False)

    def load(self) -> None:
        self._start(True)

    def _start(self, old: bool) -> None:
        em, ty, acc = self.lo.em, self.ty, self.p.plan.acc
        zero = "zeroinitializer" if self.lanes > 1 else "0" if acc.is_int() else "0.0"
        for line, ptrs in zip(self.cells, self.targets, strict=True):
            for cell, ptr, biases in zip(line, ptrs, self.biases, strict=True):
                x = em.here(f"load {ty}, ptr {ptr}, align {acc.storage_bytes}") if old else zero
                for bias in biases:
                    x = em.op(f"sub {ty} {x}, {bias}")
                em.stmt(f"store {ty} {x}, ptr {cell}")

    def store(self) -> None:
        em, ty, align = self.lo.em, self.ty, self.p.plan.acc.storage_bytes
        for line, ptrs in zip(self.cells, self.targets, strict=True):
            for cell, ptr in zip(line, ptrs, strict=True):
                x = em.here(f"load {ty}, ptr {cell}")
                em.stmt(f"store {ty} {x}, ptr {ptr}, align {align}")

    def step(self, b: Right, depth: int) -> int:
        return UNROLL_K if b.affine and depth % UNROLL_K == 0 else 1

    def multiply(self, a: Left, b: Right, k: Coord, step: int) -> None:
        """Emit `step` steps along k."""
        lo, em, lanes, plan = self.lo, self.lo.em, self.lanes, self.p.plan
        e = plan.packed_type
        align = plan.t.storage_bytes
        lines = [self._line(a, self.row.shifted(i), k) for i in range(self.rows)]
        for u in range(step):
            bs = self._row_of_b(b, k.shifted(u))
            for line, cells in zip(lines, self.cells, strict=True):
                x = em.here(f"load {e}, ptr {_at(lo, e, line, u)}, align {align}")
                if plan.path.bias:
                    x = em.op(f"xor i32 {x}, -2139062144")  # the instruction takes them unsigned
                x = em.splat(e, x, lanes)
                for cell, y in zip(cells, bs, strict=True):
                    old = em.here(f"load {self.ty}, ptr {cell}")
                    new = multiply_add(lo, plan, lanes, x, y, old)
                    em.stmt(f"store {self.ty} {new}, ptr {cell}")

    def _row_of_b(self, b: Right, k: Coord) -> list[str]:
        """Return the vectors of one row of B."""
        lo, e = self.lo, self.p.plan.packed_type
        offsets = range(0, self.vectors * self.lanes, self.lanes)
        if isinstance(b, Computed):
            return [b.vector(lo, k, self.column.shifted(j), self.lanes) for j in offsets]
        if isinstance(b, Panels) or b.affine:
            first = self._start_of_b(b, k)
            places = [_at(lo, e, first, j) for j in offsets]
        else:
            places = [b.address(lo, k, self.column.shifted(j)) for j in offsets]
        ty, align = vector_type(e, self.lanes), self.p.plan.t.storage_bytes
        return [lo.em.here(f"load {ty}, ptr {ptr}, align {align}") for ptr in places]

    def _start_of_b(self, b: Panels | Packed | InPlace, k: Coord) -> str:
        """Return the address of the block's part of one row of B."""
        if isinstance(b, Panels):
            return b.row(self.lo, k, self.column, self.vectors * self.lanes)
        return b.address(self.lo, k, self.column)

    def _line(self, a: Left, row: Coord, k: Coord) -> str:
        """Return the address of a row's k group at `k`; if a row is contiguous, its start stays in a register."""
        lo = self.lo
        if not a.affine:
            return a.address(lo, row, k)
        start, e = a.address(lo, row, Coord()), self.p.plan.packed_type
        return lo.em.op(f"getelementptr {e}, ptr {start}, i64 {lo.coord_text(k)}")


def multiply_add(lo: Lowering, plan: DotPlan, lanes: int, a: str, b: str, c: str) -> str:
    x, e = lo.lanes(lanes), scalar_type(plan.acc)
    if plan.path.k_pack == 2 and plan.acc.is_int():
        return x.op("add", e, _pairs_of_words(lo, lanes, a, b), c)
    if plan.path.k_pack == 2:
        return _add_pairs(lo, lanes, a, b, c)
    if plan.path.k_pack == 4:
        return add_bytes(lo, lanes, a, b, c)
    if plan.acc.is_int():
        return x.op("add", e, x.op("mul", e, a, b), c)
    return x.call("fma", e, a, b, c)


def _add_pairs(lo: Lowering, lanes: int, a: str, b: str, c: str) -> str:
    """Return c + a0 * b0 + a1 * b1 for lanes that hold pairs of bf16."""
    em, ty, wide = lo.em, f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
    a, b = (em.op(f"bitcast <{lanes} x i32> {x} to {wide}") for x in (a, b))
    name = f"llvm.x86.avx512bf16.dpbf16ps.{lanes * 32}"
    return em.call(ty, name, f"{ty} {c}", f"{wide} {a}", f"{wide} {b}")


def _pairs_of_words(lo: Lowering, lanes: int, a: str, b: str) -> str:
    """Return a0 * b0 + a1 * b1 for lanes that hold pairs of 16-bit integers."""
    em, ty, wide = lo.em, f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    a, b = (em.op(f"bitcast {ty} {x} to {wide}") for x in (a, b))
    name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[lanes]
    return em.call(ty, f"llvm.x86.{name}", f"{wide} {a}", f"{wide} {b}")


def add_bytes(lo: Lowering, lanes: int, a: str, b: str, c: str) -> str:
    """Return c + Σ a_i * b_i over the four bytes of each lane: those of `a` unsigned, of `b` signed."""
    em, ty, wide = lo.em, f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    a, b = (em.op(f"bitcast {ty} {x} to {wide}") for x in (a, b))
    name = f"llvm.x86.avx512.vpdpbusd.{lanes * 32}"
    return em.call(ty, name, f"{ty} {c}", f"{wide} {a}", f"{wide} {b}")


def _at(lo: Lowering, e: str, ptr: str, elements: int) -> str:
    return ptr if elements == 0 else lo.em.op(f"getelementptr {e}, ptr {ptr}, i64 {elements}")


# --- tiles of the matrix unit ---------------------------------------------------------------------------------------
def _configure(lo: Lowering) -> None:
    """Configure all eight registers as full tiles, from the function's start."""
    data = struct.pack("<BB14x16H16B", 1, 0, *[64] * 8, *[0] * 8, *[TILE] * 8, *[0] * 8)
    bytes_ = ", ".join(f"i8 {b}" for b in data)
    lo.em.globals[f"@{CONFIG} = private constant [64 x i8] [{bytes_}], align 64"] = None
    lo.em.declare("void", "llvm.x86.ldtilecfg", "ptr")
    lo.em.declare("void", "llvm.x86.tilerelease")
    if not lo.tiles:
        lo.tiles = True
        lo.em.at_entry(f"call void @llvm.x86.ldtilecfg(ptr @{CONFIG})")


@dataclass(slots=True)
class _TileBlock(_Block):
    """Accumulators in tile registers: (register, address of its part of c)."""

    accumulators: list[tuple[int, str]] = field(init=False)

    def __post_init__(self) -> None:
        lo, n = self.lo, self.p.plan.n
        _configure(lo)
        corner = self.corner("i32")
        self.accumulators = [
            (2 * i + j, lo.em.op(f"getelementptr i32, ptr {corner}, i64 {(i * n + j) * TILE}"))
            for i in range(self.rows // TILE)
            for j in range(self.vectors)
        ]

    def _move(self, kind: str, register: int, ptr: str, stride: str) -> None:
        name = f"llvm.x86.tile{kind}64"
        self.lo.em.call_here("void", name, f"i8 {register}", f"ptr {ptr}", f"i64 {stride}")

    def clear(self) -> None:
        for register, _ in self.accumulators:
            self.lo.em.call_here("void", "llvm.x86.tilezero", f"i8 {register}")

    def load(self) -> None:
        for register, ptr in self.accumulators:
            self._move("loadd", register, ptr, str(4 * self.p.plan.n))

    def store(self) -> None:
        for register, ptr in self.accumulators:
            self._move("stored", register, ptr, str(4 * self.p.plan.n))

    def step(self, b: Right, depth: int) -> int:
        return TILE if self.p.steps or depth > UNROLL_TILES * TILE else depth

    def multiply(self, a: Left, b: Right, k: Coord, step: int) -> None:
        assert isinstance(b, Panels)
        lo, p, em = self.lo, self.p, self.lo.em
        name = "llvm.x86.tdpbf16ps" if p.plan.path.k_pack == 2 else "llvm.x86.tdpbssd"
        passing = bool(p.steps) or sum(depth for *_, depth in p.terms) * p.plan.n * 4 > STAYS
        for inner in range(0, step, TILE):
            at, tops = k.shifted(inner), range(0, self.rows, TILE)
            lefts = [a.strided(lo, self.row.shifted(top), at) for top in tops]
            right = b.row(lo, at, self.column, TILE * self.vectors)
            for i, (ptr, distance) in enumerate(lefts):
                self._move("loadd", 4 + i, ptr, distance)
            for j in range(self.vectors):
                ptr = em.op(f"getelementptr i32, ptr {right}, i64 {TILE * j}")
                stride = str(4 * TILE * self.vectors)
                self._move("loaddt1" if passing else "loadd", 6 + j, ptr, stride)
                for i in range(len(lefts)):
                    em.call_here("void", name, f"i8 {2 * i + j}", f"i8 {4 + i}", f"i8 {6 + j}")
