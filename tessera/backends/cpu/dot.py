"""Matrix products: operands in row-major buffers, a register-blocked microkernel over blocks of the result.

The kernel holds `dot_rows` x `dot_vectors` accumulator vectors (6 x 64 fp32 on AVX-512) and walks k: per step it loads the
vectors of one row of B and broadcasts one element of A a row. Extents that do not divide are cut into near-equal row
blocks and into narrower column panels. fp16, bf16 and fp8 operands are widened to fp32 while they are brought into their
buffers, small integers to int32.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.backends.cpu.casts import cast
from tessera.backends.cpu.loops import each, nest, prefix_masks, slope
from tessera.backends.cpu.lowering import Buffer, Lowering, executes, unsupported
from tessera.backends.cpu.memory import to_buffer
from tessera.backends.cpu.plan import (
    best_dimension, contiguous_along, contiguous_dimension, fill, finish_side, materialise, prepare,
)  # fmt: skip
from tessera.backends.cpu.text import ATTRIBUTES, lane_type, scalar_type
from tessera.backends.cpu.values import Coord, Point, Val
from tessera.dtypes import dtype, float32, float64, int32
from tessera.ir import Effect, TileType, Value, elem_of, shape_of
from tessera.ops import AddPtrOp, AndOp, BroadcastOp, ConstOp, DotOp, ExpandDimsOp, LoadOp

UNROLL_K = 2  # steps along k in one trip: 4 are no faster and twice the code


def compute_type(acc: dtype) -> dtype:
    """The type that products are summed in."""
    if acc.is_floating():
        return float64 if acc is float64 else float32
    return int32


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

    def address(self, lo: Lowering, row: Coord, column: Coord) -> str:
        lo.memo = {}
        return lo.text(lo.value(self.ptr, Point((row, column), 1)), 1)


Matrix = Packed | InPlace


@executes(DotOp)
def _dot(lo: Lowering, op: DotOp) -> None:
    acc = elem_of(op.acc.type)
    if acc.is_int() and acc is not int32:
        raise unsupported(op, f"a dot with an accumulator of {acc}")
    if _postponed(op):
        lo.chained[op] = None  # it runs together with the dot that adds to its result
        return
    links = _chain(lo, op)
    t = compute_type(acc)
    c, zero = accumulator(lo, links[0], t)
    _multiply(lo, links, t, c, zero)
    c.version = lo.new_version()
    for link in links:
        lo.chained.pop(link, None)
    lo.keep(op.result, c if acc == t else rounded(lo, c, acc))


def _postponed(op: DotOp) -> bool:
    """Whether the result only feeds the accumulator of another dot of the block, with nothing written in between."""
    (*_, last) = op.result.uses or (None,)
    if last is None or len(op.result.uses) != 1 or not isinstance(last[0], DotOp) or last[1] != 2:
        return False
    if last[0].parent is not op.parent or elem_of(op.a.type) != elem_of(last[0].a.type):
        return False
    between = op.next
    while between is not last[0]:
        if between is None or between.all_effects() & (Effect.WRITE | Effect.SYNC):
            return False
        between = between.next
    return elem_of(op.acc.type).bits >= 32


def _chain(lo: Lowering, op: DotOp) -> list[DotOp]:
    """The dots whose sum `op` completes, in order."""
    links = [op]
    while isinstance(links[0].acc.op, DotOp) and links[0].acc.op in lo.chained:
        links.insert(0, links[0].acc.op)
    return links


def _multiply(lo: Lowering, links: list[DotOp], t: dtype, c: Buffer, zero: bool) -> None:
    *batch, m, n = c.shape
    placed = [[_in_place(lo, v, t) for v in (op.a, op.b)] for op in links] if not batch else []
    direct = bool(placed) and all(x is not None for pair in placed for x in pair)
    if direct:
        pairs = [(x, y, shape_of(op.a.type)[-1]) for (x, y), op in zip(placed, links, strict=True) if x and y]
        condition = _all_inside(lo, links)
        if condition == "true":
            product(lo, Product(t, m, n, pairs, c.ptr, zero))
            return
        k = lo.em.new_label("")
        lo.em.stmt(f"br i1 {condition}, label %direct{k}, label %copied{k}")
        lo.em.label(f"direct{k}")
        with lo.em.arm():
            product(lo, Product(t, m, n, pairs, c.ptr, zero))
        lo.em.stmt(f"br label %joined{k}")
        lo.em.label(f"copied{k}")
        with lo.em.arm():
            _copied_one_by_one(lo, links, t, c, zero)
        lo.em.stmt(f"br label %joined{k}")
        lo.em.label(f"joined{k}")
        return
    count = 1
    for s in batch:
        count *= s
    buffers = [(operand_buffer(lo, op, op.a, t), operand_buffer(lo, op, op.b, t)) for op in links]
    with lo.em.loop(0, count, 1) as i:
        for a, b in buffers:
            k = a.shape[-1]
            pa, pb, pc = (offset(lo, x, i, size) for x, size in ((a, m * k), (b, k * n), (c, m * n)))
            packed_product(lo, t, (m, n, k), (pa, pb, pc), zero)
            zero = False


def packed_product(
    lo: Lowering, t: dtype, sizes: tuple[int, int, int], where: tuple[str, str, str], zero: bool
) -> None:
    """c (+)= a @ b for row-major matrices of `sizes` (m, n, k), by a function that all such products share."""
    m, n, k = sizes
    name = f"tessera.product.{t.name}.{m}x{n}x{k}{'.zero' if zero else ''}"
    if f"@{name}" not in lo.em.globals:
        lo.em.globals[f"@{name}"] = None
        inner = Lowering(lo.state, lo.access)
        a, b, c = (inner.em.parameter(p) for p in ("%a", "%b", "%c"))
        product(inner, Product(t, m, n, [(Packed(a, t, k), Packed(b, t, n), k)], c, zero))
        head = f"define internal void @{name}(ptr noalias %a, ptr noalias %b, ptr noalias %c) noinline nounwind"
        lo.em.globals[f"{head} {ATTRIBUTES} {{\n  {inner.em.body()}\n  ret void\n}}"] = None
    a, b, c = where
    lo.em.stmt(f"call void @{name}(ptr {a}, ptr {b}, ptr {c})")


def _copied_one_by_one(lo: Lowering, links: list[DotOp], t: dtype, c: Buffer, zero: bool) -> None:
    """The rare way: masked operands pass through one pair of buffers."""
    m, n = c.shape
    buffers: dict[tuple[int, ...], Buffer] = {}
    for op in links:
        pair: list[str] = []
        for name, v in (("a", op.a), ("b", op.b)):
            shape = shape_of(v.type)
            key = (*shape, name == "a")
            if key not in buffers:
                buffers[key] = lo.allocate(t, shape)
            fill(lo, buffers[key], v)
            pair.append(buffers[key].ptr)
        packed_product(lo, t, (m, n, shape_of(op.a.type)[-1]), (*pair, c.ptr), zero)
        zero = False
    lo.temporaries += buffers.values()


# --- operands where they lie ----------------------------------------------------------------------------------
def _in_place(lo: Lowering, v: Value, t: dtype) -> InPlace | None:
    """The operand as a load that need not be copied; None when it is none, or not contiguous."""
    op = v.op
    if not isinstance(op, LoadOp) or not lo.lazy(v) or elem_of(v.type) != t or op.volatile:
        return None
    rows, columns = shape_of(v.type)
    lanes = min(columns & -columns, lo.facts.lanes)
    if columns % lo.facts.lanes or contiguous_dimension(lo, op.ptr) is not None or not contiguous_along(lo, op.ptr, 1, lanes):
        return None
    return InPlace(op.ptr, t, pointer_slope(op.ptr, 1) == 1)


def pointer_slope(v: Value, dim: int) -> int | None:
    """`slope` through additions to a pointer."""
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


def _all_inside(lo: Lowering, links: list[DotOp]) -> str:
    """An i1: whether no mask of the operands is false anywhere. Masks are prefixes: the last element tells."""
    text = "true"
    for v in (v for op in links for v in (op.a, op.b)):
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
    """Whether a mask is an `and` of comparisons that turn from true to false along one dimension each."""
    if isinstance(mask.op, AndOp):
        return _is_prefix(lo, mask.op.lhs) and _is_prefix(lo, mask.op.rhs)
    return any(prefix_masks(lo, mask, d) for d in range(len(shape_of(mask.type))))


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
    """c[m][n] (+)= Σ a[m][k] @ b[k][n] over the pairs (a, b, k); c is row-major and dense, `zero`: it starts at zero."""

    t: dtype
    m: int
    n: int
    pairs: list[tuple[Matrix, Matrix, int]]
    c: str
    zero: bool
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
            column = lo.index(panel, 1, count).times(width * vectors).plus(Coord(first, (), None, first + 1))
            for rows, row0, blocks in split_rows(p.m, lo.facts.dot_rows):
                with lo.em.loop(0, blocks, 1) as block:
                    row = lo.index(block, 1, blocks).times(rows).plus(Coord(row0, (), None, row0 + 1))
                    _micro(lo, p, rows, vectors, width, row, column)


def _micro(lo: Lowering, p: Product, rows: int, vectors: int, lanes: int, row: Coord, column: Coord) -> None:
    """One block of accumulators over all of k."""
    em, e = lo.em, scalar_type(p.t)
    ty, align = lane_type(p.t, lanes), p.t.storage_bytes
    cells = [[em.alloca(ty) for _ in range(vectors)] for _ in range(rows)]
    corner = em.op(f"getelementptr {e}, ptr {p.c}, i64 {lo.coord_text(row.times(p.n).plus(column))}")
    targets = [[_at(lo, e, corner, i * p.n + j * lanes) for j in range(vectors)] for i in range(rows)]
    for line, ptrs in zip(cells, targets, strict=True):
        for cell, ptr in zip(line, ptrs, strict=True):
            start = zero_text(p.t, lanes) if p.zero else em.here(f"load {ty}, ptr {ptr}, align {align}")
            em.stmt(f"store {ty} {start}, ptr {cell}")
    for a, b, depth in p.pairs:
        wide = p.unroll if b.affine else 1
        unroll = next(u for u in (wide, 2, 1) if u <= wide and depth % u == 0)
        with em.loop(0, depth, unroll) as k0:
            _steps(lo, p.t, cells, (a, b), (row, lo.index(k0, unroll, depth), column), unroll, lanes)
    for line, ptrs in zip(cells, targets, strict=True):
        for cell, ptr in zip(line, ptrs, strict=True):
            em.stmt(f"store {ty} {em.here(f'load {ty}, ptr {cell}')}, ptr {ptr}, align {align}")


def _steps(
    lo: Lowering, t: dtype, cells: list[list[str]], operands: tuple[Matrix, Matrix], at: tuple[Coord, Coord, Coord],
    unroll: int, lanes: int,
) -> None:  # fmt: skip
    """`unroll` steps along k of one block."""
    em, e = lo.em, scalar_type(t)
    ty, align = lane_type(t, lanes), t.storage_bytes
    (a, b), (row, k0, column) = operands, at
    lines = [a.address(lo, row.shifted(i), k0) for i in range(len(cells))]
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
                old = em.here(f"load {ty}, ptr {cell}")
                em.stmt(f"store {ty} {multiply_add(lo, t, lanes, x, y, old)}, ptr {cell}")


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
