"""Lists for each op who reads and writes shared memory, through which proxy, and what completes the access.

There is one row for each op of GPU IR, as the lowering emits it; no rule asks which pass made an op or why. Sources
are sections of the PTX ISA manual, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tessera.analysis.synchronization import async_proxy, mbarriers, threads
from tessera.ir import Op
from tessera.ops import (
    AsyncCommitOp,
    AsyncCopyMbarrierArriveOp,
    AsyncCopyOp,
    AsyncWaitOp,
    AtomicCasOp,
    AtomicRmwOp,
    BarrierOp,
    ConvertLayoutOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    DotOp,
    GatherOp,
    HistogramOp,
    LocalAllocOp,
    LocalLoadOp,
    LocalStoreOp,
    MbarrierArriveExpectTxOp,
    MbarrierArriveOp,
    MbarrierInitOp,
    MbarrierWaitOp,
    PingPongOp,
    ReduceOp,
    ScanOp,
    TensorCopyOp,
    WarpBarrierOp,
    WgmmaOp,
    WgmmaWaitOp,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """What an op does to shared memory and to the order of other accesses, in words (`does`: its accesses, `proxy`,
    `done`: what completes them or what the op completes, `source`: section of the PTX ISA, by name) and as code
    (`run`). `scalars`: operands whose values `run` needs. `applies`: whether the rule holds for a given op."""

    does: str
    proxy: str
    done: str
    source: str
    run: Callable[..., Any]
    scalars: tuple[str, ...] = ()
    applies: Callable[[Op], bool] = threads.always


BARRIER = "barrier{.cta}"
MBARRIER = "mbarrier"
BULK = "cp.async.bulk.tensor"
WGMMA = "wgmma.mma_async"
SCRATCH = Rule(
    "all warps write scratch, meet, read it; conversions `within_warps`: each warp what it wrote itself", "generic",
    "its own barrier; the reads, when the warps meet next",
    BARRIER, threads.scratch, applies=threads.has_scratch,
)  # fmt: skip
ATOMIC = Rule(
    "a scalar that releases: all warps meet; then as scratch, for old values that are used", "generic",
    "its own barriers", BARRIER, threads.atomic, applies=threads.is_atomic,
)  # fmt: skip

RULES: dict[type[Op], Rule] = {
    BarrierOp: Rule(
        "all warps of the role know what each of them knew; with `proxy` each has fenced first", "-",
        "loads and stores of the warps before it", BARRIER, threads.barrier,
    ),
    WarpBarrierOp: Rule(
        "the threads of each warp know what each of them knew", "-", "accesses to global memory", "bar.warp.sync",
        threads.warp_barrier,
    ),
    LocalAllocOp: Rule(
        "with a value: all warps write", "generic", "when the warps meet", "st, stmatrix",
        threads.alloc, applies=threads.is_filled,
    ),
    LocalStoreOp: Rule(
        "all warps write", "generic", "when the warps meet or arrive", "st, stmatrix", threads.store
    ),
    LocalLoadOp: Rule(
        "all warps read", "generic",
        "when the warps meet or arrive; before the TMA unit writes there, a fence of the readers in between (it waits"
        " for loads in flight)", "ld, ldmatrix", threads.load,
    ),
    AsyncCopyOp: Rule(
        "each thread writes in the background", "generic", "the thread's wait for the group", "cp.async",
        threads.copy,
    ),
    AsyncCommitOp: Rule("closes the group", "-", "-", "cp.async.commit_group", threads.commit),
    AsyncWaitOp: Rule(
        "as `barrier`, but for `private`", "-", "the thread's copies, all but the latest groups",
        "cp.async.wait_group", threads.wait,
    ),
    MbarrierInitOp: Rule(
        "one thread writes and all warps meet; with `by_producer` the producer's thread writes", "generic",
        "its own barrier; with `by_producer` the barrier at which the roles begin", MBARRIER, mbarriers.init,
    ),
    MbarrierArriveExpectTxOp: Rule(
        "one arrival that announces bytes", "-", "-", "mbarrier.expect_tx", mbarriers.arrive_expect_tx, ("index",)
    ),
    AsyncCopyMbarrierArriveOp: Rule(
        "one arrival of each thread, when its copies have landed", "-", "its copies so far, for those who wait",
        "cp.async.mbarrier.arrive", mbarriers.arrive_after_copies, ("index",),
    ),
    MbarrierArriveOp: Rule(
        "one arrival of each warp or warpgroup; with `proxy` or `fence` each thread has fenced first", "-",
        "loads and stores of the arriving warps, and MMAs they waited for", MBARRIER, mbarriers.arrive,
        ("index", "condition"),
    ),
    MbarrierWaitOp: Rule(
        "waits for a phase; with `proxy` or `fence` a fence follows", "-",
        "what the arrivals of the phase hand over, and the copies whose bytes it counts", MBARRIER, mbarriers.wait,
        ("index", "parity"),
    ),
    PingPongOp: Rule("one warpgroup at a time goes on", "-", "nothing that memory depends on", BARRIER,
    threads.ping_pong), TensorCopyOp: Rule(
        "the TMA unit writes in the background", "async", "the phase of its barrier", BULK, async_proxy.copy, ("index",)
    ),
    DescriptorLoadOp: Rule(
        "one thread fences, the TMA unit writes scratch; all wait, read and meet", "async, then generic",
        "its own barriers", BULK, async_proxy.load,
    ),
    DescriptorStoreOp: Rule(
        "all warps write scratch, fence and meet; the TMA unit reads it in the background", "generic, then async",
        "the wait for its bulk group that stands before the bytes' next use in a store", "cp.async.bulk.wait_group",
        async_proxy.store,
    ),
    WgmmaOp: Rule(
        "the matrix unit reads in the background", "async", "the warpgroup's wait for the MMA", WGMMA,
        async_proxy.mma,
    ),
    WgmmaWaitOp: Rule(
        "-", "-", "the warpgroup's MMAs, all but the latest; their results", "wgmma.wait_group",
        async_proxy.mma_wait,
    ),
    AtomicRmwOp: ATOMIC,
    AtomicCasOp: ATOMIC,
    **dict.fromkeys((ConvertLayoutOp, ReduceOp, ScanOp, HistogramOp, GatherOp, DotOp), SCRATCH),
}  # fmt: skip
