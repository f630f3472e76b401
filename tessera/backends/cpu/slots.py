"""Holds the values that control flow carries: scalars in stack slots, which sroa turns into phis, tiles in buffers."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.cpu.fusion import materialise, prepare, repeated
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.loops import each, nest
from tessera.backends.cpu.lowering import Buffer, Lowering, make
from tessera.backends.cpu.values import Point, Val
from tessera.dtypes import dtype, pointer_type
from tessera.ir import Block, Op, TileType, Type, Value, elem_of, shape_of

Slot = str | Buffer  # address of a scalar, or a tile's buffer


def new_slot(lo: Lowering, t: Type) -> Slot:
    if isinstance(t, TileType):
        return lo.allocate(t.elem, t.shape)
    assert isinstance(t, (dtype, pointer_type)), f"a value of type {t} in control flow"
    return lo.em.alloca(scalar_type(t), align=8)


def read_slot(lo: Lowering, v: Value, slot: Slot, block: Block | None) -> None:
    """Make the content of a slot the value of `v`."""
    if isinstance(slot, Buffer):
        slot.version = lo.new_version()
        lo.buffers[v] = slot
        lo.buffer_blocks[v] = block
    else:
        lo.scalars[v] = make(v.type, 1, lo.em.here(f"load {scalar_type(v.type)}, ptr {slot}"))


def write_slots(lo: Lowering, op: Op, values: Sequence[Value], slots: Sequence[Slot]) -> None:
    """Write all values to their slots; they may be computed from the old contents of the slots."""
    stores: list[str] = []
    for v, slot in zip(values, slots, strict=True):
        if not isinstance(slot, Buffer):
            stores.append(f"store {scalar_type(v.type)} {lo.scalar_text(v)}, ptr {slot}")
    tiles: list[tuple[Value, Buffer]] = []
    for v, slot in zip(values, slots, strict=True):
        if isinstance(slot, Buffer):
            own = lo.buffers.get(v)
            if own is None or own.ptr != slot.ptr:
                tiles.append((v, slot))
    if tiles:
        _write_tiles(lo, op, tiles)
    for text in stores:
        lo.em.stmt(text)


def _write_tiles(lo: Lowering, op: Op, tiles: list[tuple[Value, Buffer]]) -> None:
    prepare(lo, [v for v, _ in tiles], op)
    finish_unused_memo_buffers(lo)
    targets = {slot.ptr: slot.shape for _, slot in tiles}
    for v, _slot in tiles:
        if _overlaps(lo, v, targets):
            lo.buffers[v] = _copy(lo, v, op)
    groups: dict[tuple[int, ...], list[tuple[Value, Buffer]]] = {}
    for v, slot in tiles:
        groups.setdefault(slot.shape, []).append((v, slot))
    for shape, members in groups.items():
        _write_group(lo, shape, members)


def _write_group(lo: Lowering, shape: tuple[int, ...], members: list[tuple[Value, Buffer]]) -> None:
    def body(at: Point) -> None:
        computed: list[tuple[Val, Buffer]] = [(lo.value(v, at), slot) for v, slot in members]
        for x, slot in computed:
            lo.to_buffer(slot, at, x)

    each(lo, repeated(lo, nest(lo, shape), [v for v, _ in members]), body)
    for _, slot in members:
        slot.version = lo.new_version()


def finish_unused_memo_buffers(lo: Lowering) -> None:
    """Materialise at once what `prepare` chose to memoise: the loop that writes carried values memoises nothing."""
    for v in lo.memo_buffers:
        materialise_now(lo, v)
    lo.memo_buffers = {}


def materialise_now(lo: Lowering, v: Value) -> None:
    lo.memo_buffers, saved = {}, lo.memo_buffers
    materialise(lo, v)
    lo.memo_buffers = saved


def _copy(lo: Lowering, v: Value, op: Op) -> Buffer:
    """Return a copy of `v` in a buffer of its own."""
    lo.buffers.pop(v, None) if v.op is not None and type(v.op) in lo.evaluators else None
    buffer = lo.allocate(elem_of(v.type), shape_of(v.type))
    each(lo, nest(lo, buffer.shape), lambda at: lo.to_buffer(buffer, at, lo.value(v, at)))
    buffer.version = lo.new_version()
    lo.temporaries.append(buffer)
    return buffer


def _overlaps(lo: Lowering, v: Value, targets: dict[str, tuple[int, ...]]) -> bool:
    """Whether computing `v` reads one of the targets at indices other than its own, or in a loop of another shape."""
    shape = shape_of(v.type)

    def visit(x: Value, direct: bool) -> bool:
        buffer = lo.buffers.get(x)
        if buffer is not None:
            return buffer.ptr in targets and not (direct and buffer.shape == shape)
        if not lo.lazy(x):
            return False
        assert x.op is not None
        keeps = direct and x.op.opcode not in _MAPS
        return any(visit(y, keeps) for y in x.op.operands)

    return visit(v, True)


_MAPS = ("broadcast", "expand_dims", "reshape", "trans", "join", "split", "gather")
