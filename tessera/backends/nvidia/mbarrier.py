"""`mbarrier`: phase counters in shared memory, at which threads and asynchronous copies arrive, and threads wait;
and turns of warpgroups by named barriers: number n + 1 lets warpgroup n go."""

from __future__ import annotations

from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.ir import Value
from tessera.ops import AsyncArriveOp, MbarrierArriveOp, MbarrierInitOp, MbarrierWaitOp, TurnOp

COUNTER_BYTES = 8


def _address(fl: FunctionLowering, bars: Value, index: Value) -> str:
    step = fl.w.mul("i32", fl.scalar(index), str(COUNTER_BYTES))
    return fl.w.add("i32", fl.scalar(bars), step)


@lowers(MbarrierInitOp)
def _init(fl: FunctionLowering, op: MbarrierInitOp) -> None:
    w, start = fl.w, fl.scalar(op.bars)
    with w.when(w.pure(f"icmp eq i32 {fl.thread}, 0")):
        for i in range(op.bars.type.shape[0]):
            address = w.add("i32", start, str(i * COUNTER_BYTES))
            w.asm(f"mbarrier.init.shared::cta.b64 [$0], {op.arrivals};", "r", [f"i32 {address}"])
    fl.target.barrier(w)


@lowers(MbarrierArriveOp)
def _arrive(fl: FunctionLowering, op: MbarrierArriveOp) -> None:
    text = "{ .reg .pred p; setp.eq.u32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }"
    fl.w.asm(text, "r,r", [f"i32 {_address(fl, op.bars, op.index)}", f"i32 {fl.lane}"])


@lowers(AsyncArriveOp)
def _async_arrive(fl: FunctionLowering, op: AsyncArriveOp) -> None:
    text = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];"
    fl.w.asm(text, "r", [f"i32 {_address(fl, op.bars, op.index)}"])


@lowers(MbarrierWaitOp)
def _wait(fl: FunctionLowering, op: MbarrierWaitOp) -> None:
    text = "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @!p bra W; }"
    args = [f"i32 {_address(fl, op.bars, op.index)}", f"i32 {fl.scalar(op.parity)}"]
    fl.w.asm(text, "r,r", args)
    if op.data:
        fl.target.proxy_fence(fl.w)


@lowers(TurnOp)
def _turn(fl: FunctionLowering, op: TurnOp) -> None:
    w, warp, groups = fl.w, fl.warp, fl.num_warps // 4
    with w.hoist():
        mine = fl.target.shuffle_index(w, w.pure(f"lshr i32 {warp}, 2"), "0")
    if op.kind == "begin":
        w.asm("bar.sync $0, 256;", "r", [f"i32 {w.add('i32', mine, '1')}"])
    elif op.kind == "end":
        last = w.pure(f"icmp eq i32 {mine}, {groups - 1}")
        following = w.pure(f"select i1 {last}, i32 0, i32 {w.add('i32', mine, '1')}")
        w.asm("bar.arrive $0, 256;", "r", [f"i32 {w.add('i32', following, '1')}"])
    else:  # the last one lets the first one go; the first one takes what the last one left
        how, who = ("arrive", groups - 1) if op.kind == "open" else ("sync", 0)
        text = f"{{ .reg .pred p; setp.eq.u32 p, $0, {who}; @p bar.{how} 1, 256; }}"
        w.asm(text, "r", [f"i32 {mine}"])
