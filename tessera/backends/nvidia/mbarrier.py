"""Lowers the ops on mbarriers to the rows of `primitives.order`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tessera import ops
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.nvidia import primitives as p
from tessera.ir import Op, Value

MBARRIER_BYTES = 8  # of the object in shared memory (PTX)
WARPGROUP_THREADS = 128  # four warps


def single_thread(fl: FunctionLowering) -> AbstractContextManager[None]:
    """Return a context for code that one thread runs: the first one, or the only one."""
    return nullcontext() if fl.single else fl.w.when(first_thread(fl))


def first_thread(fl: FunctionLowering) -> str:
    thread = fl.thread
    with fl.w.hoist():
        return fl.w.pure(f"icmp eq i32 {thread}, 0")


def _producer_thread(fl: FunctionLowering) -> str:
    """Return whether this thread is the first of the producer's warps, which follow those of the consumers."""
    thread = fl.thread
    with fl.w.hoist():
        return fl.w.pure(f"icmp eq i32 {thread}, {32 * fl.num_warps}")


def mbarrier_address(fl: FunctionLowering, bars: Value, index: Value) -> str:
    w = fl.w
    return w.add("i32", fl.scalar(bars), w.mul("i32", fl.scalar(index), str(MBARRIER_BYTES)))


def spin(fl: FunctionLowering, address: str, parity: str) -> None:
    """Wait in a loop of blocks; each try lets the hardware suspend the thread for a while."""
    w = fl.w
    again, done = w.label("wait"), w.label("arrived")
    w.branch(again)
    w.start(again)
    ended = w.emit(f"icmp ne i32 {p.emit_primitive(fl.w, 'mbarrier_try', address, parity)}, 0")
    w.branch_if(ended, done, again)
    w.start(done)


@lowers(ops.MbarrierInitOp)
def _init(fl: FunctionLowering, op: ops.MbarrierInitOp) -> None:
    w = fl.w
    if op.by_producer:
        with w.when(_producer_thread(fl)):
            for number in range(fl.tensor_maps):  # so that the first copies find them in the cache
                p.emit_primitive(fl.w, "prefetch_map", f"%map{number}")
            _init_rows(fl, op)
            p.emit_primitive(fl.w, "mbarrier_fence")
    else:
        with w.when(w.pure(f"icmp eq i32 {fl.thread}, 0")):
            _init_rows(fl, op)
        fl.target.barrier(w)


def _init_rows(fl: FunctionLowering, op: ops.MbarrierInitOp) -> None:
    w = fl.w
    for bars, count in zip(op.bars, op.counts, strict=True):
        for i in range(bars.type.shape[0]):
            address = w.add("i32", fl.scalar(bars), str(i * MBARRIER_BYTES))
            p.mbarrier_init(count).emit(w, [address])


@lowers(ops.MbarrierArriveExpectTxOp)
def _expect_tx(fl: FunctionLowering, op: ops.MbarrierArriveExpectTxOp) -> None:
    with single_thread(fl):
        p.mbarrier_expect(op.bytes).emit(fl.w, [mbarrier_address(fl, op.bars, op.index)])


@lowers(ops.AsyncCopyMbarrierArriveOp)
def _arrive_after_copies(fl: FunctionLowering, op: ops.AsyncCopyMbarrierArriveOp) -> None:
    p.emit_primitive(fl.w, "mbarrier_arrive_after_copies", mbarrier_address(fl, op.bars, op.index))


@lowers(ops.MbarrierWaitOp)
def _wait(fl: FunctionLowering, op: ops.MbarrierWaitOp) -> None:
    address, parity = mbarrier_address(fl, op.bars, op.index), fl.scalar(op.parity)
    if _in_role(op):
        spin(fl, address, parity)
    else:  # one statement, which leaves a pipelined loop a single block
        p.emit_primitive(fl.w, "mbarrier_wait", address, parity)
    _fence(fl, op)


def _in_role(op: Op) -> bool:
    """Whether the op is in a region of a `warp_specialize`."""
    return any(isinstance(above, ops.WarpSpecializeOp) for above in op.ancestors())


def _fence(fl: FunctionLowering, op: ops.MbarrierArriveOp | ops.MbarrierWaitOp) -> None:
    if op.fence:
        p.emit_primitive(fl.w, "proxy_fence_all")
    elif op.proxy:
        fl.target.proxy_fence(fl.w)


@lowers(ops.MbarrierArriveOp)
def _arrive(fl: FunctionLowering, op: ops.MbarrierArriveOp) -> None:
    _await_reads(fl, op)
    _fence(fl, op)
    if op.after_mma and op.condition is None and op.ctas == 1 and not op.groups:
        address = mbarrier_address(fl, op.bars, op.index)
        p.emit_primitive(fl.w, "mbarrier_arrive_of_warp", address, fl.lane)
    else:
        _arrive_if(fl, op)


def _arrive_if(fl: FunctionLowering, op: ops.MbarrierArriveOp) -> None:
    """Let one thread of each warp or warpgroup arrive, for each CTA to notify."""
    w, thread = fl.w, fl.thread
    with w.hoist():
        lanes = (WARPGROUP_THREADS if op.groups else 32) - 1
        number = w.pure(f"and i32 {thread}, {lanes}")
        chosen = w.pure(f"icmp ult i32 {number}, {op.ctas}")
    if not (op.groups or op.after_mma):
        p.emit_primitive(fl.w, "warp_sync")  # lanes that read on their own are done, too
    if op.condition is not None:
        chosen = w.and_("i1", chosen, fl.scalar(op.condition))
    with w.when(chosen):
        address = mbarrier_address(fl, op.bars, op.index)
        if op.ctas > 1:
            p.emit_primitive(fl.w, "mbarrier_arrive_in", address, number)
        else:
            p.emit_primitive(fl.w, "mbarrier_arrive", address)


def _await_reads(fl: FunctionLowering, op: ops.MbarrierArriveOp) -> None:
    """Wait until tiles that were read from shared memory are in registers."""
    w = fl.w
    parts = [_low_32_bits(fl, *came) for v in op.after for came in fl.readers[v].came]
    if parts:
        both = parts[0]
        for part in parts[1:]:
            both = w.pure(f"xor i32 {both}, {part}")
        p.emit_primitive(fl.w, "await_word", both, fl.scalar(op.bars))


def _low_32_bits(fl: FunctionLowering, type: str, name: str) -> str:
    """Return 32 bits that depend on an LLVM value."""
    w = fl.w
    bits = {"half": 16, "bfloat": 16, "float": 32, "double": 64}.get(type)
    if bits is not None:
        type, name = f"i{bits}", w.pure(f"bitcast {type} {name} to i{bits}")
    if type == "i32":
        return name
    return w.pure(f"{'trunc' if type == 'i64' else 'zext'} {type} {name} to i32")
