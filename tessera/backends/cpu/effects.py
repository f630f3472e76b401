"""Lowers ops with effects on memory: stores, descriptors, histograms."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tessera.analysis.provenance import argument_of
from tessera.backends.cpu import remarks
from tessera.backends.cpu.affine import constant
from tessera.backends.cpu.atomics import rmw
from tessera.backends.cpu.chains import cost
from tessera.backends.cpu.fusion import (
    any_start,
    contiguous_along,
    contiguous_dimension,
    finish_memo_buffers,
    flush,
    prepare,
    run,
)
from tessera.backends.cpu.lazy_ops import lane_by_lane
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.loops import UNROLL, Nest, Stream, each, nest, scalar_nest, single_nest
from tessera.backends.cpu.lowering import Lowering, evaluates, executes, make
from tessera.backends.cpu.memory import dummy, load_at, store_at
from tessera.backends.cpu.row_prefetch import LINE, address, next_tiles
from tessera.backends.cpu.values import Coord, Pattern, Point, Val
from tessera.backends.elements.casts import cast
from tessera.dtypes import int1, int32, int64, pointer_type
from tessera.ir import ElementType, TileType, Value, elem_of, shape_of
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


# --- descriptors --------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Descriptor:
    """A strided array: address, extents and strides as i64 texts (in elements); `nans`: i1, whether elements outside
    are NaN rather than zero."""

    base: Val
    shape: list[str]
    strides: list[str]
    nans: str


@executes(memory.MakeDescriptorOp)
def _make_descriptor(lo: Lowering, op: Any) -> None:
    def wide(v: Value) -> str:
        return cast(lo.lanes(1), lo.scalar_text(v), v.type, int64)

    shape, strides = [wide(v) for v in op.shape], [wide(v) for v in op.strides]
    strides[-1] = "1"
    nans = "true" if op.padding == "nan" else "false"
    base = make(op.base.type, 1, lo.scalar_text(op.base))
    lo.descriptors[op.result] = Descriptor(base, shape, strides, nans)


def descriptor_address(lo: Lowering, op: Any, at: Point) -> tuple[Val, Val | None]:
    """Return (address, mask) of elements of a block."""
    d: Descriptor = lo.descriptors[op.desc]
    em, elem = lo.em, op.desc.type.elem
    terms: list[str] = []
    pattern: Pattern | None = None
    masks: list[Val] = []
    for c, offset, extent, stride in zip(at.coords, op.offsets, d.shape, d.strides, strict=True):
        start = cast(lo.lanes(1), lo.scalar_text(offset), offset.type, int64)
        index = em.op(f"add nsw i64 {start}, {lo.coord_text(c)}")
        terms.append(index if stride == "1" else em.op(f"mul nsw i64 {index}, {stride}"))
        x = lo.lanes(at.lanes if c.pattern is not None else 1)
        lanes = Val(int64, x.n, "", True, index, (), c.pattern)
        # One unsigned comparison checks both bounds.
        masks.append(
            make(
                int1,
                x.n,
                x.cmp("icmp ult", "i64", lo.text(lanes, x.n), em.splat("i64", extent, x.n)),
            )
        )
        if c.pattern is not None:
            assert stride == "1", "vectors run along the last dimension"
            pattern = c.pattern
    mask = masks[0]
    for m in masks[1:]:
        n = max(mask.lanes, m.lanes)
        mask = make(int1, n, lo.lanes(n).op("and", "i1", lo.text(mask, n), lo.text(m, n)))
    base = Val(
        pointer_type(elem),
        at.lanes if pattern is not None else 1,
        "",
        True,
        d.base.base,
        tuple(terms),
        pattern,
    )
    return base, mask


def _padding(lo: Lowering, elem: ElementType, nans: str) -> Val | None:
    """Return the value of elements outside of the array; None for zero."""
    if nans == "false" or not elem.is_floating():
        return None
    nan = constant(elem, float("nan"))
    if nans == "true":
        return nan
    e = scalar_type(elem)
    zero = lo.text(constant(elem, 0.0), 1)
    return Val(elem, 1, lo.lanes(1).select(e, nans, lo.text(nan, 1), zero))


@evaluates(memory.DescriptorLoadOp)
def _descriptor_load(lo: Lowering, op: Any, at: Point, index: int) -> Val:
    elem = op.desc.type.elem
    if any(
        c.pattern is not None for c in at.coords[:-1]
    ):  # a reshaped block: lanes lie in several rows
        return lane_by_lane(lo, op, at)
    address, mask = descriptor_address(lo, op, at)
    other = _padding(lo, elem, lo.descriptors[op.desc].nans)
    return load_at(lo, address, elem, mask, other, lo.em.memory)


@executes(memory.DescriptorStoreOp)
def _descriptor_store(lo: Lowering, op: Any) -> None:
    flush(lo, op)
    prepare(lo, [op.value], op)
    elem = op.desc.type.elem
    if op.kind == "store":

        def body(at: Point) -> None:
            address, mask = descriptor_address(lo, op, at)
            store_at(lo, address, elem, lo.value(op.value, at), mask, at.lanes)

        run(
            lo,
            nest(lo, shape_of(op.value.type), along=len(shape_of(op.value.type)) - 1),
            body,
            [op.value],
        )
    else:

        def element(at: Point) -> None:
            address, mask = descriptor_address(lo, op, at)
            x = lo.value(op.value, at)
            with lo.em.branch(lo.text(mask, 1) if mask is not None else "true"):
                rmw(lo, _Kind(op.kind, op.value), address, x)

        each(lo, scalar_nest(shape_of(op.value.type)), element)
        finish_memo_buffers(lo)
    lo.memory_changed()


@dataclass(frozen=True, slots=True)
class _Kind:
    """The operands of an atomic op that `atomics.rmw` reads."""

    kind: str
    value: Value
    sem: str = "relaxed"


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
