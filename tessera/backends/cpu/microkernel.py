"""Emits the register-blocked matrix multiplication on vectors, over operands in buffers, in panels or in place.

`dot_rows` x `dot_vectors` accumulator vectors (6 x 64 fp32 on AVX-512) walk along k: in each step the vectors of one
row of B are loaded and one k group of A a row is broadcast. Extents that do not divide are cut into near-equal row
blocks and into narrower column panels. A k group (operands.py) may hold two bf16 or four bytes, which one instruction
multiplies and adds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from tessera.backends.cpu.llvm_text import lane_type, scalar_type
from tessera.backends.cpu.loops import places
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.operands import Left, Panel, Panels, Right, panels
from tessera.backends.cpu.values import Coord
from tessera.backends.elements.literals import vector_type
from tessera.dtypes import dtype

UNROLL_K = 2  # steps along k in one trip: 4 are no faster and twice the code


@dataclass(frozen=True, slots=True)
class Gemm:
    """c[m][n] (+)= Σ a[m][k] @ b[k][n] over the terms (a, b, k groups); c is row-major and dense.

    `zero`: an i1, whether c starts at 0. `packing`: what a k group holds: "" one element of `t`, "pair" two bf16,
    "bytes" four int8."""

    t: dtype
    m: int
    n: int
    terms: list[tuple[Left, Right, int]]
    c: str
    zero: str
    packing: str = ""
    unroll: int = UNROLL_K
    steps: str = ""  # an i64: the number of steps whose k groups follow one another in each term

    @property
    def element(self) -> str:
        """The LLVM type of a k group."""
        return "i32" if self.packing else scalar_type(self.t)

    @property
    def align(self) -> int:
        return {"": self.t.storage_bytes, "pair": 2, "bytes": 1}[self.packing]


def column_panels(lo: Lowering, t: dtype, n: int) -> list[Panel]:
    return panels(n, lo.facts.vector_bits // t.bits, lo.facts.dot_vectors)


def split_rows(total: int, most: int) -> list[tuple[int, int, int]]:
    """Near-equal blocks of at most `most` rows: (rows of a block, first row, number of blocks), one or two entries."""
    blocks = -(-total // most)
    big, extra = -(-total // blocks), total % blocks
    if not extra:
        return [(total // blocks, 0, blocks)]
    return [(big, 0, extra), (big - 1, big * extra, blocks - extra)]


def row_blocks(lo: Lowering, p: Gemm) -> list[tuple[int, int, int]]:
    return split_rows(p.m, lo.facts.dot_rows)


def gemm(lo: Lowering, p: Gemm) -> None:
    for width, vectors, first, count in column_panels(lo, p.t, p.n):
        for column in places(lo, width * vectors, first, count):
            for rows, row0, blocks in row_blocks(lo, p):
                for row in places(lo, rows, row0, blocks):
                    _micro(lo, p, rows, vectors, width, row, column)


def gemm_rows(lo: Lowering, p: Gemm, row: Coord, rows: int) -> None:
    """Multiply one block of rows."""
    for width, vectors, first, count in column_panels(lo, p.t, p.n):
        for column in places(lo, width * vectors, first, count):
            _micro(lo, p, rows, vectors, width, row, column)


def _micro(
    lo: Lowering, p: Gemm, rows: int, vectors: int, lanes: int, row: Coord, column: Coord
) -> None:
    """Multiply one block of accumulators over all of k."""
    em, e = lo.em, scalar_type(p.t)
    ty, align = lane_type(p.t, lanes), p.t.storage_bytes
    cells = [[em.alloca(ty) for _ in range(vectors)] for _ in range(rows)]
    corner = em.op(
        f"getelementptr {e}, ptr {p.c}, i64 {lo.coord_text(row.times(p.n).plus(column))}"
    )
    targets = [
        [_at(lo, e, corner, i * p.n + j * lanes) for j in range(vectors)] for i in range(rows)
    ]
    biases = [_bias(lo, p, column, j * lanes, lanes) for j in range(vectors)]

    def start(old: bool) -> None:
        for line, ptrs in zip(cells, targets, strict=True):
            for cell, ptr, bias in zip(line, ptrs, biases, strict=True):
                x = (
                    em.here(f"load {ty}, ptr {ptr}, align {align}")
                    if old
                    else zero_text(p.t, lanes)
                )
                if bias:
                    x = em.op(f"sub {ty} {x}, {bias}")
                em.stmt(f"store {ty} {x}, ptr {cell}")

    em.choose(p.zero, lambda: start(False), lambda: start(True))
    for a, b, depth in p.terms:
        wide = p.unroll if b.affine else 1
        unroll = next(u for u in (wide, 2, 1) if u <= wide and depth % u == 0)
        with along_k(lo, p, depth, unroll) as k0:
            _steps(
                lo,
                p,
                cells,
                (a, b),
                (row, lo.index(k0, unroll, 1 << 31 if p.steps else depth), column),
                unroll,
                lanes,
            )
    for line, ptrs in zip(cells, targets, strict=True):
        for cell, ptr in zip(line, ptrs, strict=True):
            em.stmt(f"store {ty} {em.here(f'load {ty}, ptr {cell}')}, ptr {ptr}, align {align}")


def along_k(lo: Lowering, p: Gemm, k_groups: int, step: int) -> AbstractContextManager[int | str]:
    """A loop over the k groups of a term."""
    if not p.steps:
        return lo.em.loop(0, k_groups, step)
    end = lo.em.op(f"mul i64 {p.steps}, {k_groups}")
    return lo.em.counted("0", end, str(step), always=True)


def _bias(lo: Lowering, p: Gemm, column: Coord, offset: int, lanes: int) -> str:
    """What the accumulators of these columns are too large by; "" where they are exact."""
    _, b, _ = p.terms[0]
    if not isinstance(b, Panels) or not b.bias:
        return ""
    ptr = lo.em.op(f"getelementptr i32, ptr {b.bias}, i64 {lo.coord_text(column)}")
    return lo.em.here(f"load <{lanes} x i32>, ptr {_at(lo, 'i32', ptr, offset)}, align 4")


def _steps(
    lo: Lowering, p: Gemm, cells: list[list[str]], operands: tuple[Left, Right], at: tuple[Coord, Coord, Coord],
    unroll: int, lanes: int,
) -> None:  # fmt: skip
    """Emit `unroll` steps along k of one block."""
    em, e = lo.em, p.element
    ty, acc_type = vector_type(e, lanes), lane_type(p.t, lanes)
    (a, b), (row, k0, column) = operands, at
    vectors = len(cells[0])
    lines = [_line(lo, a, row.shifted(i), k0, e) for i in range(len(cells))]
    for u in range(unroll):
        k = k0.shifted(u)
        if isinstance(b, Panels):
            first = b.row(lo, k, column, vectors * lanes)
            places = [_at(lo, e, first, j * lanes) for j in range(vectors)]
        elif b.affine:
            first = b.address(lo, k, column)
            places = [_at(lo, e, first, j * lanes) for j in range(vectors)]
        else:
            places = [b.address(lo, k, column.shifted(j * lanes)) for j in range(vectors)]
        bs = [em.here(f"load {ty}, ptr {ptr}, align {p.align}") for ptr in places]
        for line, cell_row in zip(lines, cells, strict=True):
            x = em.here(f"load {e}, ptr {_at(lo, e, line, u)}, align {p.align}")
            if p.packing == "bytes":
                x = em.op(f"xor i32 {x}, -2139062144")  # the instruction wants them unsigned
            x = em.splat(e, x, lanes)
            for cell, y in zip(cell_row, bs, strict=True):
                old = em.here(f"load {acc_type}, ptr {cell}")
                em.stmt(f"store {acc_type} {multiply_add(lo, p, lanes, x, y, old)}, ptr {cell}")


def _line(lo: Lowering, a: Left, row: Coord, k: Coord, e: str) -> str:
    """The address of a row's k group at `k`: where a row is contiguous, its start stays in a register."""
    if not a.affine:
        return a.address(lo, row, k)
    return lo.em.op(f"getelementptr {e}, ptr {a.address(lo, row, Coord())}, i64 {lo.coord_text(k)}")


