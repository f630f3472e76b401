"""B of a product in panels: rows of whole vectors, as the microkernels read them, made once for several programs.

    b[k][n]  →  for each panel of w columns:  word[k / group][w]       (a word: `group` neighbours along k)

Programs that follow one another mostly need the same tile of B (those of one column of output tiles; the query tiles
of one head). So panels lie in the thread's scratch memory, in a ring of slots: one for each step of the innermost loop.
Beside each stand the addresses that it was made from, its tags. A program whose tags are the same takes the panels as
they are. That is sound where the addresses follow from the tags (`separable`), no mask hides an element, and nothing
in the launch writes to the array: other arguments must not overlap it, which the launch checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tessera.backends.cpu.aliases import argument_of
from tessera.backends.cpu.casts import cast
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.microkernel import add_bytes
from tessera.backends.cpu.operands import Panel, Panels, all_inside, uniform_along
from tessera.backends.cpu.plan import contiguous_along, finish_side, prepare
from tessera.backends.cpu.text import scalar_type
from tessera.backends.cpu.turn import gathers, transpose
from tessera.backends.cpu.values import Coord, Point
from tessera.dtypes import dtype, int32, int64
from tessera.ir import Op, TileType, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import (
    AddOp,
    AddPtrOp,
    BroadcastOp,
    ConstOp,
    DotOp,
    ExpandDimsOp,
    ForOp,
    HintOp,
    LoadOp,
    SplatOp,
    SubOp,
)  # fmt: skip

RING_BYTES = 2 << 20  # of panels that a thread keeps: about a core's second cache
MOST_SLOTS = 64
MOST_TAGS = 64


@dataclass(frozen=True, slots=True)
class Form:
    """How B is packed: elements become `t`, `group` of them a word; `bias`: column sums are kept, times this."""

    t: dtype
    group: int
    panels: list[Panel]
    bias: int = 0

    @property
    def word(self) -> str:
        return "i32" if self.group > 1 else scalar_type(self.t)

    @property
    def word_bytes(self) -> int:
        return self.group * self.t.storage_bytes


def packed(lo: Lowering, links: list[DotOp], form: Form) -> Panels:
    """B of all dots of a chain, one under the other, in panels."""
    k, n = shape_of(links[0].b.type)
    depth = k // form.group * len(links)
    for op in links:
        prepare(lo, [op.b], op, keep_top=False)
    size = -(-depth * n * form.word_bytes // 64) * 64
    sums = -(-n * 4 // 64) * 64 if form.bias else 0
    tags = tags_of(lo, [op.b for op in links])
    if tags is None or size + sums > RING_BYTES:
        buffers = [lo.allocate(form.t, (size // form.t.storage_bytes,)), lo.allocate(int32, (n,))]
        lo.temporaries += buffers
        target = Panels(buffers[0].ptr, form.word, depth, buffers[1].ptr if form.bias else "")
        _fill(lo, form, links, target, depth)
        finish_side(lo)
        return target
    base, keys = _slot(lo, links[0], size + sums, len(tags))
    bias = lo.em.op(f"getelementptr i8, ptr {base}, i64 {size}") if form.bias else ""
    target = Panels(base, form.word, depth, bias)
    inside = all_inside(lo, [op.b for op in links])
    known = inside
    places = [lo.em.op(f"getelementptr i64, ptr {keys}, i64 {i}") for i in range(len(tags))]
    for place, tag in zip(places, tags, strict=True):
        same = lo.em.op(f"icmp eq i64 {lo.em.here(f'load i64, ptr {place}, align 8')}, {tag}")
        known = lo.em.op(f"and i1 {known}, {same}")
    with lo.em.branch(known, negate=True):
        _fill(lo, form, links, target, depth)
        for i, (place, tag) in enumerate(zip(places, tags, strict=True)):
            kept = tag if i else lo.em.op(f"select i1 {inside}, i64 {tag}, i64 0")
            lo.em.stmt(f"store i64 {kept}, ptr {place}, align 8")
    finish_side(lo)
    return target


# --- what is kept from one program to the next -----------------------------------------------------------------
def _slot(lo: Lowering, op: DotOp, size: int, tags: int) -> tuple[str, str]:
    """(address of the panels, address of their tags) for this step of the innermost loop around."""
    em, state = lo.em, lo.state
    slots = max(1, min(MOST_SLOTS, RING_BYTES // size))
    tag_bytes = -(-tags * 8 // 64) * 64
    first = state.scratch
    state.scratch += slots * (size + tag_bytes)
    where = em.entry_op(f"getelementptr i8, ptr {lo.context}, i64 16")
    base = em.entry_op(f"load ptr, ptr {where}, align 8, !invariant.load !0")
    ring = em.entry_op(f"getelementptr i8, ptr {base}, i64 {first}")
    all_tags = em.entry_op(f"getelementptr i8, ptr {ring}, i64 {slots * size}")
    clear_once(lo, all_tags, slots * tag_bytes)
    loop = _loop_around(op)
    if loop is None or slots == 1:
        return ring, all_tags
    trip = _wide(lo, loop.induction)
    low, step = _wide(lo, loop.lb), _wide(lo, loop.step)
    trip = em.op(f"sdiv i64 {em.op(f'sub i64 {trip}, {low}')}, {step}")
    which = em.op(f"urem i64 {trip}, {slots}")

    def at(base: str, bytes_: int) -> str:
        return em.op(f"getelementptr i8, ptr {base}, i64 {em.op(f'mul i64 {which}, {bytes_}')}")

    return at(ring, size), at(all_tags, tag_bytes)


def clear_once(lo: Lowering, ptr: str, size: int) -> None:
    """Clear scratch memory in a thread's first call of a launch; in a function that is not the kernel, at each call."""
    em = lo.em
    em.declare("void", "llvm.memset.p0.i64", "ptr", "i8", "i64", "i1")
    if not lo.kernel:
        em.at_entry(f"call void @llvm.memset.p0.i64(ptr {ptr}, i8 0, i64 {size}, i1 false)")
        return
    where = em.entry_op(f"getelementptr i8, ptr {lo.context}, i64 40")
    if not lo.clears:
        lo.clears = em.entry_op(f"load i32, ptr {where}, align 8")
        em.at_entry(f"store i32 1, ptr {where}, align 8")
    fresh = em.entry_op(f"icmp eq i32 {lo.clears}, 0")
    count = em.entry_op(f"select i1 {fresh}, i64 {size}, i64 0")
    em.at_entry(f"call void @llvm.memset.p0.i64(ptr {ptr}, i8 0, i64 {count}, i1 false)")


