"""Expands scheduled loops (ops/schedule.py): copies of stages ahead go through rings, ops of later stages are delayed.

    for i {main_stage=2}:                   ring = local_alloc of `slots` buffers
      %t = load %p, %mask  {stage=0}        main_stage times: async_copy %p' -> ring[s] where %mask' and i' < n; commit
      %s = local_alloc %t  {stage=0}        for i, with %p' and i' running main_stage iterations ahead:
      ... %s ...                      →       async_wait (all but main_stage - 1 groups)
      %x = ...                                async_copy %p' -> ring[i' mod slots]; commit
      use %x  {stage=3}                       ... ring[i mod slots] ...; use the %x of iteration i - 1
                                            async_wait (all); use the last %x

The address and the mask of a load, and the values that they are computed from across iterations (its *slice*), must
be pure: the slice is computed a second time, ahead; the original is removed if nothing else uses it. Copies past the
end are masked. With `cp.async` the wait is also a barrier, and the only one that an iteration needs: the buffer written
after it was last read before it, unless copies come behind the reads (refill.py). With `mbarrier` warpgroups drift
apart, so that one multiplies while another one works on its results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from tessera import ops
from tessera.errors import IRError
from tessera.ir import Builder, Module, Op, Value, pass_, require
from tessera.ir.applications import Declined
from tessera.ops.roles import is_split
from tessera.ops.schedule import readers, spell_out, stage_of
from tessera.passes.gpu_loops.delay import Placing, arrange, delay, last_position
from tessera.passes.gpu_loops.expand_roles import expand_roles
from tessera.passes.gpu_loops.registers import carried_loads, carry
from tessera.passes.gpu_loops.rings import filling
from tessera.passes.gpu_loops.slots import Buffers, behind_mmas, mbarriers, rows_of, show
from tessera.passes.gpu_loops.streams import Ahead, is_partial
from tessera.passes.neutral.fold import zero_of
from tessera.passes.neutral.loops import const, const32, set_yields, with_carried


@pass_("expand-loops")
def expand_loops(module: Module) -> None:
    """Rewrite what has a schedule: functions to warp roles, loops to prologue, steady state and epilogue.

    Takes: functions with `producer_warps` and loops with `main_stage`, as `schedule-roles`, `schedule-streams` and
        `schedule-loops` write them.
    Gives: `warp_specialize` with a region for each role, and rings of buffers with a full and an empty mbarrier; rings
        that `async_copy` fills ahead; loops that carry what a later stage uses, after a first and before a last
        iteration of their own; no op has a schedule any more.
    Needs: a GPU with `cp.async` (sm_80) for copies that run ahead, with a TMA unit (sm_90) for roles.
    Raises: IRError: the address of a copy that runs ahead is not pure, or one that the producer cannot compute.
    Example: `copies` of tests/filecheck/expand-loops/ring.gir
        for { load; local_alloc; local_load } → local_alloc; async_copy; for { async_wait; async_copy; local_load }
    Compare: MLIR `scf` loop pipelining; Triton `tritongpu-pipeline`; M. Lam, "Software pipelining: an effective
        scheduling technique for VLIW machines", PLDI 1988.
    """
    num_warps: int = module.attrs.get("num_warps", 1)
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        if is_split(func):
            expand_roles(module, func)
        found = [op for op in func.walk() if isinstance(op, ops.ForOp)]
        for loop in [op for op in found if op.main_stage is not None]:
            _expand(loop, num_warps)
        for op in func.walk():
            op.attrs.pop("position", None)
            op.attrs.pop("stage", None)


def _expand(loop: ops.ForOp, num_warps: int) -> None:
    body, main = spell_out(loop), loop.main_stage or 0
    start = min((op.attrs["position"] for op in body), default=0)
    loop.main_stage = None
    copied = [op for op in body if isinstance(op, ops.LocalAllocOp) and "slots" in op.attrs]
    early = carried_loads(body, main)
    if early:
        loop, early = carry(loop, early, start, main)
    if copied:
        loop = _Copies(loop, main, copied, start, num_warps, early).run()
    last = max((op.attrs["stage"] for op in loop.body if not op.terminator), default=main)
    if last == main:
        arrange(loop)
    ping_pong = bool(loop.attrs.pop("ping_pong", False))
    for stage in range(main + 1, last + 1):
        loop = delay(loop, stage, ping_pong)
        ping_pong = False


class _Copies:
    """Lets the copies of one loop run ahead, through a ring of buffers."""

    def __init__(
        self,
        loop: ops.ForOp,
        main: int,
        allocs: Sequence[ops.LocalAllocOp],
        start: int,
        num_warps: int,
        early: Sequence[Op],
    ):
        how = [(a.attrs["stage"], a.attrs["slots"], a.attrs["signal"]) for a in allocs]
        for a, other in zip(allocs, how, strict=True):
            require(other == how[0], a, "copies of one loop differ in stage, slots or signal")
        stage, self.slots, self.signal = how[0]
        self.loop, self.main, self.start, self.num_warps = loop, main, start, num_warps
        self.ahead = main - stage
        self.allocs, self.loads = allocs, [filling(a) for a in allocs]
        try:
            self.slice = Ahead(loop, self.loads, early)
        except Declined:
            text = "the address of a copy that runs ahead is not pure"
            raise IRError(f"{loop.opcode}: {text}", loc=loop.loc) from None

    def run(self) -> ops.ForOp:
        before = Builder.before_op(self.loop)
        self.ring = self._buffers(before)
        ahead, index = self.slice.inits, self.loop.lb
        for number in range(self.ahead):  # copies for the first iterations
            ahead = self._copy(before, ahead, index, const32(before, number), {})
            index = before.emit(ops.AddOp(index, self.loop.step))
        _fill_late(self.loop)
        zero, last = const32(before, 0), const32(before, self.ahead % self.slots)
        parities = [zero, zero] if self.ring.full is not None else []
        return self._body([index, zero, last, *parities, *ahead], len(ahead))

    def _buffers(self, b: Builder) -> Buffers:
        """Allocate the ring, with barriers if that is its signal: threads arrive when copies have landed, and warps
        when they have read. With groups of copies the wait for these frees the buffer that was read before it, too."""
        private, barriers = self.signal == "thread", self.signal == "mbarrier"
        marks = ["has_mbarriers"] if barriers else []
        rows = rows_of(b, self.allocs, self.slots, private, *marks)
        ring = Buffers(rows, self.slots, private=private, pending=self.ahead - 1)
        if barriers:
            ring.written_by_threads = ring.after_mma = True
            ring.full = self._mbarriers(b, 32 * self.num_warps)
            ring.empty = self._mbarriers(b, self.num_warps)
        return ring

    def _mbarriers(self, b: Builder, arrivals: int) -> Value:
        row = mbarriers(b, self.slots)
        b.insert(ops.MbarrierInitOp([row], counts=(arrivals,)))
        return row

    def _copy(
        self,
        b: Builder,
        values: Sequence[Value],
        index: Value,
        slot: Value,
        note: dict[str, Any],
    ) -> list[Value]:
        """Emit the slice for the iteration of `index`, and its loads' copies as one group. Return the slice's carried
        values after it."""
        mapping, runs, following = self.slice.emit(b, values, index)
        tokens: list[Value] = []
        private = self.ring.private
        for load, row in zip(self.loads, self.ring.rows, strict=True):
            ptr, mask, other = self.slice.read(b, load, mapping, None if private else runs)
            if not private:  # these copies write zeros
                other = None
            elif mask is not None and other is None:
                other = const(b, zero_of(load.result.type), load.result.type)
            copy = ops.AsyncCopyOp(
                ptr, b.emit(ops.LocalIndexOp(row, slot, **note)), mask, other, runs if private else None,
                private=private, cache=load.cache, eviction=load.eviction, partial=is_partial(load) and not private,
                loc=load.loc,
            )  # fmt: skip
            tokens.append(b.emit(copy))
        b.emit(ops.AsyncCommitOp(tokens))
        if self.ring.full is not None:
            b.insert(ops.AsyncCopyMbarrierArriveOp(self.ring.full, slot))
        return following

    def _body(self, inits: list[Value], count: int) -> ops.ForOp:
        """Emit the wait, the copies ahead, and the old body on the ring's buffers. The loop carries the index of the
        copies, the states of readers and writers, and `count` values of the slice."""
        loop, ring, main = with_carried(self.loop, inits, num_stages=1), self.ring, self.main
        body, (index, *args) = loop.body, loop.carried[-len(inits) :]
        states, ahead = args[: len(args) - count], args[len(args) - count :]
        read, written = tuple(states[0::2]), tuple(states[1::2])
        first, end = body.first, body.terminator
        assert first is not None
        b = Placing(first, self.start, main)
        ring.wait_full(b, read)
        ring.wait_empty(b, written)
        b = Placing(first, self.loads[0].attrs["position"], main)
        ahead = self._copy(b, ahead, index, written[0], {"slot": self.ahead})
        users = [op for a in self.allocs for op in readers(a.result, loop)]
        stage = max((stage_of(op, loop) for op in users), default=main)
        views = [
            Placing(a, self.start, main).emit(ops.LocalIndexOp(row, read[0], slot=0))
            for a, row in zip(self.allocs, ring.rows, strict=True)
        ]
        show(self.allocs, views)
        position = last_position(loop, main)
        b = Placing(end, position, main)
        following = zip(ring.advance(b, read), ring.advance(b, written), strict=True)
        ring.release(Placing(end, position, stage), read[0])
        index = b.emit(ops.AddOp(index, loop.step))
        set_yields(body, [index, *[v for pair in following for v in pair], *ahead])
        behind_mmas(loop).emit(ops.AsyncWaitOp([], pending=0, private=ring.private))
        return loop


def _fill_late(loop: ops.ForOp) -> None:
    """Move code that fills other shared memory for the loop behind the loop's first copies, which then overlap the
    loads that it waits for."""
    assert loop.parent is not None
    for op in list(takewhile(lambda op: op is not loop, loop.parent)):
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
