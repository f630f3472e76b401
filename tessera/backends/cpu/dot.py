"""Matrix products: which operands are copied and which are used where they lie, and where the sum is kept.

Operands that are plain contiguous loads stay in place (masked ones if their masks turn out to be all true); others are
brought into row-major buffers, fp16 and fp8 widened to fp32 and small integers to int32 on the way. Where the machine
multiplies pairs of bf16, A stays bf16 and B is packed in pairs along k.
"""

from __future__ import annotations

from tessera.backends.cpu.casts import cast
from tessera.backends.cpu.loops import Nest, each, nest, prefix_masks, slope
from tessera.backends.cpu.lowering import Buffer, Lowering, executes, unsupported
from tessera.backends.cpu.memory import to_buffer
from tessera.backends.cpu.microkernel import Either, InPlace, Matrix, Packed, Product, product
from tessera.backends.cpu.plan import (
    contiguous_along,
    contiguous_dimension,
    fill,
    finish_side,
    materialise,
    prepare,
)  # fmt: skip
from tessera.backends.cpu.text import ATTRIBUTES, scalar_type
from tessera.backends.cpu.turn import Convert, gathers, transpose
from tessera.backends.cpu.values import Coord, Point, Val
from tessera.dtypes import bfloat16, dtype, float32, float64, int32
from tessera.ir import Effect, TileType, Value, elem_of, shape_of
from tessera.ops import AddPtrOp, AndOp, BroadcastOp, ConstOp, DotOp, ExpandDimsOp, LoadOp


def compute_type(acc: dtype) -> dtype:
    """The type that products are summed in."""
    if acc.is_floating():
        return float64 if acc is float64 else float32
    return int32


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
    if all(_pairs(lo, link) for link in links):
        _multiply_pairs(lo, links, c, zero)
    else:
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
        terms: list[tuple[Matrix, Matrix, int]] = [
            (x, y, shape_of(op.a.type)[-1])
            for (x, y), op in zip(placed, links, strict=True)
            if x and y
        ]
        condition = _all_inside(lo, [v for op in links for v in (op.a, op.b)])
        if condition == "true":
            product(lo, Product(t, m, n, terms, c.ptr, zero))
            return
        k = lo.em.new_label("")
        lo.em.stmt(f"br i1 {condition}, label %direct{k}, label %copied{k}")
        lo.em.label(f"direct{k}")
        with lo.em.arm():
            product(lo, Product(t, m, n, terms, c.ptr, zero))
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
            pa, pb, pc = (
                offset(lo, x, i, size) for x, size in ((a, m * k), (b, k * n), (c, m * n))
            )
            packed_product(lo, t, (m, n, k), (pa, pb, pc), zero)
            zero = False


# --- bf16 pairs ----------------------------------------------------------------------------------------------
def _pairs(lo: Lowering, op: DotOp) -> bool:
    """Whether the machine's bf16 products serve this dot."""
    if (
        not lo.facts.bf16_dot
        or elem_of(op.a.type) is not bfloat16
        or elem_of(op.b.type) is not bfloat16
    ):
        return False
    shape = shape_of(op.b.type)
    return (
        len(shape) == 2
        and shape[0] % 2 == 0
        and shape[1] % 16 == 0
        and elem_of(op.acc.type) is float32
    )


