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
end are masked. With `cp.async` the wait is also a barrier, and the only one that an iteration needs: the
buffer written after it was last read before it. With `mbarrier` warpgroups drift apart, so that one multiplies while
another one works on its results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from tessera import ops
from tessera.analysis.provenance import buffer_of
from tessera.dtypes import int1
from tessera.errors import IRError
from tessera.ir import (
    Builder,
    ElementType,
    Module,
    Op,
    SharedType,
    Value,
    pass_,
    require,
    with_elem,
)
from tessera.ir.applications import Declined
from tessera.ops.roles import is_split
from tessera.ops.schedule import spell_out
from tessera.passes.gpu_loops.delay import Placing, arrange, delay
from tessera.passes.gpu_loops.expand_roles import expand_roles
from tessera.passes.gpu_loops.registers import carried_loads, carry
from tessera.passes.gpu_loops.slots import (
    advance,
    behind_mmas,
    next_slot,
    row_of_mbarriers,
    wait_until_free,
)
from tessera.passes.gpu_loops.streams import Ahead, Stream
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
        loop = _Rings(loop, main, copied, start, num_warps, early).run()
    last = max((op.attrs["stage"] for op in loop.body if not op.terminator), default=main)
    if last == main:
        arrange(loop)
    ping_pong = bool(loop.attrs.pop("ping_pong", False))
    for stage in range(main + 1, last + 1):
        loop = delay(loop, stage, ping_pong)
        ping_pong = False


