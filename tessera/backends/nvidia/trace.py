"""Lowers the ops of traced builds: the lane that records finds its warp's place, and each record is one statement.

Records make no basic blocks and change no register of the program, so that pipelines keep their form. Each reads the
clock and stores it; those of a run share the address of the first."""

from __future__ import annotations

from tessera import ops
from tessera.backends.gpu.lowering import FunctionLowering, lowers
from tessera.backends.nvidia import primitives as p


@lowers(ops.TraceBeginOp)
def _begin(fl: FunctionLowering, op: ops.TraceBeginOp) -> None:
    w, target = fl.w, fl.target
    thread = target.thread_index(w)
    first = "true" if fl.single else w.pure(f"icmp eq i32 {w.pure(f'and i32 {thread}, 31')}, 0")
    cta = _cta(fl)
    recorded = w.and_("i1", first, w.pure(f"icmp ult i32 {cta}, {fl.scalar(op.ctas)}"))
    warp = w.add("i32", w.mul("i32", cta, str(op.warps)), w.pure(f"lshr i32 {thread}, 5"))
    ring = w.mul("i32", fl.scalar(op.mask), str(8 * ops.TRACE_UNIT))
    fixed = 8 * (ops.TRACE_HEADER + ops.TRACE_UNIT + ops.TRACE_BEHIND)
    size = w.pure(f"zext i32 {w.add('i32', ring, str(fixed))} to i64")
    offset = w.pure(f"mul i64 {w.pure(f'zext i32 {warp} to i64')}, {size}")
    address = w.gep(fl.scalar(op.buffer), offset, 0)
    place = w.pure(f"select i1 {recorded}, ptr addrspace(1) {address}, ptr addrspace(1) null")
    p.trace_begin(op.tag).emit(w, [place])
    fl.set(op.result, [place])


def _cta(fl: FunctionLowering) -> str:
    """Return the number of this CTA in the grid, x first; the CTAs of a cluster are neighbours."""
    w, target = fl.w, fl.target
    x, y, z = (target.program_id(w, axis) for axis in range(3))
    row = w.add("i32", w.mul("i32", z, target.num_programs(w, 1)), y)
    program = w.add("i32", w.mul("i32", row, target.num_programs(w, 0)), x)
    size: int = fl.module.attrs.get("cluster", 1)
    if size == 1:
        return program
    return w.add("i32", w.mul("i32", program, str(size)), target.cta_rank(w))


@lowers(ops.TraceRecordOp)
def _record(fl: FunctionLowering, op: ops.TraceRecordOp) -> None:
    w, place = fl.w, fl.scalar(op.place)
    slot = w.pure(f"zext i32 {fl.scalar(op.slot)} to i64")
    run = w.gep(place, w.pure(f"shl i64 {slot}, {(8 * ops.TRACE_UNIT).bit_length() - 1}"), 0)
    clock = fl.scalar(op.clock) if op.clock is not None else fl.target.special_register(w, "clock")
    p.trace_record(op.head, op.half).emit(w, [place, run, clock])


@lowers(ops.TraceEndOp)
def _end(fl: FunctionLowering, op: ops.TraceEndOp) -> None:
    p.emit_primitive(
        fl.w, "trace_end", fl.scalar(op.place), fl.scalar(op.count), fl.scalar(op.units)
    )
