"""Lowers structured control flow, whose carried values are in slots (slots.py)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from tessera.analysis.provenance import reached
from tessera.backends.cpu import chains, fusion, interrupt
from tessera.backends.cpu.affine import constant, elementwise
from tessera.backends.cpu.checks import leave_if_reported
from tessera.backends.cpu.k_loops import LONG_STEP
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.loops import each, nest
from tessera.backends.cpu.lowering import Buffer, Lowering, executes, make, unsupported
from tessera.backends.cpu.slots import Slot, new_slot, read_slot, write_slots
from tessera.backends.cpu.values import Point, Val
from tessera.backends.cpu.waiting import begin_waiting, wait_longer
from tessera.backends.elements.casts import cast
from tessera.dtypes import float32, float64, int32, int64
from tessera.ir import Block, Effect, Op, TileType, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.ops import CallOp, ConstOp, DivOp, DotOp, ForOp, FuncOp, IfOp, RemOp, WhileOp, memory
from tessera.ops.waiting import sees_others

LONGEST_STEP = 1 << 63  # 2^63: its negative is the least int64, which has no positive counterpart


# --- blocks -------------------------------------------------------------------------------------------------
def lower_block(lo: Lowering, block: Block) -> Op:
    """Lower everything in a block but its terminator; return the terminator."""
    outer, lo.block = lo.block, block
    for op in block:
        if op.terminator:
            break
        lower_op(lo, op)
        if lo.temporaries:
            for buffer in lo.temporaries:
                lo.recycle(buffer)
            lo.temporaries = []
    lo.block = outer
    return block.terminator


def lower_op(lo: Lowering, op: Op) -> None:
    """Lower a sink or a scalar op; tile ops without effects wait until a loop needs their elements."""
    around = lo.em.at(op.loc)
    _lower_op(lo, op)
    lo.em.loc = around


def _lower_op(lo: Lowering, op: Op) -> None:
    kind = type(op)
    sink = lo.sinks.get(kind)
    if sink is not None:
        sink(lo, op)
        chains.release_dead(lo, lo.end[op])
        return
    if kind not in lo.evaluators:
        raise unsupported(op, f"the operation {op.opcode}")
    if all(isinstance(r.type, TileType) for r in op.results) and not _scalar_split(op):
        if op.effects & Effect.READ:
            for r in op.results:
                lo.pending[r] = None
                if op.attrs.get("volatile"):
                    fusion.materialise(lo, r, op)
        fusion.bound_depth(lo, op)
        return
    _lower_scalar(lo, op)


def _scalar_split(op: Op) -> bool:
    return op.opcode == "split" and not isinstance(op.results[0].type, TileType)


def _lower_scalar(lo: Lowering, op: Op) -> None:
    """Lower an op whose results are scalars, in program order."""
    at = Point((), 1)
    if op.opcode in ("split", "load", "const", "reshape"):
        tiles = [v for v in op.operands if isinstance(v.type, TileType)]
        if tiles:
            fusion.prepare(lo, tiles, op, loop=[])
        for r in op.results:
            x = lo.evaluators[type(op)](lo, op, at, r.index)
            lo.scalars[r] = make(r.type, 1, lo.text(x, 1)) if x.const is None else x
        lo.memo = {}
        return
    lo.scalars[op.results[0]] = elementwise(lo, op, [lo.scalar(v) for v in op.operands])


# --- around a region ----------------------------------------------------------------------------------------
def captured(lo: Lowering, op: Op) -> list[Value]:
    """Return the lazy tiles from outside that ops inside use."""
    found: dict[Value, None] = {}
    for block in op.regions:
        for inner in block.walk():
            for v in inner.operands:
                if lo.lazy(v) and v.op is not None and not v.op.is_inside(op):
                    found[v] = None
    return list(found)


def tabulate(lo: Lowering, values: list[Value]) -> None:
    """Store rows of addresses like `(pid * 128 + i) % M` in a table, so that a loop does not divide for every row."""

    def divides(v: Value) -> bool:
        row = isinstance(v.op, (DivOp, RemOp)) and lo.lazy(v) and len(shape_of(v.type)) == 1
        return v in lo.uniform or (row and chains.integers_only(v, chains.INDEX_DEPTH))

    for v in reached(values, lambda v: () if divides(v) else lo.sources(v)):
        if divides(v) and v not in lo.uniform:
            buffer = lo.allocate(v.type.elem, v.type.shape)
            fusion.fill(lo, buffer, v)
            lo.uniform[v] = buffer


def enter(lo: Lowering, op: Op, repeats: bool) -> None:
    """Prepare for a region op: materialise the lazy tiles from outside that it uses, if that pays."""
    if repeats:
        tabulate(lo, captured(lo, op))
    for v in captured(lo, op):
        price = chains.cost(lo, v, enough=fusion.KEEP_SHARED)
        if price >= (fusion.KEEP_CAPTURED if repeats else fusion.KEEP_SHARED) and (
            repeats or chains.needed_after(lo, v, lo.end[op])
        ):
            fusion.materialise(lo, v, op)
    if op.all_effects() & Effect.WRITE:
        fusion.flush(lo, op)
        lo.memory_changed()


# --- if -----------------------------------------------------------------------------------------------------
@executes(IfOp)
def _if(lo: Lowering, op: IfOp) -> None:
    em = lo.em
    condition = lo.scalar_text(op.condition)
    enter(lo, op, repeats=False)
    slots: list[Slot] = []
    for r in op.results:
        slots.append(_passed_through(lo, op, r.index, slots) or new_slot(lo, r.type))
    k = em.new_label("")
    em.stmt(f"br i1 {condition}, label %then{k}, label %else{k}")
    for name, block in zip(("then", "else"), op.regions, strict=True):
        em.label(f"{name}{k}")
        with em.arm():
            kept = {*lo.buffers, *lo.uniform}
            end = lower_block(lo, block)
            write_slots(lo, end, end.operands, slots)
            _forget(lo, kept, slots)
        em.stmt(f"br label %fi{k}")
    em.label(f"fi{k}")
    if op.all_effects() & Effect.WRITE:
        lo.memory_changed()
    for r, slot in zip(op.results, slots, strict=True):
        read_slot(lo, r, slot, lo.block)


def _passed_through(lo: Lowering, op: IfOp, index: int, taken: Sequence[Slot]) -> Buffer | None:
    """Return the buffer of a tile that one branch yields unchanged and nothing needs afterwards. That branch then
    writes nothing, and the other one changes the buffer in place."""
    for block in op.regions:
        v = block.terminator.operands[index]
        own = lo.buffers.get(v)
        if (
            own is None
            or lo.buffer_blocks.get(v) is not lo.block
            or v in lo.carried
            or own in taken
        ):
            continue
        alone = all(y is v or b.ptr != own.ptr for y, b in lo.buffers.items())
        if alone and not chains.needed_after(lo, v, lo.end[op]):
            return own
    return None


def _forget(lo: Lowering, kept: set[Value], slots: Sequence[Slot]) -> None:
    """Forget the buffers that were filled inside a region, except those of `slots`."""
    for v in list(lo.uniform):
        if v not in kept:
            del lo.uniform[v]
    living = {s.ptr for s in slots if isinstance(s, Buffer)}
    for v in list(lo.buffers):
        if v not in kept:
            buffer = lo.buffers.pop(v)
            if lo.buffer_blocks.pop(v, None) is not None and buffer.ptr not in living:
                lo.recycle(buffer)
                living.add(buffer.ptr)


# --- for ----------------------------------------------------------------------------------------------------
def lower_for(lo: Lowering, op: ForOp) -> None:
    """Lower a counted loop: carried tiles are in slots; accumulators may start at zero in the first iteration."""
    counter = Counter.of(lo, op)
    accumulators = frozenset(i for i in range(len(op.inits)) if starts_at_zero(op, i))
    slots = initial(lo, op, op.inits, accumulators)
    clear_unless_run(lo, [slots[i] for i in accumulators], counter)
    enter(lo, op, repeats=True)
    with _iterations(lo, op, counter) as i:
        counter.write_index(lo, op, i)
        if accumulators:
            start = lo.em.op(f"icmp eq i64 {i}, {counter.low}")
            lo.zero_start |= {op.carried[k]: start for k in accumulators}
        body(lo, op.body, op.carried, slots)
    leave(lo, op, slots)


@dataclass(frozen=True, slots=True)
class Counter:
    """The i64s that a loop counts upwards: low, low + step, ... below high. A loop that counts down uses the bitwise
    complements of its indices, which have the opposite order and are in the same range."""

    low: str
    high: str
    step: str  # below 2^63, or -2^63 for 2^63
    down: bool
    near: bool  # the number after the last one is below 2^63

    @staticmethod
    def of(lo: Lowering, op: ForOp) -> Counter:
        low, high, step = (
            cast(lo.lanes(1), lo.scalar_text(v), v.type, int64) for v in (op.lb, op.ub, op.step)
        )
        by = lo.scalar(op.step).const
        down = isinstance(by, int) and by < 0
        if isinstance(by, int) and by < 0:
            low, high = (lo.em.op(f"xor i64 {x}, -1") for x in (low, high))
            step = str(-by if by > -LONGEST_STEP else by)
        return Counter(low, high, step, down, op.lb.type.bits < 64 or step == "1")

    def span(self, lo: Lowering, count: int | str) -> str:
        """Return what `count` steps add to the index, or what one step adds if several would overflow."""
        short = lo.em.op(f"icmp slt i64 {self.step}, {LONG_STEP}")
        several = lo.em.op(f"mul i64 {self.step}, {count}")
        return lo.em.op(f"select i1 {short}, i64 {several}, i64 {self.step}")

    def write_index(self, lo: Lowering, op: ForOp, i: str) -> None:
        """Compute the loop's index from the counted number `i`."""
        term = lo.em.op(f"xor i64 {i}, -1") if self.down else i
        align = lo.align[term] = min(lo.scalar(op.lb).align, lo.scalar(op.step).align)
        lo.scalars[op.induction] = Val(op.lb.type, 1, "", True, "0", (term,), align=align)


