"""Pipelines loops: loads of later iterations are copied to shared memory while this iteration computes.

    for i:                         ring = local_alloc of `stages` buffers
      %t = load %p, %mask          stages - 1 times: async_copy %p' -> ring[s] where %mask' and i' < n; commit
      %s = local_alloc %t          for i, with %p' and i' running stages - 1 iterations ahead:
      ... %s ...                     async_wait (all but stages - 2 groups)
                                     async_copy %p' -> ring[i' mod stages]; commit
                                     ... ring[i mod stages] ...
                                   async_wait (all)

The address and the mask of a load, and the values that they are computed from across iterations (its *slice*), must
be pure: the slice is computed a second time, ahead; the original is removed if nothing else uses it. The
wait is also a barrier, and the only one that an iteration needs: the buffer written after it was last read before it.

An MMA of warpgroups that only accumulates may run on while the next iteration begins. It then reads its buffer for
one more iteration, so that the copies run one iteration less ahead; they are issued after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.provenance import buffer_of, untransposed
from tessera.analysis.scratch import scratch_bytes
from tessera.dtypes import int1, int64
from tessera.ir import Block, Builder, ElementType, Module, Op, SharedType, Value, pass_, with_elem
from tessera.ir.applications import apply
from tessera.layout import LinearLayout
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_mma.across_iterations import async_accumulation
from tessera.passes.gpu_mma.mma_chains import (
    Shifted,
    drop_view,
    shift_stage,
    shiftable,
    shifted_view,
)
from tessera.passes.gpu_movement.memory_effects import waits_for_others
from tessera.passes.gpu_movement.streams import Stream, stream_of
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.loops import const, const32, set_yields, with_carried

# Registers of MMAs up to which the last MMA of a chain may be shifted by an iteration (tools/fit).
CHAINED_REG32 = 208
PING_PONG_REG32 = (
    128  # registers of an iteration's results from which warpgroups play ping-pong (tools/fit)
)
WARPS = 4  # of a warpgroup
PART_BITS = 256  # of K in one instruction of an MMA


@pass_("software-pipeline", optimization="software-pipeline", counts=True)
def software_pipeline(module: Module, facts: GpuFacts) -> None:
    """Pipeline loops: copy the tiles of later iterations to shared memory while this iteration computes.

    Takes: GPU IR with layouts, as only whole vectors may be copied asynchronously; `num_stages` of module or loop.
        Loops in which programs wait for others are left alone.
    Gives: rings of buffers that `async_copy` fills `num_stages - 1` iterations ahead; loops done have `num_stages=1`.
    Needs: a GPU with `cp.async` (sm_80).
    Raises: nothing.
    Example: `copies` of tests/filecheck/software-pipeline/ring.gir
        for { load; local_alloc; local_load } → local_alloc; async_copy; for { async_wait; async_copy; local_load }
    Compare: Triton `tritongpu-pipeline`; CUDA guide, "Asynchronous Data Copies"; M. Lam, "Software pipelining: an
        effective scheduling technique for VLIW machines", PLDI 1988.
    """
    if not facts.has_cp_async:
        return
    default: int = module.attrs.get("num_stages", 1)
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        loops = [
            op for op in func.walk() if isinstance(op, ops.ForOp) and (op.num_stages or default) > 1
        ]
        loops = [loop for loop in loops if not any(map(waits_for_others, loop.walk()))]
        axis = AxisAnalysis(func) if loops else None
        for loop in loops:
            assert axis is not None
            streams = [s for op in loop.body if (s := stream_of(op, loop, axis, facts)) is not None]
            running = async_accumulation(loop, {s.alloc for s in streams})
            shifted: list[Shifted] = []
            if running is None:
                shifted = shiftable(loop, {s.alloc for s in streams}, CHAINED_REG32)
            if running is not None and not apply("mma-across-iterations", loop):
                running = None
            if shifted and not apply("mma-chains", loop):
                shifted = []
            wanted = loop.num_stages or default
            room = facts.max_shared_bytes - _beside(loop, streams, module.attrs["num_warps"], facts)
            stages, lag = _stages(wanted, streams, facts, room, running is not None, bool(shifted))
            if stages > 1 and apply("software-pipeline", loop):
                done = Pipeline(
                    loop, streams, stages, running if lag else None, bool(shifted) and lag
                )
                if shifted and lag and module.attrs["num_warps"] > WARPS:
                    done.ring_barriers = _RingBarriers(module.attrs["num_warps"], stages)
                new = done.run()
                if shifted and lag:
                    shift_stage(
                        new,
                        shifted,
                        done.shifted_ops(shifted),
                        PING_PONG_REG32 if done.ring_barriers is not None else None,
                    )


def _beside(loop: ops.ForOp, streams: list[Stream], num_warps: int, facts: GpuFacts) -> int:
    """Return the bytes of shared memory that the loop needs besides its rings."""
    rings: set[Op] = {s.alloc for s in streams}
    roots = [buffer_of(v).op for op in loop.walk() for v in (*op.operands, *op.results)]
    others = {op for op in roots if isinstance(op, ops.LocalAllocOp) and op not in rings}
    scratch = max((scratch_bytes(op, num_warps, facts) for op in loop.walk()), default=0)
    return sum(op.bytes for op in others) + scratch


def _stages(
    wanted: int, streams: list[Stream], facts: GpuFacts, room: int, running: bool, shifts: bool
) -> tuple[int, bool]:
    """Return the number of stages: as many as are wanted and fit into `room` bytes, or 1 if there is nothing to do;
    and whether MMAs may run on, or be shifted by an iteration.

    An MMA that runs on keeps its buffers for one more iteration. A buffer is added for that, unless fewer CTAs would
    then fit on an SM: in that case the copies run one iteration less ahead, or with three stages
    the MMA waits."""
    if not streams:
        return 1, False
    size = sum(s.bytes for s in streams)
    fit, most = facts.max_shared_bytes // size, room // size
    stages = max(1, min(wanted, most))
    if not (running or shifts) or stages < 2:
        return stages, False
    if stages + 1 <= most and fit // (stages + 1) == fit // stages:
        return stages + 1, True
    return stages, stages > (2 if shifts else 3)


class _RingBarriers:
    """mbarriers instead of CTA barriers: warpgroups drift apart, so that one multiplies while another one works on its
    results. `full`: a buffer's copies have landed; `free`: all warps have read it."""

    full: Value
    free: Value

    def __init__(self, num_warps: int, stages: int):
        self.num_warps, self.stages = num_warps, stages

    def init(self, b: Builder) -> None:
        self.full = self._counters(b, 32 * self.num_warps)
        self.free = self._counters(b, self.num_warps)

    def _counters(self, b: Builder, arrivals: int) -> Value:
        bits = (self.stages - 1).bit_length()
        bases = {"offset": [(1 << i,) for i in range(bits)]}
        counters = SharedType((1 << bits,), int64, LinearLayout((1 << bits,), bases))
        bars = b.emit(ops.LocalAllocOp(None, results=[counters]))
        b.insert(ops.MbarrierInitOp([bars], counts=(arrivals,)))
        return bars


