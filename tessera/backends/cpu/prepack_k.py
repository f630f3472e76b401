"""Packs the operands of all steps of a loop over k before it multiplies them, so that accumulators stay in registers.

    for k in 0, n, 1:  acc = dot(a_k, b_k, acc)
      →  for k in 0, n, 1:  A[:, k] = a_k;  B[k, :] = b_k
         for each block of acc:  sum A @ B over all of k in registers

B is packed in panels, in memory that later programs can reuse (pack_cache.py); a loop with more steps than that memory
holds is cut into several. A is read in place if the tiles of its steps, side by side, are one matrix that nothing
writes to, up to the first step in which a mask hides an element; if its type is another one, a few of its rows at a
time are converted. A of other steps is copied like B. If a
single store uses the accumulator, through element-wise operations only, the store computes, converts and writes one
block of rows after the other: the accumulator is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from tessera.backends.cpu import blocked_iterations, control, k_loops, operands
from tessera.backends.cpu.arith import TABLE
from tessera.backends.cpu.dot import casting
from tessera.backends.cpu.dot_plan import DotPlan, plan_dot
from tessera.backends.cpu.few_rows import unmasked, whole
from tessera.backends.cpu.fusion import fill, finish_memo_buffers
from tessera.backends.cpu.gemm import Gemm, gemm, gemm_rows
from tessera.backends.cpu.interrupt import iterations_between_looks, leave_if_interrupted
from tessera.backends.cpu.llvm_text import memory_type, scalar_type
from tessera.backends.cpu.loops import Strips, places
from tessera.backends.cpu.lowering import Buffer, Lowering, executes, make
from tessera.backends.cpu.operands import InPlace, Left, Packed, Panels
from tessera.backends.cpu.pack_cache import (
    MOST_SLOTS,
    RING_BYTES,
    Ring,
    Trip,
    cache_operand,
    constant_memory,
    prepare_operand,
    scratch,
    slots_of_b,
)
from tessera.backends.cpu.panels import add_biases, fill_bias, fill_panels, materialise_reshapes
from tessera.backends.cpu.slots import Slot
from tessera.backends.cpu.values import Coord, Point
from tessera.dtypes import int32
from tessera.ir import TileType, Value, elem_of
from tessera.ir.applications import apply
from tessera.ops import AddPtrOp, ConstOp, DotOp, ForOp, LoadOp, StoreOp


@executes(ForOp)
def _for(lo: Lowering, op: ForOp) -> None:
    dots = k_loops.accumulated_dots(lo.facts, op)
    if dots and apply("prepack-k", op):
        _prepacked(lo, op, dots)
    elif (plan := blocked_iterations.carried_nest(lo, op)) and apply("blocked-iterations", op):
        blocked_iterations.lower(lo, op, plan)
    else:
        control.lower_for(lo, op)


def _prepacked(lo: Lowering, op: ForOp, dots: list[DotOp]) -> None:
    em, counter = lo.em, control.Counter.of(lo, op)
    step = counter.step
    if k_loops.constant(op.step) is None:  # a step of 0 is not allowed, but must not divide
        step = em.call("i64", "llvm.smax.i64", f"i64 {step}", "i64 1")
        counter = replace(counter, step=step)
    accumulators = frozenset(i for i in range(len(op.inits)) if control.starts_at_zero(op, i))
    slots = control.initial(lo, op, op.inits, accumulators)
    control.clear_unless_run(lo, [slots[i] for i in accumulators], counter)
    control.enter(lo, op, repeats=True)
    start = Start.of(lo, op, counter)
    pairs = [_PrepackedDot.of(lo, start, dot, accumulators) for dot in dots]
    results = [s for x in pairs if isinstance(s := slots[x.place], Buffer)]
    steps = _steps_together(lo, counter, min(x.steps for x in pairs))
    span = counter.span(lo, steps)
    near = op.lb.type.bits < 64
    with em.counted(counter.low, counter.high, span, always=False, near=near) as low:
        if iterations_between_looks(op):
            leave_if_interrupted(lo)
        start.save(lo, low, slots)
        far = em.call("i64", "llvm.sadd.sat.i64", f"i64 {low}", f"i64 {span}")
        end = em.call("i64", "llvm.smin.i64", f"i64 {far}", f"i64 {counter.high}")
        more = em.op(f"sub i64 {em.op(f'sub i64 {end}, {low}')}, 1")
        count = em.op(f"add i64 {em.op(f'sdiv i64 {more}, {step}')}, 1")
        with em.counted(low, end, step, always=True, guarded=False, near=counter.near) as k:
            counter.write_index(lo, op, k)
            number = em.op(f"sdiv i64 {em.op(f'sub i64 {k}, {low}')}, {step}")
            trip = Trip(number, steps, em.op(f"icmp eq i64 {k}, {low}"))
            lo.packs = {x.op: lambda x=x: x.pack(lo, trip) for x in pairs}
            control.body(lo, op.body, op.carried, slots)
            lo.packs = {}
        for x, c in zip(pairs, results, strict=True):
            zero = em.op(f"icmp eq i64 {low}, {counter.low}") if x.zero_start else "false"
            if x.store is None:
                x.multiply(lo, x.gemm(lo, c, zero, count))
                c.version = lo.new_version()
                continue
            last = em.op(f"icmp sge i64 {end}, {counter.high}")
            em.stmt(f"store i64 {em.op(f'select i1 {last}, i64 {count}, i64 0')}, ptr {x.count}")
            with em.branch(last, negate=True):
                x.multiply(lo, x.gemm(lo, c, zero, count))
                em.stmt(f"store i1 false, ptr {x.zero}")
    control.leave(lo, op, slots)
    for x, c in zip(pairs, results, strict=True):
        if x.store is not None:
            _attach(lo, x.store, x.strips(lo, c))


def _steps_together(lo: Lowering, counter: control.Counter, most: int) -> str:
    """Return how many steps of a loop are packed together: at most `most`, in parts of nearly equal length."""
    em = lo.em
    last = em.op(f"sub i64 {em.op(f'sub i64 {counter.high}, {counter.low}')}, 1")
    number = em.op(f"udiv i64 {last}, {counter.step}")  # of the last step
    parts = em.op(f"add i64 {em.op(f'udiv i64 {number}, {most}')}, 1")
    return "1" if most == 1 else em.op(f"add i64 {em.op(f'udiv i64 {number}, {parts}')}, 1")


def _attach(lo: Lowering, store: StoreOp, strips: Strips) -> None:
    """Let a store finish one accumulator more, or finish the accumulator now if its rows are divided differently."""
    before: Strips | None = lo.strips.get(store)
    if before is None:
        lo.strips[store] = strips
    elif before.blocks == strips.blocks:
        lo.strips[store] = before.beside(strips)
    else:
        strips.finish()


@dataclass(frozen=True, slots=True)
class Start:
    """The scalars of a loop's body in the first of the steps that are packed: `first` is the address of its index,
    `cells` those of the values that the loop carries."""

    loop: ForOp
    counter: control.Counter
    first: str
    cells: dict[Value, str]

    @staticmethod
    def of(lo: Lowering, loop: ForOp, counter: control.Counter) -> Start:
        carried = [v for v in loop.carried if not isinstance(v.type, TileType)]
        cells = {v: lo.em.alloca(scalar_type(v.type), align=8) for v in carried}
        return Start(loop, counter, lo.em.alloca("i64"), cells)

    def save(self, lo: Lowering, low: str, slots: Sequence[Slot]) -> None:
        em = lo.em
        em.stmt(f"store i64 {low}, ptr {self.first}")
        for v, cell in self.cells.items():
            t = scalar_type(v.type)
            em.stmt(f"store {t} {em.here(f'load {t}, ptr {slots[v.index - 1]}')}, ptr {cell}")

    def rewind(self, lo: Lowering) -> None:
        """Compute the scalars again."""
        em = lo.em
        self.counter.write_index(lo, self.loop, em.here(f"load i64, ptr {self.first}"))
        for v, cell in self.cells.items():
            lo.scalars[v] = make(v.type, 1, em.here(f"load {scalar_type(v.type)}, ptr {cell}"))
        for op in k_loops.scalar_ops(self.loop):
            control.lower_op(lo, op)


@dataclass(slots=True)
class _PrepackedDot:
    """One dot of the loop, and where its packed operands are."""

    op: DotOp
    plan: DotPlan
    slots: int  # of a ring
    steps: int  # that are packed together at most
    place: int  # among the carried values
    zero_start: bool  # the accumulator starts at zero
    store: StoreOp | None  # the store that multiplies the last steps
    count: str  # address of the number of these last steps
    zero: str  # of an i1: whether there was none before
    split: str  # of the number of first steps whose A is read in place, where each step decides it
    start: Start
    placed: InPlace | None = None  # A in place
    left: Ring | None = None
    right: Ring | None = None
    sums: str = ""  # address of B's column sums, those of one slot after the other
    copy: Buffer | None = None  # of rows of A in another type

    @staticmethod
    def of(lo: Lowering, start: Start, op: DotOp, accumulators: frozenset[int]) -> _PrepackedDot:
        em, plan, place = lo.em, plan_dot(lo.facts, op, "prepack-k"), op.acc.index - 1
        size = plan.t.storage_bytes * plan.k * max(plan.m, plan.n)
        slots, zero_start = max(1, min(MOST_SLOTS, RING_BYTES // size)), place in accumulators
        steps = max(1, min(slots, lo.facts.near_bytes // size))
        count, zero, split = em.alloca("i64"), em.alloca("i1", align=1), em.alloca("i64")
        em.stmt(f"store i64 0, ptr {count}")
        em.stmt(f"store i64 0, ptr {split}")
        em.stmt(f"store i1 {str(zero_start).lower()}, ptr {zero}")
        store = k_loops.only_store(start.loop.results[place])
        if store is not None and not apply("store-fusion", op):
            store = None
        lo.state.plans.append(plan)
        return _PrepackedDot(
            op, plan, slots, steps, place, zero_start, store, count, zero, split, start
        )

    def pack(self, lo: Lowering, trip: Trip) -> None:
        """Pack both operands of this step, unless they are packed already."""
        op, plan, t = self.op, self.plan, self.plan.t
        m, n, k = plan.m, plan.n, plan.k
        materialise_reshapes(lo, op, plan)
        for v in (op.a, op.b):
            prepare_operand(lo, v, op)
        source = casting(lo, elem_of(op.a.type), t)

        def left(ring: Ring, slot: str) -> None:
            first = lo.em.op(f"mul i64 {slot}, {k * t.storage_bytes}")
            ptr = lo.em.op(f"getelementptr i8, ptr {ring.base}, i64 {first}")
            fill(lo, Buffer(ptr, t, (m, k), pitch=self.pitch), op.a, source)

        def right(ring: Ring, slot: str) -> None:
            target = self._panels(lo, ring, slot)
            fill_panels(lo, plan, op, target)
            if plan.path.bias:
                fill_bias(lo, plan, replace(target, bias=self._sums_of(lo, slot)))

        line = k * t.storage_bytes
        kept = slots_of_b(lo, op.b, self.slots, n * line)
        if plan.path.bias:
            self.sums = scratch(lo, kept * n * 4)

        self.placed, here = self._find_in_place(lo)
        if here != "true":
            leading = "" if here == "false" else self._count(lo, trip, here)
            self.left = cache_operand(lo, op.a, trip, self.slots, m * line, left, leading)
        self.right = cache_operand(lo, op.b, trip, kept, n * line, right)
        if self.placed is not None and elem_of(op.a.type) != t:
            rows = max(rows for rows, *_ in plan.rows)
            self.copy = lo.allocate(t, (rows, self.pitch))
        there = "in place" if self.copy is None else "converted by rows"
        places = there if self.placed is not None else "", self.left.place if self.left else ""
        plan.placed.update(A=", or ".join(filter(None, places)), B=self.right.place)
        finish_memo_buffers(lo)

    def _count(self, lo: Lowering, trip: Trip, here: str) -> str:
        """Count this step if A is in place `here` (an i1) and in all steps before it; return whether it is (an i1)."""
        em, before = lo.em, lo.em.here(f"load i64, ptr {self.split}")
        before = em.op(f"select i1 {trip.first}, i64 0, i64 {before}")
        here = em.op(f"and i1 {here}, {em.op(f'icmp eq i64 {before}, {trip.number}')}")
        one = em.op(f"zext i1 {here} to i64")
        em.stmt(f"store i64 {em.op(f'add i64 {before}, {one}')}, ptr {self.split}")
        return here

    def _find_in_place(self, lo: Lowering) -> tuple[InPlace | None, str]:
        """Return A in place, perhaps of another type, if its steps are one matrix that nothing writes to. The i1 says
        whether this step is, which may depend on the loop's step and on its mask."""
        load, op, source = self.op.a.op, self.op, elem_of(self.op.a.type)
        if source == self.plan.t:
            placed = operands.left_in_place(lo, op.a, self.plan)
        else:
            placed = operands.in_place(lo, op.a, source)
        condition = "false" if placed is None else whole(lo, op.a)
        if placed is None or not isinstance(load, LoadOp) or condition == "false":
            return None, "false"
        loop, k = self.start.loop, self.plan.k
        step = k_loops.constant(loop.step)
        stride = partial(k_loops.step_stride, loop, load.ptr)
        if step is None and source == self.plan.t and stride(None) != k:
            step, same = k, lo.em.op(f"icmp eq i64 {self.start.counter.step}, {k}")
            condition = lo.em.op(f"and i1 {condition}, {same}")
        side_by_side = placed.affine and stride(step) == k
        pure = all(
            type(x) in TABLE or isinstance(x, (AddPtrOp, ConstOp)) for x in k_loops.scalar_ops(loop)
        )
        if side_by_side and pure and constant_memory(lo, load.ptr):
            return placed, condition
        return None, "false"

    @property
    def pitch(self) -> int:
        """Return the elements from one row of A to the next: a cache line more than the slots take."""
        return self.slots * self.plan.k + 64 // self.plan.t.storage_bytes

    def _panels(self, lo: Lowering, ring: Ring, slot: str) -> Panels:
        k_groups = self.plan.k_groups
        first = lo.index(slot, 1, ring.slots).times(k_groups)
        return Panels(ring.base, self.plan.packed_type, (ring.slots + 1) * k_groups, first=first)

    def _sums_of(self, lo: Lowering, slot: str) -> str:
        at = lo.em.op(f"mul i64 {slot}, {self.plan.n}")
        return lo.em.op(f"getelementptr i32, ptr {self.sums}, i64 {at}")

    def gemm(self, lo: Lowering, c: Buffer, zero: str, count: str) -> Gemm:
        """Return the multiplication of the `count` steps that are packed now."""
        em, plan = lo.em, self.plan
        assert self.right is not None
        left = self._left(lo)
        second = em.here(f"load i64, ptr {self.right.first}")
        b = self._panels(lo, self.right, second)
        rest = replace(b, affine=False)  # few steps, whose loop is not worth unrolling
        if plan.path.bias:
            b = replace(b, bias=add_biases(lo, plan, self._sums_of(lo, second), count))
        split = [em.here(f"load i64, ptr {self.split}")] if len(left) > 1 else []
        k, pairs = plan.k_groups, zip(left, (b, rest), strict=False)
        return Gemm(plan, [(a, x, k) for a, x in pairs], c.ptr, zero, ("0", *split, count))

    def _left(self, lo: Lowering) -> list[Left]:
        """Return A of the steps in which it is read in place, and of those in which it is copied."""
        em, plan, ring, found = lo.em, self.plan, self.left, list[Left]()
        if self.placed is not None:
            self.start.rewind(lo)
            found.append(self.placed)
        if ring is not None:
            first = em.here(f"load i64, ptr {ring.first}")
            offset = em.op(f"mul i64 {first}, {plan.k * plan.t.storage_bytes}")
            found.append(self._rows(em.op(f"getelementptr i8, ptr {ring.base}, i64 {offset}")))
        return found

    def _rows(self, ptr: str) -> Packed:
        """Return rows of A in the type of the dot, side by side for all steps."""
        t = int32 if self.plan.path.k_pack > 1 else self.plan.t
        return Packed(ptr, t, self.pitch // self.plan.path.k_pack)

    def multiply(self, lo: Lowering, p: Gemm) -> None:
        if self.copy is None:
            gemm(lo, p)
            return
        for rows, first, count in self.plan.rows:
            for row in places(lo, rows, first, count):
                self.multiply_rows(lo, p, row, rows)

    def multiply_rows(self, lo: Lowering, p: Gemm, row: Coord, rows: int, end: str = "") -> None:
        if self.copy is not None:
            (_, b, k_groups), *rest = p.terms
            a = self._rows(self._converted(lo, self.copy, p, row, rows))
            p = replace(p, terms=[(a, b, k_groups), *rest])
        gemm_rows(lo, p, row, rows, end)

    def _converted(self, lo: Lowering, copy: Buffer, p: Gemm, row: Coord, rows: int) -> str:
        """Copy a block of rows of A in the type of the dot; return the address that row 0 would have."""
        em, v, t, k, lanes = lo.em, self.op.a, self.plan.t, self.plan.k, lo.facts.lanes
        convert = casting(lo, elem_of(v.type), t)
        back = em.op(f"sub i64 0, {lo.coord_text(row.times(self.pitch))}")
        ptr = em.op(f"getelementptr {memory_type(t)}, ptr {copy.ptr}, i64 {back}")
        target = Buffer(ptr, t, (rows, self.pitch), lo.new_version())
        end = em.op(f"mul i64 {p.steps[1]}, {k}")
        with unmasked(lo, v), em.loop(0, rows, 1) as i:
            r = row.plus(lo.index(i, 1, rows))
            with em.counted("0", end, str(lanes), always=True) as j:
                first = lo.index(j, lanes, 1 << 31)
                at = Point((r, Coord(0, first.terms, tuple(range(lanes)), first.extent)), lanes)
                lo.memo = {}
                lo.to_buffer(target, at, convert(lo.value(v, at)))
        lo.memo = {}
        return ptr

    def strips(self, lo: Lowering, c: Buffer) -> Strips:
        """Return the multiplication of the last steps, by blocks of rows. If they are all steps, a buffer for one block
        is enough."""
        em, n = lo.em, c.shape[1]
        zero = em.here(f"load i1, ptr {self.zero}")
        whole = self.gemm(lo, c, zero, em.here(f"load i64, ptr {self.count}"))
        blocks = self.plan.rows
        strip = lo.allocate(c.elem, (max(rows for rows, *_ in blocks), n))

        @contextmanager
        def make(row: Coord, rows: int, end: str) -> Generator[None]:
            back = em.op(f"sub i64 0, {lo.coord_text(row.times(n))}")
            near = em.op(f"getelementptr {scalar_type(c.elem)}, ptr {strip.ptr}, i64 {back}")
            c.ptr = em.op(f"select i1 {zero}, ptr {near}, ptr {whole.c}")
            c.version = lo.new_version()
            self.multiply_rows(lo, replace(whole, c=c.ptr), row, rows, end)
            yield
            c.ptr, c.version = whole.c, lo.new_version()  # the memory that later tiles may reuse

        def finish() -> None:
            self.multiply(lo, whole)
            c.version = lo.new_version()

        return Strips(blocks, make, finish, (self.start.loop.results[self.place],))