def _iterations(lo: Lowering, op: ForOp, c: Counter) -> AbstractContextManager[str]:
    """Emit the loop over the values of an index. If it may be long, it polls for signals between blocks."""
    em, count = lo.em, interrupt.iterations_between_looks(op)
    if not count or c.step == str(-LONGEST_STEP):
        return em.counted(c.low, c.high, c.step, always=False, near=c.near)
    poll = partial(interrupt.leave_if_interrupted, lo)
    return em.counted_in_blocks(c.low, c.high, c.step, c.span(lo, count), poll, c.near)


def initial(
    lo: Lowering, op: Op, inits: Sequence[Value], unset: frozenset[int] = frozenset()
) -> list[Slot]:
    slots = [_adopt(lo, op, v) or new_slot(lo, v.type) for v in inits]
    pairs = [
        (v, slot) for i, (v, slot) in enumerate(zip(inits, slots, strict=True)) if i not in unset
    ]
    write_slots(lo, op, [v for v, _ in pairs], [slot for _, slot in pairs])
    return slots


def starts_at_zero(op: ForOp, i: int) -> bool:
    """Whether a carried tile starts at zero and only dots add to it, in each iteration."""
    init, arg = op.inits[i], op.carried[i]
    if not isinstance(init.op, ConstOp) or init.op.value or len(arg.uses) != 1:
        return False
    ((user, place),) = arg.uses
    dot = isinstance(user, DotOp) and place == 2 and user.parent is op.body
    fits = len(shape_of(arg.type)) == 2 and elem_of(arg.type) in (float32, float64, int32)
    return dot and fits and apply("zero-start", user)


