"""Lowers ops with effects on memory: stores, atomics, descriptors, histograms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.analysis.provenance import argument_of
from tessera.backends.cpu.affine import constant
from tessera.backends.cpu.fusion import (
    any_start,
    contiguous_along,
    contiguous_dimension,
    cost,
    finish_memo_buffers,
    flush,
    prepare,
    run,
)
from tessera.backends.cpu.lazy_ops import lane_by_lane
from tessera.backends.cpu.llvm_text import lane_type, scalar_type
from tessera.backends.cpu.loops import UNROLL, Nest, each, nest
from tessera.backends.cpu.lowering import Lowering, evaluates, executes, make
from tessera.backends.cpu.memory import dummy, load_at, store_at
from tessera.backends.cpu.values import Coord, Pattern, Point, Val
from tessera.backends.elements.casts import cast
from tessera.dtypes import dtype, float32, int1, int32, int64, pointer_type
from tessera.ir import ElementType, Op, TileType, Type, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import memory, tile


# --- stores -------------------------------------------------------------------------------------------------
@executes(memory.StoreOp)
def _store(lo: Lowering, op: memory.StoreOp) -> None:
    values = [v for v in (op.ptr, op.value, op.mask) if v is not None]
    elem = elem_of(op.value.type)
    if not isinstance(op.ptr.type, TileType):
        flush(lo, op)
        mask = lo.scalar(op.mask) if op.mask is not None else None
        store_at(lo, lo.scalar(op.ptr), elem, lo.scalar(op.value), mask, 1)
        lo.memory_changed()
        return
    flush(lo, op, values, op.ptr)
    prepare(lo, values, op)
    light = lo.elementwise and elem_of(op.value.type).bits == 32 and cost(lo, op.value) <= LIGHT
    lanes = lo.facts.stream_lanes if light else 0
    plan = nest(lo, shape_of(op.ptr.type), contiguous_dimension(lo, op.ptr), lanes)

    def body(at: Point) -> None:
        mask = lo.value(op.mask, at) if op.mask is not None else None
        store_at(lo, lo.value(op.ptr, at), elem, lo.value(op.value, at), mask, at.lanes)

    head = _head(lo, op, plan, values)
    stream = _stream(lo, op, plan, bool(head))
    run(lo, plan, body, values, stream, head, lo.strips.pop(op, None), op.mask)
    lo.memory_changed()


def _address(lo: Lowering, ptr: Value) -> str:
    """Return the address of the first element, as an i64."""
    lo.memo = {}
    first = lo.text(lo.value(ptr, Point((Coord(),), 1)), 1)
    lo.memo = {}
    return lo.em.op(f"ptrtoint ptr {first} to i64")


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
    before = lo.em.op(f"sub i64 0, {_address(lo, op.ptr)}")
    past = lo.em.op(f"and i64 {before}, {plan.lanes * size - 1}")
    return lo.em.op(f"lshr i64 {past}, {size.bit_length() - 1}")


LIGHT = 4.0  # cost up to which a loop is bound by memory even for data in the caches (tools/fit)
STREAM_BYTES = 24 << 20  # bytes written by a launch, from which stores bypass caches (tools/fit)


def _stream(lo: Lowering, op: Any, plan: Nest, shifted: bool) -> str:
    """Return an i1: whether a store is part of a stream much larger than the caches, to memory that is not read; "" if
    that is not known to help. `shifted`: vectors start where the loop's head ends. Not for kernels with loops, which
    may read what they wrote."""
    size = elem_of(op.value.type).storage_bytes
    target = argument_of(op.ptr)
    loads = dict.fromkeys(argument_of(ptr) for ptr in lo.loaded)
    if (
        not lo.straight
        or plan.outer
        or len(plan.group) != 1
        or plan.vectors <= UNROLL
        or target in loads
        or not apply("streaming-stores", op)
    ):
        return ""
    em = lo.em
    unit = size if shifted else plan.lanes * size
    low = em.op(f"and i64 {_address(lo, op.ptr)}, {unit - 1}")
    count = "1"
    for g in lo.sizes:
        wide = em.op(f"zext i32 {lo.text(g, 1)} to i64")
        count = wide if count == "1" else em.op(f"mul i64 {count}, {wide}")
    large = em.op(f"icmp uge i64 {count}, {STREAM_BYTES // (plan.group_size * size)}")
    result = em.op(f"and i1 {large}, {em.op(f'icmp eq i64 {low}, 0')}")
    for base in loads:
        if base is not None and target is not None:
            other = em.op(f"icmp ne ptr {lo.scalar_text(base)}, {lo.scalar_text(target)}")
            result = em.op(f"and i1 {result}, {other}")
    return result


def scalar_nest(shape: tuple[int, ...]) -> Nest:
    """Return a nest without vectors, for one element after another."""
    return Nest(shape, tuple(range(len(shape))), (), 1)


# --- atomics ------------------------------------------------------------------------------------------------
_ORDER = {"acquire": "acquire", "release": "release", "acq_rel": "acq_rel", "relaxed": "monotonic"}
_FLOAT_RMW = {"add": "fadd", "max": "fmax", "min": "fmin", "xchg": "xchg"}


@executes(memory.AtomicRmwOp)
def _atomic_rmw(lo: Lowering, op: Any) -> None:
    def step(args: list[Val]) -> str:
        return _rmw(lo, op, *args)

    _each_element(lo, op, [op.ptr, op.value], op.mask, step)


@executes(memory.AtomicCasOp)
def _atomic_cas(lo: Lowering, op: Any) -> None:
    def step(args: list[Val]) -> str:
        t = elem_of(op.value.type)
        ptr, expected, value = (lo.text(a, 1) for a in args)
        order = _ORDER[op.sem]
        failed = "acquire" if order in ("acquire", "acq_rel") else "monotonic"
        bits = f"i{t.storage_bits}"
        expected, value = to_bits(lo, t, expected), to_bits(lo, t, value)
        pair = lo.em.here(f"cmpxchg ptr {ptr}, {bits} {expected}, {bits} {value} {order} {failed}")
        return _from_bits(lo, t, lo.em.here(f"extractvalue {{ {bits}, i1 }} {pair}, 0"))

    _each_element(lo, op, [op.ptr, op.expected, op.value], None, step)


def to_bits(lo: Lowering, t: Any, text: str) -> str:
    e = scalar_type(t)
    if t is int1:
        return lo.em.op(f"zext i1 {text} to i8")
    name = "ptrtoint" if e == "ptr" else "bitcast"
    return text if e.startswith("i") else lo.em.op(f"{name} {e} {text} to i{t.bits}")


def _from_bits(lo: Lowering, t: Any, text: str) -> str:
    e = scalar_type(t)
    if t is int1:
        return lo.em.here(f"trunc i8 {text} to i1")
    name = "inttoptr" if e == "ptr" else "bitcast"
    return text if e.startswith("i") else lo.em.here(f"{name} i{t.bits} {text} to {e}")


def _rmw(lo: Lowering, op: Any, address: Val, value: Val) -> str:
    t = elem_of(op.value.type)
    ptr, text, order = lo.text(address, 1), lo.text(value, 1), _ORDER[op.sem]
    if isinstance(t, dtype) and t.is_floating() and t.bits < 32 and op.kind != "xchg":
        return _rmw_small(lo, op, t, ptr, text)
    is_float = isinstance(t, dtype) and t.is_floating()
    if is_float:
        name = _FLOAT_RMW[op.kind] if t.bits >= 32 else op.kind
    else:
        signed = isinstance(t, dtype) and t.signed
        name = {"max": "max" if signed else "umax", "min": "min" if signed else "umin"}.get(
            op.kind, op.kind
        )
    e = scalar_type(t)
    if t is int1:
        e, text = "i8", to_bits(lo, t, text)
    old = lo.em.here(f"atomicrmw {name} ptr {ptr}, {e} {text} {order}")
    return _from_bits(lo, t, old) if t is int1 else old


def _rmw_small(lo: Lowering, op: Any, t: dtype, ptr: str, text: str) -> str:
    """Emit a compare-and-swap loop, for floats for which the machine has no atomics."""
    em, x = lo.em, lo.lanes(1)
    bits, k = f"i{t.bits}", em.new_label("cas")
    slot = em.alloca(bits, align=8)
    first = em.here(f"load atomic {bits}, ptr {ptr} monotonic, align {t.storage_bytes}")
    em.stmt(f"store {bits} {first}, ptr {slot}")
    em.stmt(f"br label %{k}")
    em.label(k)
    with em.region():
        old = em.here(f"load {bits}, ptr {slot}")
        a, b = cast(x, old, t, float32), cast(x, text, t, float32)
        total = (
            x.op("fadd", "float", a, b)
            if op.kind == "add"
            else x.call(f"{op.kind}num", "float", a, b)
        )
        new = cast(x, total, float32, t)
        pair = em.here(f"cmpxchg ptr {ptr}, {bits} {old}, {bits} {new} {_ORDER[op.sem]} monotonic")
        em.stmt(f"store {bits} {em.here(f'extractvalue {{ {bits}, i1 }} {pair}, 0')}, ptr {slot}")
        done = em.here(f"extractvalue {{ {bits}, i1 }} {pair}, 1")
        em.stmt(f"br i1 {done}, label %{k}.done, label %{k}")
        em.label(f"{k}.done")
    return em.here(f"load {bits}, ptr {slot}")


def _each_element(lo: Lowering, op: Op, values: list[Value], mask: Value | None, step: Any) -> None:
    """Emit `step(operands)` for each element where `mask` is true; its return value is the element's result."""
    flush(lo, op)
    t = elem_of(op.result.type)
    needed = bool(op.result.uses)
    if not isinstance(op.result.type, TileType):
        slot = lo.em.alloca(lane_type(t, 1), align=8)
        condition = lo.text(lo.scalar(mask), 1) if mask is not None else "true"
        lo.em.stmt(f"store {lane_type(t, 1)} {_zero(t)}, ptr {slot}")
        with lo.em.branch(condition):
            lo.em.stmt(
                f"store {lane_type(t, 1)} {step([lo.scalar(v) for v in values])}, ptr {slot}"
            )
        lo.scalars[op.result] = make(t, 1, lo.em.here(f"load {lane_type(t, 1)}, ptr {slot}"))
        lo.memory_changed()
        return
    all_values = [*values, *([mask] if mask is not None else [])]
    prepare(lo, all_values, op)
    shape = shape_of(op.result.type)
    out = lo.allocate(t, shape) if needed else None

    def body(at: Point) -> None:
        args = [lo.value(v, at) for v in values]
        condition = lo.text(lo.value(mask, at), 1) if mask is not None else "true"
        if out is not None and mask is not None:
            lo.to_buffer(out, at, Val(t, 1, _zero(t)))
        with lo.em.branch(condition):
            x = step(args)
            if out is not None:
                lo.to_buffer(out, at, Val(t, 1, x))

    each(lo, scalar_nest(shape), body)
    finish_memo_buffers(lo)
    if out is not None:
        out.version = lo.new_version()
        lo.keep(op.result, out)
    lo.memory_changed()


def _zero(t: Type) -> str:
    return {"float": "0.0", "double": "0.0", "ptr": "null", "i1": "false"}.get(scalar_type(t), "0")


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
                _rmw(lo, _Kind(op.kind, op.value), address, x)

        each(lo, scalar_nest(shape_of(op.value.type)), element)
        finish_memo_buffers(lo)
    lo.memory_changed()


@dataclass(frozen=True, slots=True)
class _Kind:
    """The operands of an atomic op that `_rmw` reads."""

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

    each(lo, scalar_nest(shape_of(op.x.type)), body)
    finish_memo_buffers(lo)
    out.version = lo.new_version()
    lo.keep(op.result, out)