def multiply_add(lo: Lowering, p: Gemm, lanes: int, a: str, b: str, c: str) -> str:
    x, e = lo.lanes(lanes), scalar_type(p.t)
    if p.packing == "pair":
        return add_pairs(lo, lanes, a, b, c)
    if p.packing == "bytes":
        return add_bytes(lo, lanes, a, b, c)
    if p.t.is_int():
        return x.op("add", e, x.op("mul", e, a, b), c)
    return x.call("fma", e, a, b, c)


def add_pairs(lo: Lowering, lanes: int, a: str, b: str, c: str) -> str:
    """c + a0 * b0 + a1 * b1 for lanes that hold pairs of bf16."""
    em, wide = lo.em, f"<{2 * lanes} x bfloat>"
    a, b = (em.op(f"bitcast <{lanes} x i32> {x} to {wide}") for x in (a, b))
    name = f"llvm.x86.avx512bf16.dpbf16ps.{lanes * 32}"
    return em.call(
        f"<{lanes} x float>", name, f"<{lanes} x float> {c}", f"{wide} {a}", f"{wide} {b}"
    )


def add_bytes(lo: Lowering, lanes: int, a: str, b: str, c: str) -> str:
    """c + Σ a_i * b_i over the four bytes of each lane: those of `a` unsigned, of `b` signed."""
    em, ty, wide = lo.em, f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    a, b = (em.op(f"bitcast {ty} {x} to {wide}") for x in (a, b))
    name = f"llvm.x86.avx512.vpdpbusd.{lanes * 32}"
    return em.call(ty, name, f"{ty} {c}", f"{wide} {a}", f"{wide} {b}")


def zero_text(t: dtype, lanes: int) -> str:
    if lanes > 1:
        return "zeroinitializer"
    return "0" if t.is_int() else "0.0"


def _at(lo: Lowering, e: str, ptr: str, elements: int) -> str:
    return ptr if elements == 0 else lo.em.op(f"getelementptr {e}, ptr {ptr}, i64 {elements}")
