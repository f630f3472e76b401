"""Lowers ops with effects on memory: stores, histograms."""

from __future__ import annotations

from math import prod
from typing import Any

from tessera.analysis.provenance import argument_of
from tessera.backends.cpu import remarks
from tessera.backends.cpu.chains import cost
from tessera.backends.cpu.fusion import (
    any_start,
    contiguous_along,
    contiguous_dimension,
    flush,
    prepare,
    run,
)
from tessera.backends.cpu.loops import UNROLL, Nest, Stream, each, nest, single_nest
from tessera.backends.cpu.lowering import Lowering, executes
from tessera.backends.cpu.memory import dummy, store_at
from tessera.backends.cpu.row_prefetch import LINE, address, next_tiles
from tessera.backends.cpu.values import Coord, Point, Val
from tessera.backends.elements.casts import cast
from tessera.dtypes import int32, int64
from tessera.ir import TileType, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import memory, tile


# --- stores -------------------------------------------------------------------------------------------------
@executes(memory.StoreOp)
def _store(lo: Lowering, op: memory.StoreOp) -> None:
    if op in lo.joined:
        lo.joined[op]()
        return
    values = [v for v in (op.ptr, op.value, op.mask) if v is not None]
    elem = elem_of(op.value.type)
    if not isinstance(op.ptr.type, TileType):
        flush(lo, op)
        mask = lo.scalar(op.mask) if op.mask is not None else None
        store_at(lo, lo.scalar(op.ptr), elem, lo.scalar(op.value), mask, 1)
        lo.memory_changed()
        return
    flush(lo, op, values, [op.ptr])
    prepare(lo, values, op)
    lanes = _lanes(lo, op)
    plan = nest(lo, shape_of(op.ptr.type), contiguous_dimension(lo, op.ptr), lanes)

    def body(at: Point) -> None:
        mask = lo.value(op.mask, at) if op.mask is not None else None
        address, x = lo.value(op.ptr, at), lo.value(op.value, at)
        store_at(lo, address, elem, x, mask, at.lanes, past=lo.streaming)

    head = _head(lo, op, plan, values)
    stream = _stream(lo, op, plan, bool(head))
    run(lo, plan, body, values, stream, head, lo.strips.pop(op, None), op.mask)
    if op.mask is not None and len(plan.group) == 1:
        remarks.tested_each_time(lo, op, op.mask, plan.group[0])
    lo.memory_changed()


def _lanes(lo: Lowering, op: memory.StoreOp) -> int:
    """Return the lanes of a store's loop, 0 for those of a register."""
    if not lo.elementwise or elem_of(op.value.type).bits != 32:
        return 0
    price = cost(lo, op.value)
    if price >= HEAVY:
        return lo.facts.function_lanes
    return lo.facts.stream_lanes if price <= LIGHT else 0


def _head(lo: Lowering, op: Any, plan: Nest, values: list[Value]) -> str:
    """Return an i64: how many elements of a long row to store before its vectors are aligned to their size; "" if none
    need to be. Rows whose lengths are not multiples of a cache line may begin anywhere, and each of their vectors would
    touch two lines."""
    size = elem_of(op.value.type).storage_bytes
    long = lo.straight and plan.lanes > 1 and plan.vectors > UNROLL
    if not long or plan.shape != (plan.group_size,) or not any_start(lo, values, plan.shape):
        return ""
    if not contiguous_along(lo, op.ptr, 0, plan.lanes) or not apply("aligned-stores", op):
        return ""
    before = lo.em.op(f"sub i64 0, {address(lo, op.ptr, [Coord()])}")
    past = lo.em.op(f"and i64 {before}, {plan.lanes * size - 1}")
    return lo.em.op(f"lshr i64 {past}, {size.bit_length() - 1}")


HEAVY = 10.0  # cost from which instructions of a loop wait for each other: that of an exponential
LIGHT = 4.0  # cost up to which a loop is bound by memory even for data in the caches (tools/fit)
# Bytes of the shortest rows of tiles that are stored past the caches: on a Zen 3 those of one line took up to 1.7 times
# as long as in the caches.
SHORT = 2 * LINE
STREAM_BYTES = 24 << 20  # bytes written by a launch, from which stores bypass caches (tools/fit)


