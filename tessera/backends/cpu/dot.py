"""Matrix products: operands in row-major buffers, a register-blocked microkernel over blocks of the result.

The kernel holds `dot_rows` x `dot_vectors` accumulator vectors (6 x 64 fp32 on AVX-512) and walks k: per step it loads the
vectors of one row of B and broadcasts one element of A a row. Extents that do not divide are cut into near-equal row
blocks and into narrower column panels. fp16, bf16 and fp8 operands are widened to fp32 while they are brought into their
buffers, small integers to int32.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.backends.cpu.casts import cast
from tessera.backends.cpu.loops import each, nest
from tessera.backends.cpu.lowering import Buffer, Lowering, executes, unsupported
from tessera.backends.cpu.memory import to_buffer
from tessera.backends.cpu.plan import best_dimension, fill, finish_side, materialise, prepare
from tessera.backends.cpu.text import lane_type, scalar_type
from tessera.backends.cpu.values import Coord, Point, Val
from tessera.dtypes import dtype, float32, float64, int32
from tessera.ir import Value, elem_of, shape_of
from tessera.ops import ConstOp, DotOp

UNROLL_K = 4


def compute_type(acc: dtype) -> dtype:
    """The type that products are summed in."""
    if acc.is_floating():
        return float64 if acc is float64 else float32
    return int32


@executes(DotOp)
def _dot(lo: Lowering, op: DotOp) -> None:
    acc = elem_of(op.acc.type)
    t = compute_type(acc)
    if acc.is_int() and acc is not int32:
        raise unsupported(op, f"a dot with an accumulator of {acc}")
    a, b = operand_buffer(lo, op, op.a, t), operand_buffer(lo, op, op.b, t)
    c, zero = accumulator(lo, op, t)
    *batch, m, n = shape_of(op.acc.type)
    k = shape_of(op.a.type)[-1]
    count = 1
    for s in batch:
        count *= s
    with lo.em.loop(0, count, 1) as i:
        pa, pb, pc = (offset(lo, x, i, size) for x, size in ((a, m * k), (b, k * n), (c, m * n)))
        product(lo, Product(t, m, n, k, pa, pb, pc, zero))
    c.version = lo.new_version()
    lo.keep(op.result, c if acc == t else rounded(lo, c, acc))


def offset(lo: Lowering, buffer: Buffer, i: int | str, size: int) -> str:
    """Address of matrix `i` of a batch."""
    if i == 0:
        return buffer.ptr
    at = lo.em.op(f"mul nsw i64 {i}, {size}")
    return lo.em.op(f"getelementptr {scalar_type(buffer.elem)}, ptr {buffer.ptr}, i64 {at}")


def operand_buffer(lo: Lowering, op: DotOp, v: Value, t: dtype) -> Buffer:
    """An operand in a row-major buffer of the type that is computed in."""
    if elem_of(v.type) == t:
        return materialise(lo, v, op)
    source = elem_of(v.type)
    prepare(lo, [v], op)
    shape = shape_of(v.type)
    buffer = lo.allocate(t, shape)

    def body(at: Point) -> None:
        x = lo.value(v, at)
        text = cast(lo.lanes(x.lanes), lo.text(x, x.lanes), source, t)
        to_buffer(lo, buffer, at, Val(t, x.lanes, text))

    each(lo, nest(lo, shape, along=best_dimension(lo, v)), body)
    finish_side(lo)
    buffer.version = lo.new_version()
    lo.temporaries.append(buffer)
    return buffer


def accumulator(lo: Lowering, op: DotOp, t: dtype) -> tuple[Buffer, bool]:
    """(buffer that the product is added to, whether it counts as zero). The accumulator's own buffer when nothing else
    needs the old value."""
    v, shape = op.acc, shape_of(op.acc.type)
    if isinstance(v.op, ConstOp) and not v.op.value:
        return lo.allocate(t, shape), True
    own = lo.buffers.get(v)
    if own is not None and len(v.uses) == 1 and own.elem == t and lo.homes.get(v) is lo.block:
        return own, False
    buffer = lo.allocate(t, shape)
    prepare(lo, [v], op, keep_top=False)
    if elem_of(v.type) == t:
        fill(lo, buffer, v)
    else:
        source = elem_of(v.type)

        def body(at: Point) -> None:
            x = lo.value(v, at)
            to_buffer(lo, buffer, at, Val(t, x.lanes, cast(lo.lanes(x.lanes), lo.text(x, x.lanes), source, t)))

        each(lo, nest(lo, shape), body)
    finish_side(lo)
    return buffer, False


def rounded(lo: Lowering, c: Buffer, acc: dtype) -> Buffer:
    """The result in the accumulator's type."""
    buffer = lo.allocate(acc, c.shape)

    def body(at: Point) -> None:
        x = lo.from_buffer(c, at)
        to_buffer(lo, buffer, at, Val(acc, x.lanes, cast(lo.lanes(x.lanes), lo.text(x, x.lanes), c.elem, acc)))

    each(lo, nest(lo, c.shape), body)
    buffer.version = lo.new_version()
    return buffer


