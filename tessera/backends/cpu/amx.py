"""Emits matrix multiplications on the matrix unit (AMX): 2 x 2 accumulator tiles of 16 x 16, fed by two tiles of A and
two of B.

A tile of A is 16 rows of 64 bytes in the order of memory; a tile of B is 16 rows of 16 k groups of a panel, each of
which holds two (bf16) or four (bytes) neighbours along k. The eight tile registers are named by hand: 0 to 3 are
accumulators, 4 and 5 rows of A, 6 and 7 columns of B. One configuration serves a whole function.

A block of rows of A is read again for each panel, while all of B is read once: tiles of B are loaded with the hint not
to keep them in the L1 cache, so that the rows of A stay there.
"""

from __future__ import annotations

import struct

from tessera.backends.cpu.loops import places
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.microkernel import Gemm, along_k
from tessera.backends.cpu.operands import Panels, panels
from tessera.backends.cpu.values import Coord

ROWS, COLUMNS = 16, 16  # of a tile: rows, and columns of 32 bits
UNROLL_STEPS = 4  # tiles along k without a loop
STAYS = 32 << 10  # bytes of B that the L1 cache keeps
CONFIG = "tile_config"


def configure(lo: Lowering) -> None:
    """Configure all eight registers as full tiles, from the function's start on."""
    data = struct.pack("<BB14x16H16B", 1, 0, *[64] * 8, *[0] * 8, *[ROWS] * 8, *[0] * 8)
    bytes_ = ", ".join(f"i8 {b}" for b in data)
    lo.em.globals[f"@{CONFIG} = private constant [64 x i8] [{bytes_}], align 64"] = None
    lo.em.declare("void", "llvm.x86.ldtilecfg", "ptr")
    lo.em.declare("void", "llvm.x86.tilerelease")
    if not lo.tiles:
        lo.tiles = True
        lo.em.at_entry(f"call void @llvm.x86.ldtilecfg(ptr @{CONFIG})")


def amx_gemm(lo: Lowering, p: Gemm) -> None:
    """Multiply by tiles: the extents of c are multiples of 16, that of k is a multiple of 16 k groups."""
    for rows, first, blocks in amx_row_blocks(p):
        for row in places(lo, rows, first, blocks):
            amx_gemm_rows(lo, p, row, rows)


def amx_row_blocks(p: Gemm) -> list[tuple[int, int, int]]:
    """(rows of a block, first row, number of blocks)."""
    return [(height * rows, first, count) for height, rows, first, count in panels(p.m, ROWS, 2)]


def amx_gemm_rows(lo: Lowering, p: Gemm, row: Coord, rows: int) -> None:
    """Multiply one block of rows by tiles."""
    configure(lo)
    name = "llvm.x86.tdpbf16ps" if p.packing == "pair" else "llvm.x86.tdpbssd"
    for width, columns, first, count in panels(p.n, COLUMNS, 2):
        for column in places(lo, width * columns, first, count):
            _block(lo, p, name, (rows // ROWS, columns), row, column)


def _tile(lo: Lowering, kind: str, register: int, ptr: str, stride: str) -> None:
    lo.em.call_here(
        "void", f"llvm.x86.tile{kind}64", f"i8 {register}", f"ptr {ptr}", f"i64 {stride}"
    )


def _block(
    lo: Lowering, p: Gemm, name: str, size: tuple[int, int], row: Coord, column: Coord
) -> None:
    em = lo.em
    rows, columns = size
    corner = em.op(
        f"getelementptr i32, ptr {p.c}, i64 {lo.coord_text(row.times(p.n).plus(column))}"
    )
    accumulators = [
        (2 * i + j, em.op(f"getelementptr i32, ptr {corner}, i64 {(i * p.n + j) * 16}"))
        for i in range(rows)
        for j in range(columns)
    ]

    def clear() -> None:
        for register, _ in accumulators:
            em.call_here("void", "llvm.x86.tilezero", f"i8 {register}")

    def load() -> None:
        for register, ptr in accumulators:
            _tile(lo, "loadd", register, ptr, str(4 * p.n))

    em.choose(p.zero, clear, load)
    passing = bool(p.steps) or sum(depth for *_, depth in p.terms) * p.n * 4 > STAYS
    for a, b, depth in p.terms:
        assert isinstance(b, Panels)
        step = COLUMNS if p.steps or depth > UNROLL_STEPS * COLUMNS else depth
        with along_k(lo, p, depth, step) as k0:
            for inner in range(0, step, COLUMNS):
                k = lo.index(k0, step, 1 << 31 if p.steps else depth).shifted(inner)
                lefts = [a.strided(lo, row.shifted(ROWS * i), k) for i in range(rows)]
                right = b.row(lo, k, column, COLUMNS * columns)
                _step(lo, name, lefts, right, columns, "loaddt1" if passing else "loadd")
    for register, ptr in accumulators:
        _tile(lo, "stored", register, ptr, str(4 * p.n))


def _step(
    lo: Lowering, name: str, lefts: list[tuple[str, str]], right: str, columns: int, kind: str
) -> None:
    """Multiply one tile along k; `kind`: the instruction that loads tiles of B."""
    em, stride = lo.em, str(4 * COLUMNS * columns)
    for i, (ptr, distance) in enumerate(lefts):
        _tile(lo, "loadd", 4 + i, ptr, distance)
    for j in range(columns):
        _tile(lo, kind, 6 + j, em.op(f"getelementptr i32, ptr {right}, i64 {COLUMNS * j}"), stride)
        for i in range(len(lefts)):
            em.call_here("void", name, f"i8 {2 * i + j}", f"i8 {4 + i}", f"i8 {6 + j}")
