"""`mbarrier`: phase counters in shared memory, at which threads and asynchronous copies arrive, and threads wait;
and turns of warpgroups by named barriers: number n + 1 lets warpgroup n go."""

from __future__ import annotations

from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.nvidia import primitives as p
from tessera.ir import Value
from tessera.ops import AsyncArriveOp, MbarrierArriveOp, MbarrierInitOp, MbarrierWaitOp, TurnOp

COUNTER_BYTES = 8
PAIR = 256  # threads of the warpgroup that lets another go, and of that one


def _address(fl: FunctionLowering, bars: Value, index: Value) -> str:
    step = fl.w.mul("i32", fl.scalar(index), str(COUNTER_BYTES))
    return fl.w.add("i32", fl.scalar(bars), step)


@lowers(MbarrierInitOp)
def _init(fl: FunctionLowering, op: MbarrierInitOp) -> None:
    w, start = fl.w, fl.scalar(op.bars)
    with w.when(w.pure(f"icmp eq i32 {fl.thread}, 0")):
        for i in range(op.bars.type.shape[0]):
            address = w.add("i32", start, str(i * COUNTER_BYTES))
            p.mbarrier_init(op.arrivals).emit(w, [address])
    fl.target.barrier(w)


@lowers(MbarrierArriveOp)
def _arrive(fl: FunctionLowering, op: MbarrierArriveOp) -> None:
    row = p.PRIMITIVES["mbarrier_arrive_of_warp"]
    row.emit(fl.w, [_address(fl, op.bars, op.index), fl.lane])


@lowers(AsyncArriveOp)
def _async_arrive(fl: FunctionLowering, op: AsyncArriveOp) -> None:
    row = p.PRIMITIVES["mbarrier_arrive_after_copies"]
    row.emit(fl.w, [_address(fl, op.bars, op.index)])


@lowers(MbarrierWaitOp)
def _wait(fl: FunctionLowering, op: MbarrierWaitOp) -> None:
    row = p.PRIMITIVES["mbarrier_wait"]
    row.emit(fl.w, [_address(fl, op.bars, op.index), fl.scalar(op.parity)])
    if op.data:
        fl.target.proxy_fence(fl.w)


@lowers(TurnOp)
def _turn(fl: FunctionLowering, op: TurnOp) -> None:
    w, warp, groups = fl.w, fl.warp, fl.num_warps // 4
    with w.hoist():
        mine = fl.target.shuffle_index(w, w.pure(f"lshr i32 {warp}, 2"), "0")
    if op.kind == "begin":
        p.group_barrier(PAIR).emit(w, [w.add("i32", mine, "1")])
    elif op.kind == "end":
        last = w.pure(f"icmp eq i32 {mine}, {groups - 1}")
        following = w.pure(f"select i1 {last}, i32 0, i32 {w.add('i32', mine, '1')}")
        p.group_barrier(PAIR, False).emit(w, [w.add("i32", following, "1")])
    else:  # the last one lets the first one go; the first one takes what the last one left
        stay, who = (False, groups - 1) if op.kind == "open" else (True, 0)
        p.barrier_of(who, 1, PAIR, stay).emit(w, [mine])
