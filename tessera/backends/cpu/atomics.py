"""Lowers atomics. Each has two forms: one by atomic instructions, and a plain one for launches that run in one thread,
with no other kernel beside them that has atomics (exclusive.py). Plain ones are done a vector at a time where their
addresses are consecutive."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tessera.backends.cpu.chains import op_cost
from tessera.backends.cpu.exclusive import alone
from tessera.backends.cpu.fusion import (
    contiguous_along,
    contiguous_dimension,
    finish_memo_buffers,
    flush,
    prepare,
    run,
)
from tessera.backends.cpu.llvm_text import lane_type, scalar_type
from tessera.backends.cpu.loops import each, nest, scalar_nest, single_nest
from tessera.backends.cpu.lowering import EVALUATORS, Lowering, executes, make
from tessera.backends.cpu.memory import load_at, store_at
from tessera.backends.cpu.values import Point, Val, is_unit
from tessera.backends.elements.casts import cast
from tessera.dtypes import dtype, float32, int1
from tessera.ir import Op, TileType, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ir.types import Type
from tessera.ops import FuncOp, NumProgramsOp, ProgramIdOp, ReturnOp, memory
from tessera.ops.memory import Atomic, AtomicRmwOp, LoadOp, StoreOp

_ORDER = {"acquire": "acquire", "release": "release", "acq_rel": "acq_rel", "relaxed": "monotonic"}
Step = Callable[[list[Val]], str]
_FLOAT_RMW = {"add": "fadd", "max": "fmax", "min": "fmin", "xchg": "xchg"}


@executes(memory.AtomicRmwOp)
def _atomic_rmw(lo: Lowering, op: AtomicRmwOp) -> None:
    def step(args: list[Val]) -> str:
        return rmw(lo, op, *args)

    plain = op if _may_be_plain(lo, op) and apply("plain-atomics", op) else None
    _each_element(lo, op, [op.ptr, op.value], op.mask, step, plain)


@executes(memory.AtomicCasOp)
def _atomic_cas(lo: Lowering, op: memory.AtomicCasOp) -> None:
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


def rmw(lo: Lowering, op: AtomicRmwOp, address: Val, value: Val) -> str:
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


# --- without atomic instructions -----------------------------------------------------------------------------
def _may_be_plain(lo: Lowering, op: AtomicRmwOp) -> bool:
    """Whether an op may be done without atomic instructions while nobody else in this process has atomics."""
    t = elem_of(op.value.type)
    numbers = isinstance(t, dtype) and t is not int1
    return numbers and lo.state.may_exclude and op.scope != "sys"


def _combined(lo: Lowering, op: AtomicRmwOp, lanes: int, old: str, value: str) -> str:
    """Return what an op makes of the old numbers in memory."""
    t, x = elem_of(op.value.type), lo.lanes(lanes)
    if op.kind == "xchg":
        return value
    if t.is_floating():
        wide = float32 if t.bits < 32 else t
        a, b = cast(x, old, t, wide), cast(x, value, t, wide)
        e = scalar_type(wide)
        new = x.op("fadd", e, a, b) if op.kind == "add" else x.call(f"{op.kind}num", e, a, b)
        return cast(x, new, wide, t)
    e = scalar_type(t)
    if op.kind in ("max", "min"):
        return x.call(f"{'s' if t.signed else 'u'}{op.kind}", e, old, value)
    return x.op(op.kind, e, old, value)


def _plain(lo: Lowering, op: AtomicRmwOp, at: Point, mask: Val | None) -> Val:
    """Emit an op without atomic instructions; return the old numbers, zero where the mask is false."""
    t, n = elem_of(op.value.type), at.lanes
    address, value = lo.value(op.ptr, at), lo.value(op.value, at)
    assert n == 1 or is_unit(address.pattern)
    old = load_at(lo, address, t, mask, None, lo.new_version())
    new = _combined(lo, op, n, lo.text(old, n), lo.text(value, n))
    store_at(lo, address, t, Val(t, n, new), mask, n)
    return old


# Nanoseconds of an element on a Zen 4 (scattered sums in benchmarks/cpu_plain.py): by an atomic instruction; plainly,
# in vectors and one by one; of a load or store, and of another instruction on vectors.
ATOMIC_NS, VECTOR_NS, SINGLE_NS, ACCESS_NS, STEP_NS = 3.0, 0.2, 0.5, 0.1, 0.03
_COUNTED = (AtomicRmwOp, LoadOp, StoreOp, ProgramIdOp, NumProgramsOp, ReturnOp)


def alone_up_to(kernel: FuncOp, atomics: list[tuple[int, bool]]) -> int:
    """Return up to how many threads a grid is done sooner by one thread, without atomic instructions; 0 if that is not
    known. `atomics`: elements of each op that has a plain form, and whether their addresses are consecutive."""
    count = sum(isinstance(op, Atomic) for op in kernel.walk())
    known = all(type(op) in EVALUATORS or isinstance(op, _COUNTED) for op in kernel.body)
    if count == 0 or count != len(atomics) or not known:
        return 0
    other = 0.0
    for op in kernel.body:
        price = (
            ACCESS_NS
            if isinstance(op, LoadOp | StoreOp)
            else STEP_NS * op_cost(op)
            if op.results
            else 0.0
        )
        shaped = op.results or op.operands
        if shaped and not isinstance(op, Atomic):
            other += price * math.prod(shape_of(shaped[0].type))
    plain = sum(n * (VECTOR_NS if consecutive else SINGLE_NS) for n, consecutive in atomics)
    locked = sum(n * ATOMIC_NS for n, _ in atomics)
    return int((other + locked) / (other + plain))


# --- loops ---------------------------------------------------------------------------------------------------
def _each_element(
    lo: Lowering,
    op: Op,
    values: list[Value],
    mask: Value | None,
    step: Step,
    plain: AtomicRmwOp | None = None,
) -> None:
    """Emit `step(operands)` for each element where `mask` is true; its return value is the element's result. `plain`:
    the op, if it has a form without atomic instructions, between which the program chooses."""
    all_values = [*values, *([mask] if mask is not None else [])]
    flush(lo, op, all_values, [values[0]], repeats=True)
    t = elem_of(op.result.type)
    if not isinstance(op.result.type, TileType):
        _one_element(lo, op, values, mask, step, plain)
        lo.memory_changed()
        return
    prepare(lo, all_values, op)
    shape = shape_of(op.result.type)
    out = lo.allocate(t, shape) if op.result.uses else None

    def body(at: Point) -> None:
        args = [lo.value(v, at) for v in values]
        condition = lo.text(lo.value(mask, at), 1) if mask is not None else "true"
        if out is not None and mask is not None:
            lo.to_buffer(out, at, Val(t, 1, _zero(t)))
        with lo.em.branch(condition):
            x = step(args)
            if out is not None:
                lo.to_buffer(out, at, Val(t, 1, x))

    dimension = _consecutive(lo, values[0]) if plain else None
    if plain:
        lo.state.atomics.append((math.prod(shape), dimension is not None))

    def vectors(at: Point) -> None:
        assert plain is not None
        old = _plain(lo, plain, at, lo.value(mask, at) if mask is not None else None)
        if out is not None:
            lo.to_buffer(out, at, old)

    def plainly() -> None:
        plan = single_nest(shape) if dimension is None else nest(lo, shape, dimension)
        run(lo, plan, vectors, all_values, mask=mask, last=False)

    def atomically() -> None:
        each(lo, scalar_nest(shape), body)

    lo.em.choose(alone(lo) if plain else "false", plainly, atomically)
    finish_memo_buffers(lo)
    if out is not None:
        out.version = lo.new_version()
        lo.keep(op.result, out)
    lo.memory_changed()


def _consecutive(lo: Lowering, ptr: Value) -> int | None:
    """Return a dimension along which all vectors of addresses are consecutive elements; None if there is none."""
    shape = shape_of(ptr.type)
    found = contiguous_dimension(lo, ptr)
    d = len(shape) - 1 if found is None else found
    plan = nest(lo, shape, d)
    if plan.lanes == 1:
        return None
    first = range(0, shape[d], plan.lanes)
    return d if all(contiguous_along(lo, ptr, d, plan.lanes, at) for at in first) else None


def _one_element(
    lo: Lowering,
    op: Op,
    values: list[Value],
    mask: Value | None,
    step: Step,
    plain: AtomicRmwOp | None,
) -> None:
    t, em = elem_of(op.result.type), lo.em
    e = lane_type(t, 1)
    slot = em.alloca(e, align=8)
    condition = lo.text(lo.scalar(mask), 1) if mask is not None else "true"
    em.stmt(f"store {e} {_zero(t)}, ptr {slot}")

    def keep(text: str) -> None:
        em.stmt(f"store {e} {text}, ptr {slot}")

    def atomically() -> None:
        keep(step([lo.scalar(v) for v in values]))

    with em.branch(condition):
        if plain is None:
            atomically()
        else:
            em.choose(
                alone(lo),
                lambda: keep(lo.text(_plain(lo, plain, Point((), 1), None), 1)),
                atomically,
            )
    lo.scalars[op.result] = make(t, 1, em.here(f"load {e}, ptr {slot}"))


def _zero(t: Type) -> str:
    return {"float": "0.0", "double": "0.0", "ptr": "null", "i1": "false"}.get(scalar_type(t), "0")
