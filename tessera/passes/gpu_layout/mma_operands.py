"""Places operands of matrix instructions in shared memory: finds their source, chooses their order and swizzle."""

from __future__ import annotations

from typing import Any

from tessera.ir import Builder, Op, SharedType, TileType, Value, shape_of
from tessera.layout import (
    LinearLayout,
    bank_conflicts,
    ldmatrix_plan,
    max_vector,
    offset_map,
    shared_swizzled,
    widest_swizzle,
)  # fmt: skip
from tessera.ops import (
    BroadcastOp,
    LocalAllocOp,
    LocalTransOp,
    Loop,
    ReshapeOp,
    TileLoad,
    TransOp,
)  # fmt: skip
from tessera.ops.arith import Elementwise

Orders = list[tuple[int, ...]]
FAR = 32  # values that are looked at for the load that an operand is computed from


def source_of(v: Value) -> tuple[Value, Orders]:
    """Return the value of which `v` is a transpose, and the permutations between them, outermost first."""
    orders: Orders = []
    while isinstance(v.op, TransOp):
        orders.append(v.op.order)
        v = v.op.x
    return v, orders


def shared_view(source: Value, orders: Orders, layout: LinearLayout, exact: bool) -> Value:
    """Return a view of shared memory that is filled right behind the op of a tile: one buffer for all MMAs that read
    it, in the layout that the first one chose (if `exact`, in `layout`); transposed by `orders` (outermost first)."""
    t: Any = source.type
    found = [u for u in source.users() if isinstance(u, LocalAllocOp)]
    found = [u for u in found if u.parent is owner(source).parent]
    if found := [u for u in found if not exact or u.result.type.layout == layout]:
        view = found[0].result
    else:
        shared = SharedType(t.shape, t.elem, layout)
        alloc = LocalAllocOp(source, results=[shared], names=[source.name])
        view = Builder.after_op(owner(source)).emit(alloc)
    return transposed(view, orders)


def transposed(view: Value, orders: Orders) -> Value:
    """Return the view permuted by `orders`, outermost first."""
    after = Builder.after_op(owner(view))
    for order in reversed(orders):
        t: Any = view.type
        shape = tuple([t.shape[i] for i in order])
        permuted = SharedType(shape, t.elem, t.layout.trans(order))
        view = after.emit(LocalTransOp(view, order=order, results=[permuted]))
    return view


def drop_unused(v: Value) -> None:
    """Erase what only this dot used, so that a load only feeds shared memory."""
    op = v.op
    if not isinstance(op, TransOp | Elementwise) or any(r.uses for r in op.results):
        return
    operands = dict.fromkeys(op.operands)
    op.erase()
    for x in operands:
        drop_unused(x)


def owner(v: Value) -> Op:
    assert v.op is not None
    return v.op


def loop_between(inner: Op, outer: Op) -> Op | None:
    """Return a loop around `inner` that does not contain `outer`."""
    return next(
        (x for x in inner.ancestors() if isinstance(x, Loop) and not outer.is_inside(x)), None
    )


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def memory_order(op: TileLoad) -> tuple[int, ...]:
    """Return the dimensions of a load, the one contiguous in memory first, as its coalesced layout shows: neighbours
    are in a thread, else in lanes. Registers for what lanes and warps do not cover are no neighbours."""
    layout: LinearLayout | None = op.attrs.get("layout")
    rank = len(op.result.type.shape)
    order = list(reversed(range(rank)))
    if layout is not None:
        bases = [b for b in (*layout.bases("register"), *layout.bases("lane")) if any(b)]
        near = next((b for b in bases if max(b) == 1), bases[0] if bases else None)
        if near is not None:
            first = next(d for d, c in enumerate(near) if c)
            order.remove(first)
            return (first, *order)
    return tuple(order)


def computed_order(v: Value) -> tuple[int, ...] | None:
    """Return the dimensions of a tile in the order in which the load lies in memory that it is computed from element by
    element: a weight that the loop widens, say; along runs of copies of what is loaded first. None if there is no such
    load."""
    seen, work = set[Value](), [(v, tuple(range(len(shape_of(v.type)))))]
    while work and len(seen) < FAR:
        u, places = work.pop(0)  # the dimensions of `v` that those of `u` are
        if u in seen or u.op is None:
            continue
        seen.add(u)
        if isinstance(u.op, TileLoad):
            return tuple([places[d] for d in memory_order(u.op)])
        if isinstance(u.op, TransOp):
            work.append((u.op.x, tuple([places[u.op.order.index(d)] for d in range(len(places))])))
        elif isinstance(u.op, ReshapeOp) and (dim := _copied_along(u.op)) is not None:
            return (places[dim], *[d for d in places if d != places[dim]])
        elif isinstance(u.op, Elementwise):
            same = [x for x in u.op.operands if shape_of(x.type) == shape_of(u.type)]
            work += [(x, places) for x in same]
    return None


def _copied_along(op: ReshapeOp) -> int | None:
    """Return the dimension along which a reshape of a broadcast has runs of copies, which a thread holds together."""
    wide, result = op.operands[0], tuple(shape_of(op.result.type))
    if not isinstance(wide.op, BroadcastOp):
        return None
    single, shape = shape_of(wide.op.operands[0].type), tuple(shape_of(wide.type))
    for dim in range(len(shape) - 1):
        merged = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
        if merged == result and single[dim + 1] == 1 < shape[dim + 1]:
            return dim
    return None


def shared_layout(
    t: TileType, order: tuple[int, ...], reader: LinearLayout, rotatable: bool = True
) -> LinearLayout:
    """Return a layout of rows along order[0] in the widest hardware swizzle, which ldmatrix reads without bank
    conflicts, with and without .trans. For readers that ldmatrix cannot serve, the swizzle may be rotated by one chunk
    (if `rotatable`), so that lanes along both dimensions access different banks."""
    bits = t.elem.storage_bits
    width = widest_swizzle(t.shape, order, bits)
    plain = shared_swizzled(t.shape, order, bits, width)
    phases = {128: 3, 64: 2}.get(width, 0)
    if not (phases and rotatable) or ldmatrix_plan(reader, plain, bits) is not None:
        return plain
    rotated = _rotated(plain, 128 // bits, phases)
    return min(
        (plain, rotated),
        key=lambda c: bank_conflicts(reader, c, bits, max_vector(offset_map(reader, c), bits)),
    )


def _rotated(layout: LinearLayout, chunk_elements: int, phases: int) -> LinearLayout:
    """Add row bit i to bit i + 1 (of `phases`, cyclically) of the 16-byte chunk's number instead of to bit i."""
    columns = list(layout.columns("offset"))
    chunk = chunk_elements.bit_length() - 1
    for i in range(phases):
        if chunk + 3 + i < len(columns):
            columns[chunk + 3 + i] ^= columns[chunk + i] ^ columns[chunk + (i + 1) % phases]
    return layout.map_columns("offset", columns)
