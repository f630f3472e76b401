"""Inserts barriers where threads could race: a write and another access to the same bytes, in shared memory or, if two
threads may have them, in global memory (global_order.py). If those are of one warp, its threads meet alone.

The pass walks through the program with the set of accesses since the last barrier. Before an op that conflicts
with one of them it inserts a barrier. Loops are walked until the set at their entry no longer grows, and branches
are joined.

Rings: in iteration i of its loop, a `local_index` with attribute `slot` = s names buffer (i + s) mod stages. Two
accesses of one iteration with different s touch different bytes; from one iteration to the next, s becomes s - 1. So
with three stages,

    async_wait                  a barrier
    local_load   slot 0         buffer i
    async_copy   slot 2         buffer i + 2 = i - 1 (mod 3): read last in the iteration before, before the wait

needs no other barrier.

Instructions of warpgroups and the TMA unit access shared memory through the asynchronous proxy, stores and other
copies through the generic one. Where the former may follow, barriers get the attribute `proxy`: each thread fences
its writes before it arrives. Ops that exchange data through scratch synchronise threads, too, but do not fence.

A conversion `within_warps` synchronises no more than the threads of each warp. Its warps keep to bytes of their own, so
that it needs no barrier against itself in the iteration before, or against an equal one with the same scratch.

Where what stands in a loop must come after accesses to global memory in front of it, the barrier stands in front of the
loop, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tessera import ops
from tessera.analysis.allocation import is_in_loop
from tessera.analysis.scratch import staging
from tessera.ir import Block, Module, Op, SharedType, Value, pass_
from tessera.passes.gpu_movement.global_order import GlobalTouch, global_touches, meets_before
from tessera.passes.neutral.fold import constant_of

THROUGH_DESCRIPTORS = (ops.WgmmaOp, ops.TensorCopyOp, ops.DescriptorLoadOp, ops.DescriptorStoreOp)


@dataclass(frozen=True, slots=True)
class Touch:
    """An access to the bytes low..high-1. `ring`: (loop, slot, stages) of a ring's buffer in that loop's iteration.
    `own_barriers`: the ring, if its users synchronise by themselves. `across`: by an instruction that uses the
    asynchronous proxy. `split`: layouts between which each warp exchanges elements in its part of the bytes. `met`:
    threads have synchronised since, but without a fence after their own accesses."""

    low: int
    high: int
    write: bool
    ring: tuple[Op, int, int] | None = None
    own_barriers: Op | None = None
    across: bool = False
    split: tuple[object, ...] | None = None
    met: bool = False

    def conflicts(self, other: object) -> bool:
        """Whether a barrier must be placed between this access and the earlier access `other`."""
        if not isinstance(other, Touch) or (other.met and not self.across):
            return False
        if not (self.write or other.write) or self.low >= other.high or other.low >= self.high:
            return False
        if self.own_barriers is not None and self.own_barriers is other.own_barriers:
            return False
        same_bytes = (self.low, self.high) == (other.low, other.high)
        if self.split is not None and self.split == other.split and same_bytes:
            return False
        if self.ring is None or other.ring is None or self.ring[0] is not other.ring[0]:
            return True
        return not same_bytes or (self.ring[1] - other.ring[1]) % self.ring[2] == 0


State = frozenset[Touch | GlobalTouch]


@pass_("barriers")
def barriers(module: Module) -> None:
    """Insert barriers where threads could race in shared or global memory.

    Takes: GPU IR with shared memory allocated.
    Gives: `barrier` in front of each access that conflicts with an earlier one since threads last met, with `proxy`
        where an instruction that reads through descriptors may follow, `global_memory` where it orders only that.
    Needs: any GPU.
    Raises: nothing.
    Example: `write_then_read` of tests/filecheck/barriers.gir
        local_alloc; local_load → local_alloc; barrier; local_load
    Compare: the membar analysis of Triton; PTX ISA, `bar.sync` and "Async proxy".
    """
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        _Barriers(module, func).block(func.body, frozenset())
        _show_writes(func.body, False)


def _show_writes(block: Block, follows: bool) -> bool:
    """Mark the barriers after which an instruction uses the asynchronous proxy, in the block or, if `follows`, after
    it. Return whether one follows the block's start. What a producer copies has been read by then, or is read by such
    an instruction that follows."""
    op = block.last
    while op is not None:
        if isinstance(op, ops.BarrierOp | ops.AsyncWaitOp) and follows:
            op.attrs["proxy"] = True
        elif isinstance(op, ops.WarpSpecializeOp):
            follows = _show_writes(op.consumers, follows)
            _show_writes(op.producer, True)
        elif op.regions:
            around = isinstance(op, ops.Loop) and _sees(op)
            found = [_show_writes(b, follows or around) for b in op.regions]
            follows = follows or any(found)
        follows = follows or isinstance(op, THROUGH_DESCRIPTORS)
        op = op.prev
    return follows


def _sees(op: Op) -> bool:
    return any(isinstance(x, THROUGH_DESCRIPTORS) for x in op.walk())


class _Barriers:
    def __init__(self, module: Module, func: ops.FuncOp):
        self.module = module
        self.accesses = global_touches(func)
        self.is_one_warp: bool = module.attrs["num_warps"] == 1

    def block(self, block: Block, state: State) -> State:
        for op in block:
            if self.accesses and isinstance(op, ops.Loop | ops.WarpSpecializeOp):
                inside = [t for x in op.walk() for t in self.accesses.get(x, ())]
                state = self._ordered(op, inside, state)
            if isinstance(op, ops.ForOp):
                state = self._for(op, state)
            elif isinstance(op, ops.WhileOp):
                state = self._while(op, state)
            elif isinstance(op, ops.IfOp):
                state = self.block(op.then, state) | self.block(op.orelse, state)
            elif isinstance(
                op, ops.WarpSpecializeOp
            ):  # the producer synchronises with the others by mbarriers
                state = self.block(op.consumers, frozenset(globally(state)))
            else:
                state = self._op(op, state)
        return state

    def _for(self, op: ops.ForOp, state: State) -> State:
        entry = state
        while True:
            out = self.block(op.body, entry)
            grown = entry | {_next_iteration(t, op) for t in out}
            if grown == entry:
                return state | {_after(t, op) for t in out}
            entry = grown

    def _while(self, op: ops.WhileOp, state: State) -> State:
        entry = state
        while True:
            checked = self.block(op.before, entry)
            grown = entry | {_next_iteration(t, op) for t in self.block(op.after, checked)}
            if grown == entry:
                return checked
            entry = grown

    def _op(self, op: Op, state: State) -> State:
        if isinstance(op, ops.AsyncWaitOp) and op.private:
            return state
        if isinstance(op, ops.BarrierOp | ops.AsyncWaitOp):
            return frozenset()
        if isinstance(op, ops.WarpBarrierOp):
            return self._met(state)
        across = isinstance(op, THROUGH_DESCRIPTORS)
        touches = [replace(t, across=True) if across else t for t in self._touches(op)]
        if isinstance(op, ops.DescriptorStoreOp) and self._meets(op) and not touches:
            return frozenset()
        if meets_before(op):
            state -= globally(state)
        accesses = self.accesses.get(op, [])
        if not touches and not accesses:
            return state
        state = self._ordered(op, [*touches, *accesses], state)
        if isinstance(op, ops.DescriptorStoreOp):  # its bytes stay its own to the end
            return frozenset() if self._meets(op) else state
        if "scratch" in op.attrs and "within_warps" not in op.attrs:
            # The op synchronises all threads between writing and reading.
            # An access through the other proxy may then still overlap a read.
            unseen = [replace(t, met=True) for t in state if isinstance(t, Touch) and not t.across]
            return frozenset([*[replace(t, write=False, across=False) for t in touches], *unseen])
        return state | {*touches, *accesses}

    def _ordered(self, op: Op, touches: Sequence[Touch | GlobalTouch], state: State) -> State:
        """Insert a barrier in front of an op if its accesses need one; return which have not met a barrier since."""
        found = [(t, old) for t in touches for old in state if t.conflicts(old)]
        if not found:
            return state
        assert op.parent is not None
        if all(self._is_by_one_warp(t, old) for t, old in found):
            op.parent.insert_before(op, ops.WarpBarrierOp(loc=op.loc))
            return self._met(state)
        barrier = ops.BarrierOp(loc=op.loc)
        op.parent.insert_before(op, barrier)
        if all(isinstance(t, GlobalTouch) for t, _ in found):
            barrier.attrs["global_memory"] = True
        return frozenset()

    def _met(self, state: State) -> State:
        """Return which accesses have not met a barrier after the threads of each warp have met."""
        met = globally(state)
        if self.is_one_warp:
            return state - met
        return (state - met) | {replace(t, met=True) for t in met}

    def _is_by_one_warp(self, t: Touch | GlobalTouch, old: Touch | GlobalTouch) -> bool:
        if not isinstance(t, GlobalTouch) or not isinstance(old, GlobalTouch):
            return False
        return self.is_one_warp or t.is_by_one_warp(old)

    def _meets(self, op: ops.DescriptorStoreOp) -> bool:
        """Whether a store synchronises all threads, not only those of each group."""
        return staging(op, self.module.attrs["num_warps"]).groups == 0

    def _touches(self, op: Op) -> Iterable[Touch]:
        if isinstance(op, ops.DescriptorStoreOp) and is_in_loop(op):
            return  # its own bytes: it synchronises before it writes any that it shares
        if "scratch" in op.attrs:
            low: int = op.attrs["scratch"]
            split: tuple[object, ...] | None = None
            if "within_warps" in op.attrs:
                split = (op.operands[0].type, op.results[0].type)
            yield Touch(low, low + op.attrs["scratch_bytes"], True, split=split)
        elif isinstance(op, ops.LocalAllocOp):
            if op.init is not None:
                yield _touch(op.result, True)
        elif isinstance(op, ops.LocalLoadOp):
            yield _touch(op.shared, False)
        elif isinstance(op, ops.WgmmaOp):
            for v in (op.a, op.b):
                if isinstance(v.type, SharedType):
                    yield _touch(v, False)
        elif isinstance(op, ops.WgmmaWaitOp):  # until here the MMAs may have read
            for v in op.held:
                if isinstance(v.type, SharedType):
                    yield _touch(v, False)
        elif isinstance(op, ops.MbarrierInitOp) and not op.by_producer:
            for row in op.bars:
                yield _touch(row, True)
        elif isinstance(op, ops.LocalStoreOp | ops.AsyncCopyOp | ops.TensorCopyOp):
            yield _touch(op.shared, True)
        elif isinstance(op, ops.CallOp):
            low, high = self.module.function(op.callee).attrs.get("shared_range", (0, 0))
            yield Touch(low, high, True)


def _touch(view: Value, write: bool) -> Touch:
    """Return the bytes of a view. A ring's buffer with a constant index is only itself; others are the whole ring,
    distinguished by their slot."""
    ring: tuple[Op, int, int] | None = None
    buffer: int | None = None
    op = view.op
    while isinstance(op, ops.SharedView):
        source = op.operands[0]
        if isinstance(op, ops.LocalIndexOp):
            stages = source.type.shape[0]
            buffer = constant_of(op.index)
            loop = next((x for x in op.ancestors() if isinstance(x, ops.ForOp)), None)
            if "slot" in op.attrs and loop is not None and buffer is None:
                ring = (loop, op.attrs["slot"] % stages, stages)
        op = source.op
    assert isinstance(op, ops.LocalAllocOp)
    low, high = op.offset, op.offset + op.bytes
    if buffer is not None:
        size = op.bytes // op.result.type.shape[0]
        low, high = low + buffer * size, low + (buffer + 1) * size
    return Touch(
        low, high, write, ring, op if op.private or op.attrs.get("has_mbarriers") else None
    )


def globally(state: State) -> set[GlobalTouch]:
    return {t for t in state if isinstance(t, GlobalTouch)}


def _after(t: Touch | GlobalTouch, loop: ops.ForOp) -> Touch | GlobalTouch:
    if isinstance(t, GlobalTouch) or t.ring is None or t.ring[0] is not loop:
        return t
    return replace(t, ring=None)


def _next_iteration(t: Touch | GlobalTouch, loop: ops.Loop) -> Touch | GlobalTouch:
    if isinstance(t, GlobalTouch):
        return t.next_iteration(loop)
    if t.ring is None or t.ring[0] is not loop:
        return t
    return replace(t, ring=(loop, (t.ring[1] - 1) % t.ring[2], t.ring[2]))
