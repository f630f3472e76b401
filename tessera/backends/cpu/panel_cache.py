"""Keeps packed panels of B (panels.py) for later programs that need the same tile of B.

Programs that follow one another mostly need the same tile of B (those of one column of output tiles; the query tiles of
one head). So panels are in the thread's scratch memory, in a ring of slots, one for each step of the innermost loop.
Beside each slot are its tags, the addresses that it was packed from. A program whose tags are the same uses the panels
without packing them again. That is sound where the addresses of all elements follow from the tags (`separable`), no
mask is false anywhere, and nothing in the launch writes to the array: other arguments must not overlap it, which the
launch checks.
"""

from __future__ import annotations

from tessera.backends.cpu.fusion import contiguous_along, finish_memo_buffers, prepare
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.operands import Panels, all_inside, uniform_along
from tessera.backends.cpu.panels import Form, fill_with_bias, materialise_reshapes
from tessera.backends.cpu.values import Coord, Point
from tessera.backends.elements.casts import cast
from tessera.dtypes import int32, int64
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

RING_BYTES = 2 << 20  # of panels that a thread keeps: about a core's L2 cache
MOST_SLOTS = 64
MOST_TAGS = 64


def packed_panels(lo: Lowering, links: list[DotOp], form: Form) -> Panels:
    """The panels of B of all dots of a chain, one below the other."""
    k, n = shape_of(links[0].b.type)
    depth = k // form.k_pack * len(links)
    for op in links:
        materialise_reshapes(lo, op, form)
        prepare(lo, [op.b], op, keep_top=False)
    size = -(-depth * n * form.packed_bytes // 64) * 64
    sums = -(-n * 4 // 64) * 64 if form.bias else 0
    tags = tags_of(lo, [op.b for op in links])
    if tags is None or size + sums > RING_BYTES:
        buffers = [lo.allocate(form.t, (size // form.t.storage_bytes,)), lo.allocate(int32, (n,))]
        lo.temporaries += buffers
        target = Panels(
            buffers[0].ptr, form.packed_type, depth, buffers[1].ptr if form.bias else ""
        )
        fill_with_bias(lo, form, links, target, depth)
        finish_memo_buffers(lo)
        return target
    base, keys = _slot(lo, links[0], size + sums, len(tags))
    bias = lo.em.op(f"getelementptr i8, ptr {base}, i64 {size}") if form.bias else ""
    target = Panels(base, form.packed_type, depth, bias)
    inside = all_inside(lo, [op.b for op in links])
    known = inside
    places = [lo.em.op(f"getelementptr i64, ptr {keys}, i64 {i}") for i in range(len(tags))]
    for place, tag in zip(places, tags, strict=True):
        same = lo.em.op(f"icmp eq i64 {lo.em.here(f'load i64, ptr {place}, align 8')}, {tag}")
        known = lo.em.op(f"and i1 {known}, {same}")
    with lo.em.branch(known, negate=True):
        fill_with_bias(lo, form, links, target, depth)
        for i, (place, tag) in enumerate(zip(places, tags, strict=True)):
            stored_tag = tag if i else lo.em.op(f"select i1 {inside}, i64 {tag}, i64 0")
            lo.em.stmt(f"store i64 {stored_tag}, ptr {place}, align 8")
    finish_memo_buffers(lo)
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
    """Clear scratch memory in a thread's first call of a launch; in a function that is not the kernel, in each call."""
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
    """The i64s from which the addresses of all elements follow; None where there are none, or elements may change."""
    found: dict[str, None] = {}
    before: Value | None = None
    for v in values:
        load = v.op
        if not isinstance(load, LoadOp) or not lo.lazy(v) or load.volatile:
            return None
        if not constant_memory(lo, load.ptr) or not separable(load.ptr):
            return None
        if before is not None and at_uniform_distance(before, load.ptr):
            found[_address(lo, load.ptr, 0, 0)] = None
            continue
        mine = _address_tags(lo, load.ptr)
        if mine is None:
            return None
        found.update(dict.fromkeys(mine))
        before = load.ptr
    few = len(found) <= MOST_TAGS
    return list(found) if few and apply("shared-panels", values[0].op) else None


def at_uniform_distance(a: Value, b: Value) -> bool:
    """Whether two pointer tiles differ by the same number in all elements, known at run time or earlier."""
    if a is b:
        return True
    x, y = a.op, b.op
    if x is None or y is None or type(x) is not type(y) or a.type != b.type:
        return False
    if isinstance(x, (SplatOp, ConstOp)):
        return True
    if isinstance(x, (AddPtrOp, AddOp, SubOp, BroadcastOp, ExpandDimsOp)):
        return all(at_uniform_distance(p, q) for p, q in zip(x.operands, y.operands, strict=True))
    return False


def _address(lo: Lowering, ptr: Value, dim: int, at: int) -> str:
    """The address, an i64, of the element at index `at` along `dim` and 0 along all other dimensions."""
    coords = [Coord(0, (), None, s) for s in shape_of(ptr.type)]
    coords[dim] = Coord(at, (), None, coords[dim].extent)
    lo.memo = {}
    text = lo.text(lo.value(ptr, Point(tuple(coords), 1)), 1)
    lo.memo = {}
    return lo.em.op(f"ptrtoint ptr {text} to i64")


def constant_memory(lo: Lowering, ptr: Value) -> bool:
    """Whether nothing that the kernel writes overlaps the array, on assumptions that the launch checks."""
    state = lo.state
    mine = state.position(ptr)
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