def _multiply_pairs(lo: Lowering, links: list[DotOp], c: Buffer, zero: bool) -> None:
    m, n = c.shape
    terms: list[tuple[Matrix, Matrix, int]] = []
    for op in links:
        k = shape_of(op.a.type)[-1]
        b = pack_pairs(lo, op, op.b)
        terms.append((_left(lo, op, op.a), Packed(b.ptr, int32, n), k // 2))
    product(lo, Product(float32, m, n, terms, c.ptr, zero, paired=True))


def _left(lo: Lowering, op: DotOp, v: Value) -> Matrix:
    """A in place, or in a bf16 buffer; which of them is decided at run time where a mask is involved."""
    width = shape_of(v.type)[-1] // 2
    placed = _in_place(lo, v, bfloat16)
    if placed is None or not placed.affine:
        return Packed(materialise(lo, v, op).ptr, int32, width)
    placed = InPlace(placed.ptr, int32, True, pairs=True)
    condition = _all_inside(lo, [v])
    if condition == "true":
        return placed
    buffer = lo.allocate(bfloat16, shape_of(v.type))
    with lo.em.branch(condition, negate=True):
        fill(lo, buffer, v)
    lo.temporaries.append(buffer)
    return Either(condition, placed, Packed(buffer.ptr, int32, width))


def pack_pairs(lo: Lowering, op: DotOp, v: Value) -> Buffer:
    """A bf16 tile [k, n] as [k / 2, n] of int32: rows 2i in the low halves, rows 2i+1 in the high ones."""
    prepare(lo, [v], op)
    k, n = shape_of(v.type)
    buffer = lo.allocate(int32, (k // 2, n))

    lanes = 8
    if (
        k % (2 * lanes) == 0
        and n % lanes == 0
        and gathers(lo, v, 1, lanes)
        and not gathers(lo, v, 0, lanes)
    ):
        _pack_turned(lo, buffer, v, lanes)
    else:
        each(lo, nest(lo, (k // 2, n), along=1), lambda at: _pack_rows(lo, buffer, v, at))
    finish_side(lo)
    lo.temporaries.append(buffer)
    return buffer


def _pack_rows(lo: Lowering, buffer: Buffer, v: Value, at: Point) -> None:
    row, column = at.coords
    n = at.lanes
    halves = [lo.text(lo.value(v, Point((row.times(2).shifted(i), column), n)), n) for i in (0, 1)]
    woven = lo.em.shuffle(
        "i16", halves[0], halves[1], n, [k // 2 + n * (k % 2) for k in range(2 * n)]
    )
    pairs = lo.em.op(f"bitcast <{2 * n} x i16> {woven} to <{n} x i32>")
    to_buffer(lo, buffer, at, Val(int32, n, pairs))


def _pack_turned(lo: Lowering, buffer: Buffer, v: Value, n: int) -> None:
    """From memory that is contiguous along k, where pairs are neighbours already: blocks of n pairs x n columns."""
    pairs, columns = buffer.shape

    def body(at: Point) -> None:
        row, column = (c.times(n) for c in at.coords)
        lines: list[str] = []
        k = row.times(2)
        along = Coord(k.base, k.terms, tuple(range(2 * n)), 2 * pairs)
        for j in range(n):
            halves = lo.text(lo.value(v, Point((along, column.shifted(j)), 2 * n)), 2 * n)
            lines.append(lo.em.op(f"bitcast <{2 * n} x i16> {halves} to <{n} x i32>"))
        wide = Coord(column.base, column.terms, tuple(range(n)), columns)
        for i, text in enumerate(transpose(lo, "i32", lines)):
            to_buffer(lo, buffer, Point((row.shifted(i), wide), n), Val(int32, n, text))

    each(lo, Nest((pairs // n, columns // n), (0, 1), (), 1), body, unroll=False)


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
        pair: list[str] = []  # addresses of a and b
        for name, v in (("a", op.a), ("b", op.b)):
            shape = shape_of(v.type)
            key = (*shape, name == "a")
            if key not in buffers:
                buffers[key] = lo.allocate(t, shape)
            fill(lo, buffers[key], v)
            pair.append(buffers[key].ptr)
        packed_product(lo, t, (m, n, shape_of(op.a.type)[-1]), (pair[0], pair[1], c.ptr), zero)
        zero = False
    lo.temporaries += buffers.values()


# --- operands where they lie ----------------------------------------------------------------------------------
def _in_place(lo: Lowering, v: Value, t: dtype) -> InPlace | None:
    """The operand as a load that need not be copied; None when it is none, or not contiguous."""
    op = v.op
    if not isinstance(op, LoadOp) or not lo.lazy(v) or elem_of(v.type) != t or op.volatile:
        return None
    columns = shape_of(v.type)[1]
    lanes = min(columns & -columns, lo.facts.lanes)
    if (
        columns % lo.facts.lanes
        or contiguous_dimension(lo, op.ptr) is not None
        or not contiguous_along(lo, op.ptr, 1, lanes)
    ):
        return None
    prepare(lo, [x for x in (op.ptr, op.mask, op.other) if x is not None], None, loop=[])
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


def _all_inside(lo: Lowering, loads: list[Value]) -> str:
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
    buffer = lo.allocate(t, shape_of(v.type))
    fill(lo, buffer, v, _casting(lo, source, t))
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
    fill(lo, buffer, v, _casting(lo, elem_of(v.type), t))
    finish_side(lo)
    return buffer, False


def _casting(lo: Lowering, source: dtype, t: dtype) -> Convert:
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
    change = _casting(lo, c.elem, acc)
    each(lo, nest(lo, c.shape), lambda at: to_buffer(lo, buffer, at, change(lo.from_buffer(c, at))))
    buffer.version = lo.new_version()
    return buffer