def _wide(lo: Lowering, v: Value) -> str:
    t = elem_of(v.type)
    return cast(lo.lanes(1), lo.scalar_text(v), t, int64)


def _loop_around(op: Op) -> ForOp | None:
    parent = op.parent
    while parent is not None and not isinstance(parent, ForOp):
        parent = parent.parent
    return parent


def tags_of(lo: Lowering, values: list[Value]) -> list[str] | None:
    """i64s that the addresses of all elements follow from; None where they do not, or where the elements may change."""
    found: dict[str, None] = {}
    before: Value | None = None
    for v in values:
        load = v.op
        if not isinstance(load, LoadOp) or not lo.lazy(v) or load.volatile:
            return None
        if not constant_memory(lo, load.ptr) or not separable(load.ptr):
            return None
        if before is not None and apart(before, load.ptr):
            found[_address(lo, load.ptr, 0, 0)] = None
            continue
        mine = _address_tags(lo, load.ptr)
        if mine is None:
            return None
        found.update(dict.fromkeys(mine))
        before = load.ptr
    few = len(found) <= MOST_TAGS
    return list(found) if few and apply("shared-panels", values[0].op) else None


def apart(a: Value, b: Value) -> bool:
    """Whether two pointer tiles differ by one number for all elements, known at run time or earlier."""
    if a is b:
        return True
    x, y = a.op, b.op
    if x is None or y is None or type(x) is not type(y) or a.type != b.type:
        return False
    if isinstance(x, (SplatOp, ConstOp)):
        return True
    if isinstance(x, (AddPtrOp, AddOp, SubOp, BroadcastOp, ExpandDimsOp)):
        return all(apart(p, q) for p, q in zip(x.operands, y.operands, strict=True))
    return False


def _address(lo: Lowering, ptr: Value, dim: int, at: int) -> str:
    """Of the element `at` along `dim` and 0 along all others, as an i64."""
    coords = [Coord(0, (), None, s) for s in shape_of(ptr.type)]
    coords[dim] = Coord(at, (), None, coords[dim].extent)
    lo.memo = {}
    text = lo.text(lo.value(ptr, Point(tuple(coords), 1)), 1)
    lo.memo = {}
    return lo.em.op(f"ptrtoint ptr {text} to i64")


