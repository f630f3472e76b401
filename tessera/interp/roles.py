"""Defines the meaning of tensor copies, mbarriers and programs with several warp roles; each role is a Python thread.

A copy reads memory when it starts; shared memory changes only when a role waits for its barrier, so that a missing
wait shows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.errors import InterpreterError
from tessera.interp.effects import Descriptor, block_of, land_group
from tessera.interp.machine import Machine, evaluate
from tessera.interp.numerics import carrier
from tessera.ops import gpu, mbarrier

PATIENCE = 20.0  # seconds after which a wait is considered endless


@dataclass(slots=True)
class Barrier:
    """An mbarrier: phases ended; arrivals and bytes that the current one lacks; copies that land at the next wait."""

    count: int
    arrivals: int
    bytes: int = 0
    ended: int = 0
    landing: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def end_phase(self) -> None:
        if self.arrivals == 0 and self.bytes == 0:
            self.arrivals, self.ended = self.count, self.ended + 1


class Barriers:
    """All mbarriers of a program by array and index, and the lock under which they change."""

    def __init__(self) -> None:
        self.table: dict[tuple[int, int], Barrier] = {}
        self.changed = threading.Condition()
        self.failed: BaseException | None = None

    def at(self, bars: np.ndarray, index: np.ndarray) -> Barrier:
        found = self.table.get((id(bars), int(index)))
        if found is None:
            raise InterpreterError(f"barrier {int(index)} was not initialised")
        return found


def _barriers(m: Machine) -> Barriers:
    if m.barriers is None:
        m.barriers = Barriers()
    return m.barriers


@evaluate(mbarrier.MbarrierInitOp)
def mbarrier_init_(m: Machine, op: mbarrier.MbarrierInitOp, *rows: np.ndarray) -> tuple[()]:
    for bars, count in zip(rows, op.counts, strict=True):
        for i in range(bars.shape[0]):
            _barriers(m).table[id(bars), i] = Barrier(count, count)
    return ()


def _arrive(m: Machine, bars: np.ndarray, index: np.ndarray, times: int, size: int) -> None:
    every = _barriers(m)
    with every.changed:
        b = every.at(bars, index)
        b.bytes += size
        b.arrivals -= times or b.count
        if b.arrivals < 0:
            raise InterpreterError("more arrivals at a barrier than it counts")
        b.end_phase()
        every.changed.notify_all()


@evaluate(mbarrier.MbarrierArriveExpectTxOp)
def mbarrier_arrive_expect_tx_(
    m: Machine, op: mbarrier.MbarrierArriveExpectTxOp, bars: np.ndarray, index: np.ndarray
) -> tuple[()]:
    _arrive(m, bars, index, 1, op.bytes)
    return ()


@evaluate(mbarrier.MbarrierArriveOp)
def mbarrier_arrive_(
    m: Machine, op: mbarrier.MbarrierArriveOp, bars: np.ndarray, index: np.ndarray, *_: object
) -> tuple[()]:
    if op.condition is None or m.optional(op, "condition"):
        _arrive(m, bars, index, 0, 0)  # all warps of the role
    return ()


@evaluate(mbarrier.AsyncCopyMbarrierArriveOp)
def async_copy_mbarrier_arrive_(
    m: Machine, op: mbarrier.AsyncCopyMbarrierArriveOp, bars: np.ndarray, index: np.ndarray
) -> tuple[()]:
    """Let earlier copies land when a role waits for the barrier, unless a wait for their group comes first."""
    groups = [*m.groups, m.open_group]

    def land() -> None:
        for group in groups:
            land_group(group)

    every = _barriers(m)
    with every.changed:
        every.at(bars, index).landing.append(land)
    _arrive(m, bars, index, 0, 0)  # all threads
    return ()


@evaluate(mbarrier.MbarrierWaitOp)
def mbarrier_wait_(
    m: Machine, op: mbarrier.MbarrierWaitOp, bars: np.ndarray, index: np.ndarray, parity: np.ndarray
) -> tuple[()]:
    every = _barriers(m)
    with every.changed:
        b = every.at(bars, index)
        done = every.changed.wait_for(
            lambda: b.ended % 2 != int(parity) or every.failed is not None, PATIENCE
        )
        if every.failed is not None:
            raise InterpreterError(f"the other role failed: {every.failed}")
        if not done:
            raise InterpreterError("a barrier is waited for that nobody completes", loc=op.loc)
        landing, b.landing = b.landing, []
        for land in landing:
            land()
    return ()


@evaluate(gpu.TensorCopyOp)
def tensor_copy_(m: Machine, op: gpu.TensorCopyOp, desc: Descriptor, *rest: Any) -> tuple[()]:
    *offsets, shared, bars, index = rest
    address, mask = block_of(desc, offsets)
    other = np.asarray(np.nan if desc.padding == "nan" else 0).astype(carrier(desc.elem))
    value = np.asarray(m.memory.load(address, desc.elem, mask, other), carrier(desc.elem))
    value = value.reshape(shared.shape)

    def land() -> None:
        shared[...] = value

    every = _barriers(m)
    with every.changed:
        b = every.at(bars, index)
        b.landing.append(land)
        b.bytes -= value.size * desc.elem.storage_bytes
        b.end_phase()
        every.changed.notify_all()
    return ()


@evaluate(gpu.WarpSpecializeOp)
def warp_specialize_(m: Machine, op: gpu.WarpSpecializeOp) -> tuple[()]:
    every = _barriers(m)

    def run(role: Any) -> None:
        try:
            with np.errstate(all="ignore"):
                m.run_block(role, [])
        except BaseException as error:
            with every.changed:
                every.failed = error
                every.changed.notify_all()

    threads = [
        threading.Thread(target=run, args=[role], daemon=True)
        for role in (op.producer, op.transpose)
    ]
    for thread in threads:
        thread.start()
    m.run_block(op.consumers, [])
    for thread in threads:
        thread.join(PATIENCE)
    if every.failed is not None:
        raise InterpreterError(f"another role failed: {every.failed}")
    return ()
