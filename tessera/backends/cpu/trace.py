"""Lowers the ops of traced builds: records of the monotonic clock, in nanoseconds, by each program."""

from __future__ import annotations

from tessera import ops
from tessera.backends.cpu.lowering import Lowering, executes, make


def clock(lo: Lowering) -> str:
    """Read the monotonic clock in nanoseconds."""
    em = lo.em
    em.declare("i32", "clock_gettime", "i32", "ptr")
    now = em.alloca("[2 x i64]", align=8)
    em.stmt(f"call i32 @clock_gettime(i32 1, ptr {now})")
    seconds = em.here(f"load i64, ptr {now}, align 8")
    rest = em.here(f"load i64, ptr {em.here(f'getelementptr i64, ptr {now}, i64 1')}, align 8")
    return em.here(f"add i64 {em.here(f'mul i64 {seconds}, 1000000000')}, {rest}")


def _store(lo: Lowering, place: str, number: int | str, value: int | str, bits: int = 64) -> None:
    where = lo.em.here(f"getelementptr i{bits}, ptr {place}, i64 {number}")
    lo.em.stmt(f"store i{bits} {value}, ptr {where}, align {bits // 8}")


def _begun(lo: Lowering, place: str) -> str:
    return lo.em.here(f"icmp ne ptr {place}, null")


@executes(ops.TraceBeginOp)
def _begin(lo: Lowering, op: ops.TraceBeginOp) -> None:
    em = lo.em
    x, y, z = (lo.text(lo.programs[d], 1) for d in range(3))
    row = em.here(f"add i32 {em.here(f'mul i32 {z}, {lo.sizes[1].text}')}, {y}")
    program = em.here(f"add i32 {em.here(f'mul i32 {row}, {lo.sizes[0].text}')}, {x}")
    recorded = em.here(f"icmp ult i32 {program}, {lo.scalar_text(op.ctas)}")
    ring = em.here(f"mul i32 {lo.scalar_text(op.mask)}, {ops.TRACE_UNIT}")
    fixed = ops.TRACE_HEADER + ops.TRACE_UNIT + ops.TRACE_BEHIND
    words = em.here(f"zext i32 {em.here(f'add i32 {ring}, {fixed}')} to i64")
    offset = em.here(f"mul i64 {em.here(f'zext i32 {program} to i64')}, {words}")
    address = em.here(f"getelementptr i64, ptr {lo.scalar_text(op.buffer)}, i64 {offset}")
    place = em.here(f"select i1 {recorded}, ptr {address}, ptr null")
    lo.scalars[op.result] = make(op.result.type, 1, place)
    with em.branch(_begun(lo, place)):
        at = em.here(f"getelementptr i32, ptr {lo.context}, i64 3")
        thread = em.here(f"zext i32 {em.here(f'load i32, ptr {at}, align 4')} to i64")
        _store(lo, place, 0, em.here(f"or i64 {thread}, {op.tag << 32}"))
        now = clock(lo)
        _store(lo, place, 1, now)
        _store(lo, place, 2, now)


@executes(ops.TraceRecordOp)
def _record(lo: Lowering, op: ops.TraceRecordOp) -> None:
    em, place = lo.em, lo.scalar_text(op.place)
    with em.branch(_begun(lo, place)):
        slot = em.here(f"zext i32 {lo.scalar_text(op.slot)} to i64")
        unit = em.here(f"mul i64 {slot}, {ops.TRACE_UNIT}")
        run = em.here(f"getelementptr i64, ptr {place}, i64 {unit}")
        half = 2 * ops.TRACE_HEADER + op.half
        if op.head is not None:
            _store(lo, run, half - 1, op.head, 32)
        _store(lo, run, half, em.here(f"trunc i64 {clock(lo)} to i32"), 32)


@executes(ops.TraceEndOp)
def _end(lo: Lowering, op: ops.TraceEndOp) -> None:
    place = lo.scalar_text(op.place)
    with lo.em.branch(_begun(lo, place)):
        now = clock(lo)
        for half, value in ((8, op.count), (9, op.units)):
            _store(lo, place, half, lo.scalar_text(value), 32)
        for word in (5, 6):
            _store(lo, place, word, now)
