"""Lowers dots: chooses the instructions, decides which operands are copied or read in place, and finds the accumulator.

An A that is a plain contiguous load is read in place (a masked one if its mask is all true at run time); otherwise A is
brought into a row-major buffer. B is packed in panels (panel_cache.py), or read in place where packing would not pay.
Of the instructions that the machine has, a dot takes the widest that is exact for its types:

    tiles   bf16 and fp8 with fp32 accumulators, int8 with int32 ones: the matrix unit (AMX)
    pairs   bf16 and fp8: two neighbours along k at once
    bytes   int8: four neighbours along k at once
    plain   fp32 (fp16, bf16 and fp8 widened), fp64 or int32
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from tessera.backends.cpu.amx import COLUMNS, ROWS, amx_gemm, amx_gemm_rows, amx_row_blocks
from tessera.backends.cpu.fusion import fill, finish_memo_buffers, materialise, prepare
from tessera.backends.cpu.llvm_text import ATTRIBUTES, scalar_type
from tessera.backends.cpu.loops import each, nest
from tessera.backends.cpu.lowering import Buffer, Lowering, executes
from tessera.backends.cpu.memory import to_buffer
from tessera.backends.cpu.microkernel import Gemm, column_panels, gemm, gemm_rows, row_blocks
from tessera.backends.cpu.operands import (
    Either,
    InPlace,
    Left,
    Packed,
    Panels,
    Right,
    all_inside,
    distance,
    in_place,
    panels,
    uniform_along,
)
from tessera.backends.cpu.panel_cache import packed_panels
from tessera.backends.cpu.panels import Form
from tessera.backends.cpu.transpose import Convert, transposed_dimension
from tessera.backends.cpu.values import Coord, Val
from tessera.backends.elements.casts import cast
from tessera.dtypes import FP8, bfloat16, dtype, float32, float64, int8, int32, int64
from tessera.ir import Effect, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import AddOp, ConstOp, DotOp, MulOp, SubOp

PACK_ROWS = 96  # rows of c from which copying B of one program alone pays


@dataclass(frozen=True, slots=True)
class Scheme:
    """The instructions of a dot: `kind` is tiles, pairs, bytes or plain. Elements of A and B are converted to `t`;
    `k_pack` neighbours along k are packed in one lane, of type `packed_type`."""

    kind: str
    t: dtype
    k_pack: int = 1

    @property
    def packed_type(self) -> dtype:
        return int32 if self.k_pack > 1 else self.t


def compute_type(acc: dtype) -> dtype:
    """The type of the accumulator registers."""
    if acc.is_floating():
        return float64 if acc is float64 else float32
    return int64 if acc.bits == 64 else int32


def scheme_of(lo: Lowering, op: DotOp) -> Scheme:
    """The widest instructions that are exact for the types of a dot and fit its shape."""
    acc = compute_type(elem_of(op.acc.type))
    plain = Scheme("plain", acc)
    if len(shape_of(op.a.type)) != 2:
        return plain
    a, b = elem_of(op.a.type), elem_of(op.b.type)
    small = (bfloat16, *FP8)
    if acc is float32 and a in small and b in small:
        if _tiles_fit(lo, op, 2) and apply("amx-tiles", op):
            return Scheme("tiles", bfloat16, 2)
        pairs = lo.facts.bf16_dot and _vectors_fit(op, 2) and apply("bf16-pairs", op)
        return Scheme("pairs", bfloat16, 2) if pairs else plain
    if acc is int32 and a is int8 and b is int8:
        if _tiles_fit(lo, op, 4) and apply("amx-tiles", op):
            return Scheme("tiles", int8, 4)
        if lo.facts.bytes_dot and _vectors_fit(op, 4) and apply("int8-quads", op):
            return Scheme("bytes", int8, 4)
    return plain


def _tiles_fit(lo: Lowering, op: DotOp, k_pack: int) -> bool:
    (m, k), n = shape_of(op.a.type), shape_of(op.b.type)[1]
    return lo.facts.tiles and m % ROWS == 0 and n % COLUMNS == 0 and k % (COLUMNS * k_pack) == 0


def _vectors_fit(op: DotOp, k_pack: int) -> bool:
    k, n = shape_of(op.b.type)
    return k % k_pack == 0 and n % 16 == 0


@executes(DotOp)
def _dot(lo: Lowering, op: DotOp) -> None:
    acc = elem_of(op.acc.type)
    if op in lo.packs:
        lo.packs[op]()
        lo.keep(op.result, lo.buffers[op.acc])
        return
    if _is_chained(op):
        lo.chained[op] = None  # it runs together with the dot that adds to its result
        return
    links = _chain(lo, op)
    t = compute_type(acc)
    c, zero = accumulator(lo, links[0], t)
    scheme = scheme_of(lo, op)
    if len(c.shape) > 2:
        _multiply_batch(lo, links, t, c, zero)
    else:
        _multiply(lo, links, scheme, c, zero)
    c.version = lo.new_version()
    for link in links:
        lo.chained.pop(link, None)
    lo.keep(op.result, c if acc == t else rounded(lo, c, acc))


def _is_chained(op: DotOp) -> bool:
    """Whether the result only feeds the accumulator of another dot of the block, with nothing written in between."""
    (*_, last) = op.result.uses or (None,)
    if last is None or len(op.result.uses) != 1 or not isinstance(last[0], DotOp) or last[1] != 2:
        return False
    if last[0].parent is not op.parent or any(
        shape_of(x.type) != shape_of(y.type) or elem_of(x.type) != elem_of(y.type)
        for x, y in zip(op.operands[:2], last[0].operands[:2], strict=True)
    ):
        return False
    between = op.next
    while between is not last[0]:
        if between is None or between.all_effects() & (Effect.WRITE | Effect.SYNC):
            return False
        between = between.next
    return elem_of(op.acc.type).bits >= 32 and apply("dot-chains", op)


def _chain(lo: Lowering, op: DotOp) -> list[DotOp]:
    """The chain of dots that ends with `op`, in order: each adds to the result of the one before."""
    links = [op]
    while isinstance(links[0].acc.op, DotOp) and links[0].acc.op in lo.chained:
        links.insert(0, links[0].acc.op)
    return links


def _multiply(lo: Lowering, links: list[DotOp], scheme: Scheme, c: Buffer, zero: str) -> None:
    m, n = c.shape
    k_groups = shape_of(links[0].a.type)[1] // scheme.k_pack
    rights = _rights(lo, links, scheme, m)
    lefts = _lefts(lo, links, scheme, len(rights) == 1)
    if len(rights) == 1 and isinstance(rights[0], Panels):
        rights = [replace(rights[0], first=Coord(i * k_groups)) for i in range(len(links))]
    if len(lefts) == 1:
        terms = [(lefts[0], rights[0], k_groups * len(links))]
    else:
        terms = [(a, b, k_groups) for a, b in zip(lefts, rights, strict=True)]
    packing = {2: "pair", 4: "bytes"}.get(scheme.k_pack, "")
    multiply(lo, scheme, Gemm(c.elem, m, n, terms, c.ptr, zero, packing))


def multiply(lo: Lowering, scheme: Scheme, p: Gemm) -> None:
    if scheme.kind == "tiles":
        amx_gemm(lo, p)
    else:
        gemm(lo, p)


def multiply_rows(lo: Lowering, scheme: Scheme, p: Gemm, row: Coord, rows: int) -> None:
    """Multiply one of the blocks of `blocks_of_rows`."""
    (amx_gemm_rows if scheme.kind == "tiles" else gemm_rows)(lo, p, row, rows)


def blocks_of_rows(lo: Lowering, scheme: Scheme, p: Gemm) -> list[tuple[int, int, int]]:
    """(rows of a block, first row, number of blocks)."""
    return amx_row_blocks(p) if scheme.kind == "tiles" else row_blocks(lo, p)


def _rights(lo: Lowering, links: list[DotOp], scheme: Scheme, m: int) -> list[Right]:
    """B of each dot of the chain in place, or of all of them in panels."""
    if scheme.kind == "plain" and m < PACK_ROWS:
        places = [in_place(lo, op.b, scheme.t) for op in links]
        found = [x for x in places if x is not None]
        if len(found) == len(links) and all_inside(lo, [op.b for op in links]) == "true":
            return list(found)
    return [packed_panels(lo, links, form_of(lo, links[0], scheme))]


def form_of(lo: Lowering, op: DotOp, scheme: Scheme) -> Form:
    """The form in which B is packed."""
    n = shape_of(op.b.type)[1]
    if scheme.kind == "tiles":
        return Form(scheme.t, scheme.k_pack, panels(n, COLUMNS, 2))
    bias = 128 if scheme.kind == "bytes" else 0
    acc = compute_type(elem_of(op.acc.type))
    return Form(scheme.t, scheme.k_pack, column_panels(lo, acc, n), bias)


def _lefts(lo: Lowering, links: list[DotOp], scheme: Scheme, join: bool) -> list[Left]:
    """A of each dot of the chain; one matrix for all of them where they are adjacent in memory, or copied (and
    `join`)."""
    places = [left_in_place(lo, op, scheme) for op in links]
    found = [x for x in places if x is not None]
    if len(found) < len(links):
        return [_copied(lo, part, scheme) for part in ([links] if join else [[x] for x in links])]
    k = shape_of(links[0].a.type)[1]
    steps = [distance(x.ptr, y.ptr) for x, y in pairwise(found)]
    if join and found[0].affine and all(step == k for step in steps):
        return [_either(lo, links, found[0], scheme)]
    return [_either(lo, [op], x, scheme) for op, x in zip(links, found, strict=True)]


def left_in_place(lo: Lowering, op: DotOp, scheme: Scheme) -> InPlace | None:
    """A in place, if the microkernel can read it there."""
    placed = in_place(lo, op.a, scheme.t)
    if placed is None or (not placed.affine and scheme.k_pack > 1):
        return None
    rows = shape_of(op.a.type)[0]
    if scheme.kind == "tiles" and not all(
        uniform_along(lo, placed.ptr, 0, i, ROWS) for i in range(0, rows, ROWS)
    ):
        return None
    return InPlace(placed.ptr, scheme.packed_type, placed.affine, scheme.k_pack)


def _either(lo: Lowering, links: list[DotOp], placed: InPlace, scheme: Scheme) -> Left:
    """A in place, or a copy where its mask is false somewhere: this is decided at run time."""
    condition = all_inside(lo, [op.a for op in links])
    if condition == "true":
        return placed
    m, k = shape_of(links[0].a.type)
    buffer = lo.allocate(scheme.t, (m, k * len(links)))
    with lo.em.branch(condition, negate=True):
        _fill_side_by_side(lo, buffer, links)
    lo.temporaries.append(buffer)
    copy = Packed(buffer.ptr, scheme.packed_type, k * len(links) // scheme.k_pack)
    return Either(condition, placed, copy, placed.affine)


def _copied(lo: Lowering, links: list[DotOp], scheme: Scheme) -> Packed:
    """A of all dots of a chain side by side in a buffer; that of a single dot in the buffer that it may have."""
    m, k = shape_of(links[0].a.type)
    if len(links) == 1:
        buffer = operand_buffer(lo, links[0], links[0].a, scheme.t)
    else:
        for op in links:
            prepare(lo, [op.a], op)
        buffer = lo.allocate(scheme.t, (m, k * len(links)))
        _fill_side_by_side(lo, buffer, links)
        finish_memo_buffers(lo)
        lo.temporaries.append(buffer)
    return Packed(buffer.ptr, scheme.packed_type, k * len(links) // scheme.k_pack)


def _fill_side_by_side(lo: Lowering, buffer: Buffer, links: list[DotOp]) -> None:
    m, width = buffer.shape
    k = width // len(links)
    for i, op in enumerate(links):
        part = replace(buffer, shape=(m, k), pitch=width, offset=i * k)
        fill(lo, part, op.a, casting(lo, elem_of(op.a.type), buffer.elem))
    buffer.version = lo.new_version()


# --- batches ------------------------------------------------------------------------------------------------------
def _multiply_batch(lo: Lowering, links: list[DotOp], t: dtype, c: Buffer, zero: str) -> None:
    *batch, m, n = c.shape
    count = 1
    for s in batch:
        count *= s
    buffers = [(operand_buffer(lo, op, op.a, t), operand_buffer(lo, op, op.b, t)) for op in links]
    with lo.em.loop(0, count, 1) as i:
        for a, b in buffers:
            k = a.shape[-1]
            pa, pb, pc = (
                offset(lo, x, i, size) for x, size in ((a, m * k), (b, k * n), (c, m * n))
            )
            packed_gemm(lo, t, (m, n, k), (pa, pb, pc), zero)
            zero = "false"


def packed_gemm(
    lo: Lowering, t: dtype, sizes: tuple[int, int, int], where: tuple[str, str, str], zero: str
) -> None:
    """c (+)= a @ b for row-major matrices of `sizes` (m, n, k), by a function that all calls of that size share."""
    m, n, k = sizes
    name = f"tessera.product.{t.name}.{m}x{n}x{k}{'.zero' if zero == 'true' else ''}"
    if f"@{name}" not in lo.em.globals:
        lo.em.globals[f"@{name}"] = None
        inner = Lowering(lo.state, lo.access)
        a, b, c = (inner.em.parameter(p) for p in ("%a", "%b", "%c"))
        gemm(inner, Gemm(t, m, n, [(Packed(a, t, k), Packed(b, t, n), k)], c, zero))
        head = f"define internal void @{name}(ptr noalias %a, ptr noalias %b, ptr noalias %c) noinline nounwind"
        lo.em.globals[f"{head} {ATTRIBUTES} {{\n  {inner.em.body()}\n  ret void\n}}"] = None
    a, b, c = where
    lo.em.stmt(f"call void @{name}(ptr {a}, ptr {b}, ptr {c})")


def offset(lo: Lowering, buffer: Buffer, i: int | str, size: int) -> str:
    """Address of matrix `i` of a batch."""
    if i == 0:
        return buffer.ptr
    at = lo.em.op(f"mul nsw i64 {i}, {size}")
    return lo.em.op(f"getelementptr {scalar_type(buffer.elem)}, ptr {buffer.ptr}, i64 {at}")


def operand_buffer(lo: Lowering, op: DotOp, v: Value, t: dtype) -> Buffer:
    """An operand in a row-major buffer, converted to `t`."""
    if elem_of(v.type) == t:
        return materialise(lo, v, op)
    source = elem_of(v.type)
    prepare(lo, [v], op)
    buffer = lo.allocate(t, shape_of(v.type))
    fill(lo, buffer, v, casting(lo, source, t))
    finish_memo_buffers(lo)
    buffer.version = lo.new_version()
    lo.temporaries.append(buffer)
    return buffer


def accumulator(lo: Lowering, op: DotOp, t: dtype) -> tuple[Buffer, str]:
    """(buffer that the dot adds to, i1: whether it counts as zero). The accumulator's own buffer when nothing
    else needs the old value."""
    v, shape = op.acc, shape_of(op.acc.type)
    if isinstance(v.op, ConstOp) and not v.op.value:
        return lo.allocate(t, shape), "true"
    own = lo.buffers.get(v)
    if (
        own is not None
        and len(v.uses) == 1
        and own.elem == t
        and lo.buffer_blocks.get(v) is lo.block
    ):
        return own, lo.zero_start.get(v, "false")
    buffer = _scaled_in_place(lo, v, t) or lo.allocate(t, shape)
    prepare(lo, [v], op, keep_top=False)
    fill(lo, buffer, v, casting(lo, elem_of(v.type), t))
    finish_memo_buffers(lo)
    return buffer, "false"


def _scaled_in_place(lo: Lowering, v: Value, t: dtype) -> Buffer | None:
    """The buffer of a carried accumulator that `v` is computed from element by element, and that nothing else needs:
    `acc * shrink` of attention, say."""
    x = _one_source(lo, v)
    own = lo.buffers.get(x) if x is not None else None
    if x is None or own is None or own.elem != t or lo.buffer_blocks.get(x) is not lo.block:
        return None
    shared = any(b.ptr == own.ptr and y is not x for y, b in lo.buffers.items())
    if shared or transposed_dimension(lo, v) is not None:
        return None
    return own if apply("scaled-accumulators", what=v.name or "accumulator") else None


def _one_source(lo: Lowering, v: Value) -> Value | None:
    """The carried tile that a chain of additions and multiplications, each used once, begins with."""
    if len(v.uses) != 1:
        return None
    if v in lo.buffers:
        return v if v in lo.carried else None
    if not isinstance(v.op, (AddOp, SubOp, MulOp)) or not lo.lazy(v):
        return None
    found = [_one_source(lo, y) for y in v.op.operands if y.type == v.type]
    return next((x for x in found if x is not None), None)


def casting(lo: Lowering, source: dtype, t: dtype) -> Convert:
    def convert(x: Val) -> Val:
        return (
            Val(t, x.lanes, cast(lo.lanes(x.lanes), lo.text(x, x.lanes), source, t))
            if source != t
            else x
        )

    return convert


def rounded(lo: Lowering, c: Buffer, acc: dtype) -> Buffer:
    """The result in the accumulator's type."""
    buffer = lo.allocate(acc, c.shape)
    change = casting(lo, c.elem, acc)
    each(lo, nest(lo, c.shape), lambda at: to_buffer(lo, buffer, at, change(lo.from_buffer(c, at))))
    buffer.version = lo.new_version()
    return buffer
