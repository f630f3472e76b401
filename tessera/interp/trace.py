"""Defines the meaning of the ops of traced builds. The clock counts the records of a launch, so that traces are the
same in each run; only those of several roles, which are threads, may differ."""

from __future__ import annotations

import numpy as np

from tessera.dtypes import int32, int64
from tessera.interp.machine import Machine, evaluate
from tessera.ops import trace


def _store(m: Machine, place: np.ndarray, first: int, *words: int) -> None:
    if int(place):
        at = np.asarray(int(place) + 8 * (first + np.arange(len(words))), np.int64)
        m.memory.store(at, np.array(words, np.uint64).view(np.int64), int64, None)


def _store_half(m: Machine, place: np.ndarray, number: int, half: int) -> None:
    if int(place):
        at = np.asarray([int(place) + 4 * number], np.int64)
        m.memory.store(at, np.array([half], np.uint32).view(np.int32), int32, None)


def _now(m: Machine) -> int:
    m.clock += 1
    return m.clock


@evaluate(trace.TraceBeginOp)
def trace_begin_(
    m: Machine, op: trace.TraceBeginOp, buffer: np.ndarray, mask: np.ndarray, ctas: np.ndarray
) -> np.ndarray:
    (x, y, z), (gx, gy, _) = m.program, m.grid
    cta = (x + gx * (y + gy * z)) * m.module.attrs.get("cluster", 1) + m.rank
    words = trace.TRACE_HEADER + (int(mask) + 1) * trace.TRACE_UNIT + trace.TRACE_BEHIND
    recorded = cta < int(ctas)
    place = int(buffer) + 8 * words * (cta * op.warps + op.warp) if recorded else 0
    now = _now(m)
    _store(m, np.asarray(place), 0, op.tag << 32, now, now)
    return np.asarray(place, np.int64)


@evaluate(trace.TraceRecordOp)
def trace_record_(
    m: Machine, op: trace.TraceRecordOp, place: np.ndarray, slot: np.ndarray, *clock: np.ndarray
) -> tuple[()]:
    now = (int(clock[0]) if clock else _now(m)) & 0xFFFFFFFF
    half = 2 * (trace.TRACE_HEADER + int(slot) * trace.TRACE_UNIT) + op.half
    if op.head is not None:
        _store_half(m, place, half - 1, op.head)
    _store_half(m, place, half, now)
    return ()


@evaluate(trace.TraceEndOp)
def trace_end_(
    m: Machine, op: trace.TraceEndOp, place: np.ndarray, count: np.ndarray, units: np.ndarray
) -> tuple[()]:
    now = _now(m)
    _store(m, place, 4, int(units) << 32 | int(count), now, now)
    return ()