def constant_memory(lo: Lowering, ptr: Value) -> bool:
    """Whether nothing that the kernel writes overlaps the array, on assumptions that the launch checks."""
    state = lo.state
    mine = state.arguments.get(argument_of(ptr))
    if state.overlap or mine is None or state.written is None or mine in state.written:
        return False
    for other in state.written:
        state.assumed_disjoint[min(mine, other), max(mine, other)] = 0
    return True


def separable(v: Value) -> bool:
    """Whether element (i, j) of a pointer or index tile is f(i) + g(j)."""
    if not isinstance(v.type, TileType) or sum(s > 1 for s in shape_of(v.type)) <= 1:
        return True
    op = v.op
    if isinstance(op, (AddPtrOp, AddOp, SubOp)):
        return all(separable(x) for x in op.operands)
    if isinstance(op, (BroadcastOp, ExpandDimsOp, HintOp)):
        return separable(op.operands[0])
    return isinstance(op, (ConstOp, SplatOp))


def _address_tags(lo: Lowering, ptr: Value) -> list[str] | None:
    """The first address of each uniform group along each dimension, and the second where only that tells the distance
    in the groups."""
    found: list[str] = []
    for d, size in enumerate(shape_of(ptr.type)):
        widths = [w for w in (size, 64, 32, 16, 8) if w <= size and size % w == 0]
        lanes = next(
            (w for w in widths if all(uniform_along(lo, ptr, d, i, w) for i in range(0, size, w))),
            0,
        )
        if not lanes:
            return None
        found += [_address(lo, ptr, d, i) for i in range(0, size, lanes)]
        if size > 1 and not contiguous_along(lo, ptr, d, lanes):
            found += [_address(lo, ptr, d, i + 1) for i in range(0, size, lanes)]
    return found