def _stream(lo: Lowering, op: memory.StoreOp, plan: Nest, shifted: bool) -> Stream | None:
    """Return when a store is part of a stream much larger than the caches, to memory that is not read; None if that is
    not known to help. `shifted`: vectors start where the loop's head ends. Not for kernels with loops, which may read
    what they wrote."""
    size = elem_of(op.value.type).storage_bytes
    target = argument_of(op.ptr)
    loads = dict.fromkeys(argument_of(ptr) for ptr in lo.loaded)
    if (
        not lo.straight
        or len(plan.group) != 1
        or plan.vectors <= UNROLL
        or target in loads
        or (plan.outer and not _whole_lines(lo, op, plan))
        or not apply("streaming-stores", op)
        or (plan.outer and not apply("streaming-tiles", op))
    ):
        return None
    em = lo.em
    large = _exceeds_caches(lo, plan, size)
    for base in loads:
        if base is not None and target is not None:
            other = em.op(f"icmp ne ptr {lo.scalar_text(base)}, {lo.scalar_text(target)}")
            large = em.op(f"and i1 {large}, {other}")
    vector = plan.lanes * size
    unit = max(LINE, vector) if plan.outer else size if shifted else vector

    def aligned(address: str, also: str) -> str:
        low = em.op(f"and i64 {address}, {unit - 1}")
        return em.op(f"and i1 {also}, {em.op(f'icmp eq i64 {low}, 0')}")

    if not plan.outer:
        return Stream(lambda row: aligned(address(lo, op.ptr, row), large))
    large = aligned(_first_rows(lo, op.ptr, plan), large)
    ahead = next_tiles(lo, op.value, plan) if apply("tile-prefetch", op) else None
    # Rows may lie anywhere: only those in even distances are known to be aligned like the first ones.
    return Stream(
        lambda row: aligned(address(lo, op.ptr, row), large), max(1, LINE // vector), ahead
    )


def _first_rows(lo: Lowering, ptr: Value, plan: Nest) -> str:
    """Return an i64: the bits of the addresses at which the first two rows along each dimension begin. If rows that
    begin at a cache line are next to others, they share lines with them, and the caches hold these anyway."""
    origin = [Coord()] * len(plan.shape)
    bits = address(lo, ptr, origin)
    for d in plan.outer:
        if plan.shape[d] > 1:
            second = [Coord(1, (), None, 2) if k == d else c for k, c in enumerate(origin)]
            bits = lo.em.op(f"or i64 {bits}, {address(lo, ptr, second)}")
    return bits


def _exceeds_caches(lo: Lowering, plan: Nest, size: int) -> str:
    """Return an i1: whether all programs together store much more than the caches hold; `size`: bytes of an element."""
    count = "1"
    for g in lo.sizes:
        wide = lo.em.op(f"zext i32 {lo.text(g, 1)} to i64")
        count = wide if count == "1" else lo.em.op(f"mul i64 {count}, {wide}")
    return lo.em.op(f"icmp uge i64 {count}, {STREAM_BYTES // (prod(plan.shape) * size)}")


def _whole_lines(lo: Lowering, op: memory.StoreOp, plan: Nest) -> bool:
    """Whether each row of a tile fills some cache lines, if it begins at one: a line of which a part is missing when it
    leaves the buffers of stores is read, changed and written again."""
    row = plan.group_size * elem_of(op.value.type).storage_bytes
    return (
        row % LINE == 0 and row >= SHORT and contiguous_along(lo, op.ptr, plan.group[0], plan.lanes)
    )


# --- histogram ----------------------------------------------------------------------------------------------
@executes(tile.HistogramOp)
def _histogram(lo: Lowering, op: Any) -> None:
    values = [v for v in (op.x, op.mask) if v is not None]
    prepare(lo, values, op)
    out = lo.allocate(int32, (op.bins,))
    each(lo, nest(lo, (op.bins,)), lambda at: lo.to_buffer(out, at, Val(int32, 1, "0")))
    t, em = elem_of(op.x.type), lo.em

    def body(at: Point) -> None:
        x = cast(lo.lanes(1), lo.text(lo.value(op.x, at), 1), t, int64)
        ok = em.op(f"icmp ult i64 {x}, {op.bins}")
        if op.mask is not None:
            ok = em.op(f"and i1 {ok}, {lo.text(lo.value(op.mask, at), 1)}")
        where = em.op(f"getelementptr i32, ptr {out.ptr}, i64 {x}")
        where = em.op(f"select i1 {ok}, ptr {where}, ptr {dummy(lo)}")
        old = em.here(f"load i32, ptr {where}, align 4")
        em.stmt(f"store i32 {em.here(f'add i32 {old}, 1')}, ptr {where}, align 4")

    run(lo, single_nest(shape_of(op.x.type)), body, values)
    out.version = lo.new_version()
    lo.keep(op.result, out)
