"""Defines ops on mbarriers: objects in shared memory that count arrivals and transferred bytes (PTX ISA, "mbarrier").

An mbarrier has 64 bits. It runs through phases: a phase ends when the pending arrivals and the announced bytes (its
tx-count) have both come, and the next phase begins at once. Waiters name a phase by its parity, which is 0 for the
first."""

from __future__ import annotations

from tessera.dtypes import int1, int32, int64
from tessera.ir import Effect, Op, SharedType, Value, attr, operand, require

__all__ = [
    "AsyncCopyMbarrierArriveOp", "MbarrierArriveExpectTxOp", "MbarrierArriveOp", "MbarrierInitOp",
    "MbarrierWaitOp",
]  # fmt: skip


def require_mbarriers(op: Op, bars: Value, index: Value | None = None) -> None:
    """The verifier's error if `bars` is no row of mbarriers, or `index` is no number of one."""
    t = bars.type
    ok = isinstance(t, SharedType) and t.elem == int64 and len(t.shape) == 1
    require(ok, op, "the barriers are no row of int64 in shared memory")
    require(index is None or index.type == int32, op, "the barrier's number is not int32")


class MbarrierInitOp(Op, opcode="mbarrier_init", effects=Effect.WRITE | Effect.SYNC):
    """Initialise mbarriers in phase 0 (`mbarrier.init`): each phase of those in row `bars[i]` ends with `counts[i]`
    arrivals.

    Thread 0 initialises them and a barrier of the CTA follows. With `by_producer` the thread that runs the producer of
    the `warp_specialize` behind does, and the start of that op lets the other warps see it."""

    bars: tuple[Value, ...] = operand(variadic=True)
    counts: tuple[int, ...] = attr()
    by_producer: bool = attr(default=False)

    def verify(self) -> None:
        for row in self.bars:
            require_mbarriers(self, row)
        require(len(self.counts) == len(self.bars), self, "one count a row is needed")


class MbarrierArriveExpectTxOp(Op, opcode="mbarrier_arrive_expect_tx", effects=Effect.WRITE):
    """One arrival at mbarrier `index`, whose phase then ends only when copies have brought `bytes` more
    (`mbarrier.arrive.expect_tx`)."""

    bars: Value = operand()
    index: Value = operand()
    bytes: int = attr()

    def verify(self) -> None:
        require_mbarriers(self, self.bars, self.index)


class AsyncCopyMbarrierArriveOp(
    Op, opcode="async_copy_mbarrier_arrive", effects=Effect.WRITE | Effect.SYNC
):
    """One arrival of each thread at mbarrier `index`, when its asynchronous copies so far have landed
    (`cp.async.mbarrier.arrive.noinc`)."""

    bars: Value = operand()
    index: Value = operand()

    def verify(self) -> None:
        require_mbarriers(self, self.bars, self.index)


class MbarrierArriveOp(Op, opcode="mbarrier_arrive", effects=Effect.WRITE | Effect.SYNC):
    """Arrive at mbarrier `index` if `condition`: one arrival for each warp, or with `groups` for each warpgroup, at the
    barrier of each of the cluster's `ctas` (`mbarrier.arrive`). What the warps did before is done for who waits.

    `released`: views of shared memory with which the arriving warps are done. `after_mma`: only warpgroup MMAs, all of
    which have been waited for, read what is given back, so the lanes of a warp need not come together first. With
    `proxy` a `fence.proxy.async` for shared memory precedes: MMAs see what the warps wrote, and what they read of
    `released` is read before a tensor copy writes there. With `fence` that fence is for global memory, too. Nobody
    arrives before the tiles `after`, read from `released`, are in registers: then they need no fence."""

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
    """Wait until the phase of mbarrier `index` that has this `parity` (int32) has ended (`mbarrier.try_wait.parity`).
    The phase before the first one, of parity 1, counts as ended.

    `data`: tiles have come that ops behind the wait read, otherwise buffers are free to be filled again. With `proxy` a
    `fence.proxy.async` for shared memory follows, with `fence` one for global memory, too: tensor copies that come
    later see what those who arrived with one did."""

    bars: Value = operand()
    index: Value = operand()
    parity: Value = operand()
    data: bool = attr(default=False)
    proxy: bool = attr(default=False)
    fence: bool = attr(default=False)

    def verify(self) -> None:
        require_mbarriers(self, self.bars, self.index)
        require(self.parity.type == int32, self, "the parity is not int32")
