"""Defines ops on mbarriers: objects in shared memory that count arrivals and transferred bytes (PTX ISA, "mbarrier").

An mbarrier has 64 bits. It runs through phases: a phase ends when all pending arrivals have occurred and all announced
bytes (its tx-count) have been copied; the next phase begins at once. Waiters identify a phase by its parity, which is 0
for the first one."""

from __future__ import annotations

from tessera.dtypes import int1, int32, int64
from tessera.ir import Effect, Op, SharedType, Value, attr, operand, require

__all__ = [
    "AsyncCopyMbarrierArriveOp", "MbarrierArriveExpectTxOp", "MbarrierArriveOp", "MbarrierInitOp",
    "MbarrierWaitOp",
]  # fmt: skip


def require_mbarriers(op: Op, bars: Value, index: Value | None = None) -> None:
    """Raise the verifier's error unless `bars` is a row of mbarriers, and `index` a possible index."""
    t = bars.type
    ok = isinstance(t, SharedType) and t.elem == int64 and len(t.shape) == 1
    require(ok, op, "the barriers are no row of int64 in shared memory")
    require(index is None or index.type == int32, op, "the barrier's number is not int32")


class MbarrierInitOp(Op, opcode="mbarrier_init", effects=Effect.WRITE | Effect.SYNC):
    """Initialise mbarriers in phase 0 (`mbarrier.init`): each phase of those in row `bars[i]` ends after `counts[i]`
    arrivals.

    Thread 0 initialises them, and a barrier of the CTA follows. With `by_producer`, the thread that runs the producer
    of the following `warp_specialize` does, and the start of that op makes them visible to the other warps."""

    bars: tuple[Value, ...] = operand(variadic=True)
    counts: tuple[int, ...] = attr()
    by_producer: bool = attr(default=False)

    def verify(self) -> None:
        for row in self.bars:
            require_mbarriers(self, row)
        require(len(self.counts) == len(self.bars), self, "one count a row is needed")


class MbarrierArriveExpectTxOp(Op, opcode="mbarrier_arrive_expect_tx", effects=Effect.WRITE):
    """One arrival at mbarrier `index` that announces `bytes`: the phase ends only after copies have brought as many
    more (`mbarrier.arrive.expect_tx`)."""

    bars: Value = operand()
    index: Value = operand()
    bytes: int = attr()

    def verify(self) -> None:
        require_mbarriers(self, self.bars, self.index)


class AsyncCopyMbarrierArriveOp(
    Op, opcode="async_copy_mbarrier_arrive", effects=Effect.WRITE | Effect.SYNC
):
    """One arrival of each thread at mbarrier `index`, when its earlier asynchronous copies have landed
    (`cp.async.mbarrier.arrive.noinc`)."""

    bars: Value = operand()
    index: Value = operand()

    def verify(self) -> None:
        require_mbarriers(self, self.bars, self.index)


class MbarrierArriveOp(Op, opcode="mbarrier_arrive", effects=Effect.WRITE | Effect.SYNC):
    """Arrive at mbarrier `index` if `condition`: one arrival of each warp, or with `groups` of each warpgroup, at the
    mbarrier of each of the cluster's `ctas` (`mbarrier.arrive`). It releases what the warps did before to the waiters.

    `released`: views of shared memory that the arriving warps no longer use. `after_mma`: these are only read by
    warpgroup MMAs, all of which have been waited for, so that the lanes of a warp need not synchronise first. With
    `proxy` a `fence.proxy.async` for shared memory comes first: MMAs then see what the warps wrote, and what they read
    of `released` is read before a tensor copy writes there. With `fence` that fence covers global memory, too. No
    thread arrives before the tiles `after`, loaded from `released`, are in registers: these loads need no fence."""

    bars: Value = operand()
    index: Value = operand()
    condition: Value | None = operand(optional=True)
    released: tuple[Value, ...] = operand(variadic=True)
    after: tuple[Value, ...] = operand(variadic=True)
    groups: bool = attr(default=False)
    ctas: int = attr(default=1)
    after_mma: bool = attr(default=False)
    proxy: bool = attr(default=False)
    fence: bool = attr(default=False)

    def verify(self) -> None:
        require_mbarriers(self, self.bars, self.index)
        ok = self.condition is None or self.condition.type == int1
        require(ok, self, "the condition is not int1")


class MbarrierWaitOp(Op, opcode="mbarrier_wait", effects=Effect.READ | Effect.WRITE | Effect.SYNC):
    """Wait until the phase of mbarrier `index` with this `parity` (int32) has ended (`mbarrier.try_wait.parity`).
    The phase before the first one, of parity 1, counts as ended.

    `data`: the wait is for tiles that later ops read; otherwise it is for buffers that may be filled again. With
    `proxy` a `fence.proxy.async` for shared memory follows, with `fence` one that covers global memory, too: later
    tensor copies then see what happened before arrivals with such a fence."""

    bars: Value = operand()
    index: Value = operand()
    parity: Value = operand()
    data: bool = attr(default=False)
    proxy: bool = attr(default=False)
    fence: bool = attr(default=False)

    def verify(self) -> None:
        require_mbarriers(self, self.bars, self.index)
        require(self.parity.type == int32, self, "the parity is not int32")