def clear_unless_run(lo: Lowering, slots: list[Slot], c: Counter) -> None:
    """Clear accumulators if there is no iteration: the first one would treat them as zero without reading them."""
    if not slots:
        return
    with lo.em.branch(lo.em.op(f"icmp slt i64 {c.low}, {c.high}"), negate=True):
        for slot in slots:
            assert isinstance(slot, Buffer)
            zero = constant(slot.elem, 0)
            each(lo, nest(lo, slot.shape), lambda at, s=slot, z=zero: lo.to_buffer(s, at, z))
            slot.version = lo.new_version()


def _adopt(lo: Lowering, op: Op, v: Value) -> Buffer | None:
    """Return the buffer of an initial value that nothing else needs."""
    own = lo.buffers.get(v)
    if (
        own is None
        or len(v.uses) != 1
        or lo.buffer_blocks.get(v) is not lo.block
        or v in lo.carried
    ):
        return None
    return own


def body(lo: Lowering, block: Block, args: Sequence[Value], slots: Sequence[Slot]) -> None:
    kept = {*lo.buffers, *lo.uniform}
    for v, slot in zip(args, slots, strict=True):
        read_slot(lo, v, slot, block)
        lo.carried.add(v)
    end = lower_block(lo, block)
    outer, lo.block = lo.block, block
    write_slots(lo, end, end.operands, slots)
    lo.block = outer
    _forget(lo, kept, slots)