# --- the microkernel ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Product:
    """c[m][n] (+)= a[m][k] @ b[k][n], all row-major and dense; `zero`: c starts at zero."""

    t: dtype
    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    zero: bool


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
            column = lo.index(panel, 1, count).times(width * vectors).plus(Coord(first, (), None, first + 1))
            for rows, row0, blocks in split_rows(p.m, lo.facts.dot_rows):
                with lo.em.loop(0, blocks, 1) as block:
                    row = lo.index(block, 1, blocks).times(rows).plus(Coord(row0, (), None, row0 + 1))
                    _micro(lo, p, rows, vectors, width, row, column)


def _micro(lo: Lowering, p: Product, rows: int, vectors: int, lanes: int, row: Coord, column: Coord) -> None:
    """One block of accumulators over all of k."""
    em, e = lo.em, scalar_type(p.t)
    ty = lane_type(p.t, lanes)
    align = p.t.storage_bytes
    cells = [[em.alloca(ty) for _ in range(vectors)] for _ in range(rows)]
    first = lo.coord_text(row.times(p.n).plus(column))
    corner = em.op(f"getelementptr {e}, ptr {p.c}, i64 {first}")
    targets = [[_at(lo, e, corner, i * p.n + j * lanes) for j in range(vectors)] for i in range(rows)]
    for line, ptrs in zip(cells, targets, strict=True):
        for cell, ptr in zip(line, ptrs, strict=True):
            start = "zeroinitializer" if p.zero else em.here(f"load {ty}, ptr {ptr}, align {align}")
            if p.zero and lanes == 1:
                start = "0" if p.t.is_int() else "0.0"
            em.stmt(f"store {ty} {start}, ptr {cell}")
    lines = em.op(f"getelementptr {e}, ptr {p.a}, i64 {lo.coord_text(row.times(p.k))}")
    base = em.op(f"getelementptr {e}, ptr {p.b}, i64 {lo.coord_text(column)}")
    unroll = next(u for u in (UNROLL_K, 2, 1) if p.k % u == 0)
    with em.loop(0, p.k, unroll) as k0:
        for u in range(unroll):
            k = lo.index(k0, unroll, p.k).shifted(u)
            b_row = em.op(f"getelementptr {e}, ptr {base}, i64 {lo.coord_text(k.times(p.n))}")
            bs = [em.here(f"load {ty}, ptr {_at(lo, e, b_row, j * lanes)}, align {align}") for j in range(vectors)]
            for i in range(rows):
                a_ptr = em.op(f"getelementptr {e}, ptr {lines}, i64 {lo.coord_text(k.shifted(i * p.k))}")
                a = em.splat(e, em.here(f"load {e}, ptr {a_ptr}, align {align}"), lanes)
                for j in range(vectors):
                    old = em.here(f"load {ty}, ptr {cells[i][j]}")
                    em.stmt(f"store {ty} {multiply_add(lo, p.t, lanes, a, bs[j], old)}, ptr {cells[i][j]}")
    for line, ptrs in zip(cells, targets, strict=True):
        for cell, ptr in zip(line, ptrs, strict=True):
            em.stmt(f"store {ty} {em.here(f'load {ty}, ptr {cell}')}, ptr {ptr}, align {align}")


def _at(lo: Lowering, e: str, ptr: str, elements: int) -> str:
    return ptr if elements == 0 else lo.em.op(f"getelementptr {e}, ptr {ptr}, i64 {elements}")


def multiply_add(lo: Lowering, t: dtype, lanes: int, a: str, b: str, c: str) -> str:
    x, e = lo.lanes(lanes), scalar_type(t)
    if t.is_int():
        return x.op("add", e, x.op("mul", e, a, b), c)
    return x.call("fma", e, a, b, c)