class _Rings:
    """Lets the copies of one loop run ahead, through rings of buffers."""

    bars: tuple[Value, Value] | None = None  # full: copies have landed; empty: all warps have read

    def __init__(
        self,
        loop: ops.ForOp,
        main: int,
        copied: Sequence[ops.LocalAllocOp],
        start: int,
        num_warps: int,
        early: Sequence[Op],
    ):
        how = [(a.attrs["stage"], a.attrs["slots"], a.attrs["signal"]) for a in copied]
        for a, other in zip(copied, how, strict=True):
            require(other == how[0], a, "copies of one loop differ in stage, slots or signal")
        stage, self.slots, self.signal = how[0]
        self.loop, self.main, self.start, self.num_warps = loop, main, start, num_warps
        self.private, self.ahead = self.signal == "thread", main - stage
        self.streams = [_stream(a) for a in copied]
        self.position: int = self.streams[0].load.attrs["position"]
        try:
            self.slice = Ahead(loop, [v for s in self.streams for v in s.load.operands], early)
        except Declined:
            text = "the address of a copy that runs ahead is not pure"
            raise IRError(f"{loop.opcode}: {text}", loc=loop.loc) from None

    def run(self) -> ops.ForOp:
        before = Builder.before_op(self.loop)
        self.rings = [self._ring(before, s) for s in self.streams]
        if self.signal == "mbarrier":
            full = self._mbarriers(before, 32 * self.num_warps)
            self.bars = full, self._mbarriers(before, self.num_warps)
        ahead, index = self.slice.inits, self.loop.lb
        for number in range(self.ahead):  # copies for the first iterations
            ahead = self._copies(before, ahead, index, const32(before, number), {})
            index = before.emit(ops.AddOp(index, self.loop.step))
        _fill_late(self.loop)
        zero, last = const32(before, 0), const32(before, self.ahead)
        parities = [zero, zero] if self.bars is not None else []
        return self._body([index, zero, last, *parities, *ahead])

    def _mbarriers(self, b: Builder, arrivals: int) -> Value:
        row = b.emit(ops.LocalAllocOp(None, results=[row_of_mbarriers(self.slots)]))
        b.insert(ops.MbarrierInitOp([row], counts=(arrivals,)))
        return row

    def _ring(self, b: Builder, s: Stream) -> Value:
        t: SharedType = s.alloc.result.type
        ring = SharedType((self.slots, *t.shape), t.elem, t.layout)
        alloc = ops.LocalAllocOp(
            None, results=[ring], names=[s.alloc.result.name], private=self.private, loc=s.load.loc
        )
        if self.signal == "mbarrier":
            alloc.attrs["has_mbarriers"] = True
        return b.emit(alloc)

    def _copies(
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
        for s, ring in zip(self.streams, self.rings, strict=True):
            ptr = mapping.get(s.load.ptr, s.load.ptr)
            mask = None if s.load.mask is None else mapping.get(s.load.mask, s.load.mask)
            if not self.private:
                all_run = b.emit(ops.SplatOp(runs, results=[with_elem(ptr.type, int1)]))
                mask = all_run if mask is None else b.emit(ops.AndOp(mask, all_run))
            view = b.emit(ops.LocalIndexOp(ring, slot, **note))
            copy = ops.AsyncCopyOp(
                ptr, view, mask, self._fill(b, s.load, mapping), runs if self.private else None, private=self.private,
                cache=s.load.cache, eviction=s.load.eviction, loc=s.load.loc,
            )  # fmt: skip
            tokens.append(b.emit(copy))
        b.emit(ops.AsyncCommitOp(tokens))
        if self.bars is not None:
            b.insert(ops.AsyncCopyMbarrierArriveOp(self.bars[0], slot))
        return following

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
        parities, ahead = (ahead[:2], ahead[2:]) if self.bars is not None else ([], ahead)
        first, end = body.first, body.terminator
        assert first is not None
        at = self._first_of(self.position)
        self._wait(self._at(first, self.start), slot, last, parities)
        ahead = self._copies(self._at(at, self.position), ahead, index, last, {"slot": self.ahead})
        self._read(slot)
        position = [op.attrs["position"] for op in body if op.attrs.get("stage") == self.main][-1]
        b = self._at(end, position)
        if self.bars is None:
            following = [next_slot(b, x, self.slots) for x in (slot, last)]
        else:
            pairs = [
                advance(b, x, p, self.slots) for x, p in zip((slot, last), parities, strict=True)
            ]
            following = [v for values in zip(*pairs, strict=True) for v in values]
            arrive = ops.MbarrierArriveOp(self.bars[1], slot, after_mma=True)
            Placing(end, position, self._last_reader()).insert(arrive)
        following = [b.emit(ops.AddOp(index, loop.step)), *following]
        set_yields(loop.body, [*following, *ahead])
        behind_mmas(loop).emit(ops.AsyncWaitOp([], pending=0, private=self.private))
        return loop

    def _at(self, op: Op, position: int) -> Builder:
        """Return where ops of the main stage are emitted."""
        return Placing(op, position, self.main)

    def _wait(self, b: Builder, slot: Value, last: Value, parities: Sequence[Value]) -> None:
        """Wait for this iteration's copies, and for the buffer that will be filled."""
        if self.bars is None:
            b.emit(ops.AsyncWaitOp([], pending=self.ahead - 1, private=self.private))
            return
        full = ops.MbarrierWaitOp(self.bars[0], slot, parities[0], data=True, proxy=True)
        b.insert(full)
        wait_until_free(b, self.bars[1], last, parities[1])

    def _first_of(self, position: int) -> Op:
        """Return the first op in the text of a position, or of a later one."""
        return next(op for op in self.loop.body if op.attrs.get("position", -1) >= position)

    def _read(self, slot: Value) -> None:
        """Let readers see the buffer of their iteration."""
        for s, ring in zip(self.streams, self.rings, strict=True):
            view = self._at(s.alloc, self.start).emit(ops.LocalIndexOp(ring, slot, slot=0))
            s.alloc.replace_by([view])
            s.load.erase()

    def _last_reader(self) -> int:
        """Return the last stage that reads buffers."""
        return max(op.attrs["stage"] for op in self.loop.body if self._reads(op))

    def _reads(self, op: Op) -> bool:
        used = [v for inner in op.walk() for v in inner.operands if isinstance(v.type, SharedType)]
        return not isinstance(op, ops.SharedView) and any(buffer_of(v) in self.rings for v in used)


def _stream(alloc: ops.LocalAllocOp) -> Stream:
    load = alloc.init.op if alloc.init is not None else None
    assert isinstance(load, ops.LoadOp)
    return Stream(load, alloc)


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


def zero_of(elem: ElementType) -> Any:
    """Return zero as constants of the type represent it."""
    return 0.0 if elem.is_floating() else 0