# --- packing ---------------------------------------------------------------------------------------------------
def fill_panels(lo: Lowering, form: Form, links: list[DotOp], target: Panels) -> None:
    """B of `links`, one under the other."""
    k, _ = shape_of(links[0].b.type)
    lanes = min(lo.facts.lanes, form.panels[0][0])
    whole = all(width == lanes for width, *_ in form.panels)
    for i, op in enumerate(links):
        part = replace(target, first=target.first.shifted(i * (k // form.group)))
        read = _reader(lo, form, op.b)
        if (
            whole
            and form.word_bytes == 4
            and k % (form.group * lanes) == 0
            and gathers(lo, op.b, 1, lanes)
            and not gathers(lo, op.b, 0, lanes * form.group)
        ):
            _fill_turned(lo, form, k // form.group, part, read, lanes)
        else:
            _fill_rows(lo, form, k // form.group, part, read)


Read = Callable[[Point], str]


def _reader(lo: Lowering, form: Form, v: Value) -> Read:
    """The element(s) of B at a point, in the type of the product."""
    source = elem_of(v.type)

    def read(at: Point) -> str:
        lo.memo = {}
        return cast(lo.lanes(at.lanes), lo.text(lo.value(v, at), at.lanes), source, form.t)

    return read


def _fill_rows(lo: Lowering, form: Form, depth: int, target: Panels, read: Read) -> None:
    """Row by row of words; neighbours along k are woven together."""
    em = lo.em
    with em.loop(0, depth, 1) as i:
        k = lo.index(i, 1, depth)
        for lanes, vectors, first, count in form.panels:
            width = lanes * vectors
            with em.loop(0, count, 1) as p:
                left = lo.index(p, 1, count).times(width).plus(Coord(first, (), None, first + 1))
                row = target.row(lo, k, left, width)
                for j in range(vectors):
                    c = left.shifted(j * lanes)
                    wide = Coord(
                        c.base,
                        c.terms,
                        tuple(range(lanes)) if lanes > 1 else None,
                        c.extent + lanes,
                    )
                    rows = [k.times(form.group).shifted(u) for u in range(form.group)]
                    parts = [read(Point((r, wide), lanes)) for r in rows]
                    _put(lo, form, _woven(lo, form, parts, lanes), row, j * lanes, lanes)
    lo.memo = {}


def _woven(lo: Lowering, form: Form, parts: list[str], lanes: int) -> str:
    """`group` rows of elements as one row of words."""
    em, bits = lo.em, form.t.storage_bits
    while len(parts) > 1:
        order = [k // 2 + lanes * (k % 2) for k in range(2 * lanes)]
        half = len(parts) // 2
        joined = [
            em.shuffle(f"i{bits}", a, b, lanes, order)
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        parts = [
            em.op(f"bitcast <{2 * lanes} x i{bits}> {x} to <{lanes} x i{2 * bits}>") for x in joined
        ]
        bits *= 2
        assert len(parts) == half
    return parts[0]


def _fill_turned(lo: Lowering, form: Form, depth: int, target: Panels, read: Read, n: int) -> None:
    """From memory that is contiguous along k, where the elements of a word are neighbours already: blocks of n x n."""
    em, g = lo.em, form.group
    with em.loop(0, depth // n, 1) as i:
        row = lo.index(i, 1, depth // n).times(n)
        k = row.times(g)
        along = Coord(k.base, k.terms, tuple(range(n * g)), depth * g)
        for lanes, vectors, first, count in form.panels:
            width = lanes * vectors
            with em.loop(0, count, 1) as p:
                left = lo.index(p, 1, count).times(width).plus(Coord(first, (), None, first + 1))
                with em.loop(0, vectors, 1) as j:
                    inner = lo.index(j, 1, vectors).times(lanes)
                    column = left.plus(inner)
                    lines: list[str] = []
                    for u in range(n):
                        text = read(Point((along, column.shifted(u)), n * g))
                        if g > 1:
                            source = f"<{n * g} x i{form.t.storage_bits}>"
                            text = em.op(f"bitcast {source} {text} to <{n} x i32>")
                        lines.append(text)
                    for u, text in enumerate(transpose(lo, form.word, lines)):
                        at = target.row(lo, row.shifted(u), left, width)
                        at = em.op(
                            f"getelementptr {form.word}, ptr {at}, i64 {lo.coord_text(inner)}"
                        )
                        _put(lo, form, text, at, 0, n)
    lo.memo = {}


def _put(lo: Lowering, form: Form, text: str, row: str, offset: int, lanes: int) -> None:
    em, ty = lo.em, f"<{lanes} x {form.word}>" if lanes > 1 else form.word
    where = em.op(f"getelementptr {form.word}, ptr {row}, i64 {offset}") if offset else row
    em.stmt(f"store {ty} {text}, ptr {where}, align {form.word_bytes}")


def _fill(lo: Lowering, form: Form, links: list[DotOp], target: Panels, depth: int) -> None:
    fill_panels(lo, form, links, target)
    if form.bias:
        fill_bias(lo, form, target, str(depth))


def fill_bias(lo: Lowering, form: Form, target: Panels, depth: str) -> None:
    """bias[n] = form.bias * Σ over `depth` rows, for products of bytes: the sum of a word by the product's own
    instruction."""
    em = lo.em
    for lanes, vectors, first, count in form.panels:
        width, ty = lanes * vectors, f"<{lanes} x i32>"
        with em.loop(0, count, 1) as p:
            left = lo.index(p, 1, count).times(width).plus(Coord(first, (), None, first + 1))
            cells = [em.alloca(ty) for _ in range(vectors)]
            for cell in cells:
                em.stmt(f"store {ty} zeroinitializer, ptr {cell}")
            with em.counted("0", depth, "1", always=True) as i:
                row = target.row(lo, lo.index(i, 1, 1 << 31), left, width)
                for j, cell in enumerate(cells):
                    where = em.op(f"getelementptr i32, ptr {row}, i64 {j * lanes}")
                    words = em.here(f"load {ty}, ptr {where}, align 4")
                    old = em.here(f"load {ty}, ptr {cell}")
                    weights = em.splat("i32", str(0x01010101 * form.bias), lanes)
                    new = add_bytes(lo, lanes, weights, words, old)
                    em.stmt(f"store {ty} {new}, ptr {cell}")
            column = lo.coord_text(left)
            for j, cell in enumerate(cells):
                where = em.op(f"getelementptr i32, ptr {target.bias}, i64 {column}")
                where = em.op(f"getelementptr i32, ptr {where}, i64 {j * lanes}")
                total = em.here(f"load {ty}, ptr {cell}")
                em.stmt(f"store {ty} {total}, ptr {where}, align 4")