def leave(lo: Lowering, op: Op, slots: Sequence[Slot]) -> None:
    if op.all_effects() & Effect.WRITE:
        lo.memory_changed()
    for r, slot in zip(op.results, slots, strict=True):
        read_slot(lo, r, slot, lo.block)


# --- while --------------------------------------------------------------------------------------------------
@executes(WhileOp)
def _while(lo: Lowering, op: WhileOp) -> None:
    em = lo.em
    slots = initial(lo, op, op.inits)
    enter(lo, op, repeats=True)
    before, after = op.regions
    passed = before.terminator.operands[1:]
    out = [
        s if v is a else new_slot(lo, v.type)
        for s, v, a in zip(slots, passed, before.args, strict=True)
    ]
    k = em.new_label("")
    looks = sees_others(op)
    if looks:
        begin_waiting(lo)
    em.stmt(f"br label %head{k}")
    em.label(f"head{k}")
    with em.region():
        if lo.report:
            leave_if_reported(lo, waits=any(isinstance(x, memory.Atomic) for x in op.walk()))
        interrupt.leave_if_interrupted(lo)
        if looks:
            wait_longer(lo)
        kept = {*lo.buffers, *lo.uniform}
        for v, slot in zip(before.args, slots, strict=True):
            read_slot(lo, v, slot, before)
            lo.carried.add(v)
        end = lower_block(lo, before)
        condition = lo.scalar_text(end.operands[0])
        changed = [(v, s) for v, s, old in zip(passed, out, slots, strict=True) if s is not old]
        write_slots(lo, end, [v for v, _ in changed], [s for _, s in changed])
        em.stmt(f"br i1 {condition}, label %body{k}, label %done{k}")
        em.label(f"body{k}")
        _forget(lo, kept, [*slots, *out])
        for v, slot in zip(after.args, out, strict=True):
            read_slot(lo, v, slot, after)
            lo.carried.add(v)
        end = lower_block(lo, after)
        write_slots(lo, end, end.operands, slots)
        _forget(lo, kept, [*slots, *out])
        em.stmt(f"br label %head{k}")
        em.label(f"done{k}")
    leave(lo, op, out)


# --- calls --------------------------------------------------------------------------------------------------
@executes(CallOp)
def _call(lo: Lowering, op: CallOp) -> None:
    """Lower a call: scalars are passed by value, tiles by address, results through slots."""
    fusion.flush(lo, op)
    args = [f"ptr {lo.context}", *(f"i32 {lo.text(lo.programs[d], 1)}" for d in range(3))]
    if lo.report:
        args.append(f"ptr {lo.report}")
    for v in op.args:
        if isinstance(v.type, TileType):
            args.append(f"ptr {fusion.materialise(lo, v, op).ptr}")
        else:
            args.append(f"{scalar_type(v.type)} {lo.scalar_text(v)}")
    slots = [new_slot(lo, r.type) for r in op.results]
    args += [f"ptr {s.ptr if isinstance(s, Buffer) else s}" for s in slots]
    lo.em.stmt(f"call void @{function_name(op.callee)}({', '.join(args)})")
    lo.memory_changed()
    if lo.report:
        leave_if_reported(lo)
    callee = op.resolve()
    if callee is not None and interrupt.may_stop(callee):
        interrupt.leave_after_call(lo)
    for r, slot in zip(op.results, slots, strict=True):
        read_slot(lo, r, slot, lo.block)


def function_name(name: str) -> str:
    return f'"{name}"'


def is_kernel(op: Op) -> bool:
    return isinstance(op, FuncOp) and op.kernel