class Pipeline:
    """Rewrites one loop; `private`: each thread reads only what it copied itself."""

    shifted_slot: Value  # carried: the buffer of the shifted MMAs
    ring_barriers: _RingBarriers | None = None

    def __init__(
        self,
        loop: ops.ForOp,
        streams: list[Stream],
        stages: int,
        running: ops.WgmmaOp | None = None,
        shifts: bool = False,
        private: bool = False,
    ):
        self.loop, self.streams, self.stages, self.running = loop, streams, stages, running
        self.private, self.shifts = private, shifts
        self.ahead = stages - 1 - (running is not None or shifts)  # iterations between copy and use
        slices = set[Op]().union(*[s.slice for s in streams])
        self.slice = [op for op in loop.body if op in slices]
        self.number = running.acc.index - 1 if running is not None else 0
        self.carried = sorted(set[int]().union(*[s.carried for s in streams]))
        self.yields = {n: loop.body.terminator.operands[n] for n in self.carried}

    def run(self) -> ops.ForOp:
        before = Builder.before_op(self.loop)
        self.rings = [self._ring(before, s) for s in self.streams]
        if self.ring_barriers is not None:
            self.ring_barriers.init(before)
        ahead, index = self._prologue(before)
        _fill_late(self.loop)
        zero, last = const32(before, 0), const32(before, self.ahead)
        parities = [] if self.ring_barriers is None else [zero, zero]
        return self._body([index, zero, last, *parities, *ahead, *[zero] * self.shifts])

    def _ring(self, b: Builder, s: Stream) -> Value:
        t: SharedType = s.alloc.result.type
        ring = SharedType((self.stages, *t.shape), t.elem, t.layout)
        alloc = ops.LocalAllocOp(
            None, results=[ring], names=[s.alloc.result.name], private=self.private, loc=s.load.loc
        )
        if self.ring_barriers is not None:
            alloc.attrs["has_mbarriers"] = True
        return b.emit(alloc)

    def _prologue(self, b: Builder) -> tuple[list[Value], Value]:
        """Copy for the first stages - 1 iterations. Return the slice's carried values and the index after them."""
        loop = self.loop
        values = [loop.inits[n] for n in self.carried]
        index = loop.lb
        for stage in range(self.ahead):
            mapping = dict(zip([loop.carried[n] for n in self.carried], values, strict=True))
            self._copies(b, mapping, index, [const32(b, stage)] * len(self.rings), {})
            values = [mapping.get(self.yields[n], self.yields[n]) for n in self.carried]
            index = b.emit(ops.AddOp(index, loop.step))
        return values, index

    def _copies(
        self,
        b: Builder,
        mapping: dict[Value, Value],
        index: Value,
        slots: Sequence[Value],
        note: dict[str, Any],
    ) -> None:
        """Emit the slice for the iteration of `index`, and its loads' copies as one group; `mapping` gains the
        slice."""
        loop = self.loop
        mapping[loop.induction] = index
        down = (constant_of(loop.step) or 0) < 0
        runs = b.emit(ops.CmpOp(index, loop.ub, predicate="gt" if down else "lt"))
        for op in self.slice:
            b.insert(op.clone(mapping))
        tokens: list[Value] = []
        for s, ring, slot in zip(self.streams, self.rings, slots, strict=True):
            ptr = mapping.get(s.load.ptr, s.load.ptr)
            mask = b.emit(ops.SplatOp(runs, results=[with_elem(ptr.type, int1)]))
            if s.load.mask is not None:
                mask = b.emit(ops.AndOp(mapping.get(s.load.mask, s.load.mask), mask))
            view = b.emit(ops.LocalIndexOp(ring, slot, **note))
            copy = ops.AsyncCopyOp(
                ptr, view, mask, self._fill(b, s.load, mapping), private=self.private,
                cache=s.load.cache, eviction=s.load.eviction, loc=s.load.loc,
            )  # fmt: skip
            tokens.append(b.emit(copy))
        b.emit(ops.AsyncCommitOp(tokens))
        if self.ring_barriers is not None:
            b.insert(ops.AsyncCopyMbarrierArriveOp(self.ring_barriers.full, slots[0]))

    def _fill(self, b: Builder, load: ops.LoadOp, mapping: dict[Value, Value]) -> Value | None:
        """Return what a copy writes where its mask is false; None for shared copies, which write zeros."""
        if not self.private or load.mask is None:
            return None
        if load.other is not None:
            return mapping.get(load.other, load.other)
        return const(b, zero_of(load.result.type.elem), load.result.type)

    def _body(self, inits: list[Value]) -> ops.ForOp:
        """Emit the wait, the copies ahead, and the old body on the ring's buffers."""
        self.loop = loop = with_carried(self.loop, inits, num_stages=1)
        body, args = loop.body, loop.carried[-len(inits) :]
        (index, slot, last), ahead = args[:3], args[3:]
        if self.shifts:
            self.shifted_slot = ahead.pop()
        b = Builder(body, body.first, loop.loc)
        parities: list[Value] = []
        if self.ring_barriers is not None:
            parities, ahead = ahead[:2], ahead[2:]
            b.insert(
                ops.MbarrierWaitOp(
                    self.ring_barriers.full, slot, parities[0], data=True, proxy=True
                )
            )
            earlier = b.emit(ops.XorOp(parities[1], const32(b, 1)))
            b.insert(ops.MbarrierWaitOp(self.ring_barriers.free, last, earlier))
        else:
            b.emit(ops.AsyncWaitOp([], pending=self.ahead - 1, private=self.private))
        if self.running is not None:
            b = self._split_mma(self.running)
        mapping = dict(zip([loop.carried[n] for n in self.carried], ahead, strict=True))
        self._copies(b, mapping, index, [last] * len(self.rings), {"slot": self.ahead})
        for s, ring in zip(self.streams, self.rings, strict=True):
            at = Builder.before_op(s.alloc)
            s.alloc.replace_by([at.emit(ops.LocalIndexOp(ring, slot, slot=0))])
            s.load.erase()
        end = Builder.before_op(body.terminator)
        slots = [self._next_slot(end, x) for x in (slot, last)]
        following = [
            end.emit(ops.AddOp(index, loop.step)),
            *slots,
            *[self._next_parity(end, x, parity) for x, parity in zip(slots, parities)],
            *[mapping.get(self.yields[n], self.yields[n]) for n in self.carried],
            *([self.shifted_slot] if self.shifts else []),
        ]
        set_yields(loop, following)
        self._finish()
        return loop

    def _split_mma(self, last: ops.WgmmaOp) -> Builder:
        """Return where copies are issued: between two halves of the MMA. The first half keeps the matrix unit busy
        during the copies, and no copy waits for the MMA of the previous iteration. An operand read into registers is
        read after the copies, while the MMA of the previous iteration runs."""
        if isinstance(last.left.op, ops.LocalLoadOp):
            return Builder.before_op(last.left.op)
        depth: int = last.b.type.shape[0] * last.b.type.elem.storage_bits
        if depth % (2 * PART_BITS) == 0:
            first = last.clone()
            first.part, first.asynchronous = (0, 2), True
            last.part = (1, 2)
            last.set_operand(2, Builder.before_op(last).emit(first))
        return Builder.before_op(last)

    def _next_slot(self, b: Builder, slot: Value) -> Value:
        """Return slot + 1, or the first slot after the last."""
        following = b.emit(ops.AddOp(slot, const32(b, 1)))
        wraps = b.emit(ops.CmpOp(following, const32(b, self.stages), predicate="eq"))
        return b.emit(ops.SelectOp(wraps, const32(b, 0), following))

    def _next_parity(self, b: Builder, slot: Value, parity: Value) -> Value:
        """Return the parity of the next buffer's phase, which flips when the ring begins again."""
        wraps = b.emit(ops.CmpOp(slot, const32(b, 0), predicate="eq"))
        return b.emit(ops.SelectOp(wraps, b.emit(ops.XorOp(parity, const32(b, 1))), parity))

    def shifted_ops(self, shifted: Sequence[Shifted]) -> list[Op]:
        """Return the ops of the new loop to shift by an iteration, in order: before each MMA the views of its buffer,
        and after all MMAs the ops that release the buffers."""
        body, slot = self.shifted_slot.owner, self.shifted_slot
        assert isinstance(body, Block)
        before = set(body)
        for d in shifted:
            view, at = d.mma.b, Builder.before_op(d.mma)
            root = untransposed(view)
            if isinstance(root.op, ops.LocalIndexOp) and root.op.parent is body:
                other = at.emit(ops.LocalIndexOp(root.op.ring, slot, slot=-1))
                d.mma.set_operand(1, shifted_view(at, view, other))
                drop_view(view)
        end = Builder.before_op(body.terminator)
        if self.ring_barriers is not None:
            end.insert(ops.MbarrierArriveOp(self.ring_barriers.free, slot, after_mma=True))
        body.terminator.set_operand(slot.index - 1, self._next_slot(end, slot))
        mmas = {d.mma for d in shifted}
        return [op for op in body if op not in before or op in mmas]

    def _finish(self) -> None:
        """After the loop, wait for the MMA that runs on and for copies past the end, which still write zeros."""
        b = Builder.after_op(self.loop)
        if self.running is not None:
            self.running.pending = 1
            last = self.loop.results[self.number]
            uses = list(last.uses)
            wait = b.emit(ops.WgmmaWaitOp(last, []))
            for user, index in uses:
                user.set_operand(index, wait)
        b.emit(ops.AsyncWaitOp([], pending=0, private=self.private))


def _fill_late(loop: ops.ForOp) -> None:
    """Move code that fills other shared memory for the loop behind the loop's first copies, which then overlap the
    loads that it waits for."""
    for op in list(_before(loop)):
        if (
            isinstance(op, ops.LocalAllocOp)
            and op.init is not None
            and isinstance(op.init.op, ops.LoadOp)
        ):
            family = _family(op)
            users = {u for member in family for u in member.result.users()} - set(family)
            if users and all(u.is_inside(loop) for u in users):
                for member in family:
                    member.move_before(loop)


def _before(loop: ops.ForOp) -> list[Op]:
    found: list[Op] = []
    op = loop.prev
    while op is not None:
        found.append(op)
        op = op.prev
    return found[::-1]


def _family(alloc: ops.LocalAllocOp) -> list[Op]:
    """Return an allocation and its views outside of loops, in order."""
    found: list[Op] = [alloc]
    for op in found:
        found += [
            u
            for u in op.result.users()
            if isinstance(u, ops.LocalTransOp) and u.parent is alloc.parent
        ]
    return found


def zero_of(elem: ElementType) -> Any:
    """Return zero as constants of the type represent it."""
    return 0.0 if elem.is_floating() else 0
