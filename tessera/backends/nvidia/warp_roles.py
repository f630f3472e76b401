"""Lowers warp specialization: the branch to the warps' roles, and the ping-pong of warpgroups by named barriers."""

from __future__ import annotations

from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.nvidia import primitives as p
from tessera.ops import PingPongOp, WarpSpecializeOp

CONSUMER_BARRIER = 8  # named barrier of the consumers, without the producer
START_BARRIER = 13  # at which consumers wait for the producer's mbarriers
PAIR = 256  # threads of a warpgroup and of the one that it lets go


@lowers(WarpSpecializeOp)
def _roles(fl: FunctionLowering, op: WarpSpecializeOp) -> None:
    """Lower the roles. The other roles' warps come last, so that the consumers' threads keep their numbers. The
    producer has initialised the mbarriers, for which the others wait."""
    w, target = fl.w, fl.target
    threads = 32 * fl.num_warps
    everybody = threads + 32 * (op.warps + op.transpose_warps)
    thread = fl.thread
    group = target.shuffle_index(w, w.pure(f"lshr i32 {thread}, 5"), "0")  # uniform in a warp
    producer, consumers, after = w.label("producer"), w.label("consumers"), w.label("together")
    if op.ctas > 1:  # other CTAs copy to our memory
        p.emit_primitive(fl.w, "cluster_barrier")
    w.branch_if(w.pure(f"icmp uge i32 {group}, {fl.num_warps}"), producer, consumers)
    # The CTA has the registers of its launch: with a limit, or with fewer than all, a request for more never ends.
    given = fl.has_mma and not fl.extra_attributes
    small, large, transpose_registers = op.registers if given else (0, 0, 0)
    with w.scope():
        w.start(consumers)
        if op.ctas == 1:
            p.named_barrier_sync(START_BARRIER, everybody).emit(w, [])
        if large:
            p.set_registers(True, large).emit(w, [])
        target.named_barrier = (CONSUMER_BARRIER, threads)  # type: ignore[attr-defined]
        fl.lower_block(op.consumers)
        target.named_barrier = None  # type: ignore[attr-defined]
        w.branch(after)
    if op.transpose_warps:
        transpose, others = w.label("transpose"), w.label("others")
        w.start(producer)
        w.branch_if(w.pure(f"icmp uge i32 {group}, {fl.num_warps + op.warps}"), transpose, others)
        with w.scope():
            w.start(transpose)
            if op.ctas == 1:
                p.named_barrier_sync(START_BARRIER, everybody).emit(w, [])
            if transpose_registers:
                p.set_registers(False, transpose_registers).emit(w, [])
            with fl.role_of_warps(op.transpose_warps):
                fl.lower_block(op.transpose)
            w.branch(after)
        producer = others
    with w.scope():
        w.start(producer)
        if op.ctas == 1:
            p.named_barrier_arrive(START_BARRIER, everybody).emit(w, [])
        if small:
            p.set_registers(False, small).emit(w, [])
        first = w.pure(f"icmp eq i32 {group}, {fl.num_warps}")
        # ptxas knows that an elected thread is a single one; otherwise it makes each copy a loop over threads.
        with w.when(first), w.when(w.pure(f"icmp ne i32 {p.emit_primitive(fl.w, 'elect')}, 0")):
            fl.single = True
            fl.lower_block(op.producer)
            fl.single = False
        w.branch(after)
    w.start(after)


@lowers(PingPongOp)
def _ping_pong(fl: FunctionLowering, op: PingPongOp) -> None:
    w, warp, groups = fl.w, fl.warp, fl.num_warps // 4
    with w.hoist():
        mine = fl.target.shuffle_index(w, w.pure(f"lshr i32 {warp}, 2"), "0")
    if op.kind == "begin":
        p.group_barrier(PAIR).emit(w, [w.add("i32", mine, "1")])
    elif op.kind == "end":
        last = w.pure(f"icmp eq i32 {mine}, {groups - 1}")
        following = w.pure(f"select i1 {last}, i32 0, i32 {w.add('i32', mine, '1')}")
        p.group_barrier(PAIR, False).emit(w, [w.add("i32", following, "1")])
    else:  # the last one signals the first, which takes what the last one left
        stay, who = (False, groups - 1) if op.kind == "open" else (True, 0)
        p.barrier_of(who, 1, PAIR, stay).emit(w, [mine])
