"""Defines the meaning of the ops of traced builds. The clock counts the records of a launch, so that traces are the
same in each run; only those of several roles, which are threads, may differ."""

from __future__ import annotations

import numpy as np

from tessera.dtypes import int64
from tessera.interp.machine import Machine, evaluate
from tessera.ops import trace


def _store(m: Machine, place: np.ndarray, first: int, *words: int) -> None:
    if int(place):
        at = np.asarray(int(place) + 8 * (first + np.arange(len(words))), np.int64)
        m.memory.store(at, np.array(words, np.uint64).view(np.int64), int64, None)


def _now(m: Machine) -> int:
    m.clock += 1
    return m.clock


@evaluate(trace.TraceBeginOp)
def trace_begin_(
    m: Machine, op: trace.TraceBeginOp, buffer: np.ndarray, mask: np.ndarray, ctas: np.ndarray
) -> np.ndarray:
    (x, y, z), (gx, gy, _) = m.program, m.grid
    cta = (x + gx * (y + gy * z)) * m.module.attrs.get("cluster", 1) + m.rank
    words = trace.TRACE_HEADER + 1 + int(mask) + trace.TRACE_RUN
    recorded = cta < int(ctas)
    place = int(buffer) + 8 * words * (cta * op.warps + op.warp) if recorded else 0
    now = _now(m)
    _store(m, np.asarray(place), 0, op.tag << 32, now, now)
    return np.asarray(place, np.int64)


@evaluate(trace.TraceRecordOp)
def trace_record_(
    m: Machine, op: trace.TraceRecordOp, place: np.ndarray, slot: np.ndarray, *clock: np.ndarray
) -> tuple[()]:
    low = int(clock[0]) & 0xFFFFFFFF if clock else _now(m) & ((1 << trace.TRACE_CLOCK_BITS) - 1)
    word = op.event << trace.TRACE_CLOCK_BITS | low
    _store(m, place, trace.TRACE_HEADER + int(slot) + op.index, word)
    return ()


@evaluate(trace.TraceEndOp)
def trace_end_(m: Machine, op: trace.TraceEndOp, place: np.ndarray, count: np.ndarray) -> tuple[()]:
    now = _now(m)
    _store(m, place, 4, int(count), now, now)
    return ()
