"""Plans loops that load through pointers: which copies run how far ahead, which MMAs run on or late (ops/schedule.py).

Copies run `num_stages - 1` iterations ahead, or as far as buffers fit. An MMA of warpgroups that only accumulates may
run on while the next iteration begins, and one at the end of a chain is shifted by an iteration (chains.py). They
then read their buffers for one more iteration: a buffer is added for that, or the copies run one iteration less."""

from __future__ import annotations

from dataclasses import dataclass

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.loop_times import kinds_of
from tessera.analysis.machines import MMA_ROW_BITS, SCHEDULERS, WARPGROUP
from tessera.ir import Builder, Module, Op, pass_
from tessera.ir.applications import apply
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.buffering import buffer_tiles
from tessera.passes.gpu_loops.chains import overlapping, run_on, schedule_late
from tessera.passes.gpu_loops.choices import note_choice
from tessera.passes.gpu_loops.refill import refill, refills
from tessera.passes.gpu_loops.registers import early_loads, run_early
from tessera.passes.gpu_loops.streams import (
    Stream,
    bytes_beside,
    noting,
    staged_loops,
    stream_or_reason,
    write_copies,
)
from tessera.passes.gpu_movement.memory_effects import waits_for_others

# Registers of an iteration's results from which warpgroups play ping-pong (tools/fit).
PING_PONG_REG32 = 128


@pass_("schedule-loops", optimization="software-pipeline", counts=True)
def schedule_loops(module: Module, facts: GpuFacts) -> None:
    """Plan software pipelines: write the schedule of each loop whose tiles can be copied ahead.

    Takes: GPU IR with layouts, as only whole vectors may be copied asynchronously; `num_stages` of module or loop.
        Loops in which programs wait for others are left alone, and loads of arrays that the loop may write to.
    Gives: loops with `main_stage`; loads and the buffers that they fill with `stage`, `slots` and `signal`; MMAs that
        run on with `pending`, or late with `stage`; a remark for each load of a buffer that is not copied ahead.
    Needs: a GPU with `cp.async` (sm_80).
    Raises: nothing.
    Example: `copies` of tests/filecheck/schedule-loops/copies.gir
        for { load; local_alloc; local_load } → for { load {stage=0}; local_alloc {stage=0, slots=3}; local_load }
    Compare: Triton `tritongpu-assign-latencies` and `tritongpu-schedule-loops`.
    """
    for loop, axis, wanted in staged_loops(module, facts):
        if loop.main_stage is None:
            buffer_tiles(module, loop, axis, facts, wanted)
        early = early_loads(loop, axis, facts)
        if loop.main_stage is None:
            _Plan(module, loop, axis, facts, wanted, early).write()
        if early:
            run_early(loop, early)


@dataclass
class _Plan:
    """The schedule of one loop whose loads fill buffers that all threads read."""

    module: Module
    loop: ops.ForOp
    axis: AxisAnalysis
    facts: GpuFacts
    wanted: int
    early: list[ops.LoadOp]

    def __post_init__(self) -> None:
        self.num_warps: int = self.module.attrs["num_warps"]

    def write(self) -> None:
        loop, facts = self.loop, self.facts
        waits = any(map(waits_for_others, loop.walk()))
        streams = self._streams()
        if waits or not streams:
            return
        running, shifted = overlapping(loop, {s.alloc for s in streams})
        size, beside = sum(s.bytes for s in streams), self._beside(streams)
        slots, lag = self._slots(size, beside, bool(running), bool(shifted))
        if slots == 1 or not apply("software-pipeline", loop):
            return
        kinds = kinds_of(loop, running, shifted)
        again = not (running or shifted) and refills(
            loop, streams, self.num_warps, facts, slots, beside
        )
        note_choice(
            loop, facts, self.num_warps, wanted=self.wanted, kinds=kinds,
            chosen=(slots, kinds[0] if lag else kinds[-1]), beside=beside, size=size,
            signal="cp.async", refills=again,
        )  # fmt: skip
        if again:
            write_copies(loop, streams, slots - 1, slots - 1, "cp.async")
            refill(loop, streams)
            return
        ahead = slots - 1 - lag
        many = self.num_warps > WARPGROUP
        signal = "mbarrier" if shifted and lag and many else "cp.async"
        write_copies(loop, streams, ahead, slots, signal)
        if shifted and lag:
            schedule_late(loop, ahead, shifted, ping_pong_reg32=PING_PONG_REG32 if many else None)
        elif running and lag:
            run_on(loop, running)
            self._copy_within(running[-1], streams)

    def _streams(self) -> list[Stream]:
        """Return what may be copied ahead, and say in remarks which other loads of buffers are not."""
        found: list[Stream | None] = []
        for op in self.loop.body:
            with noting(self.module, op):
                found.append(stream_or_reason(op, self.loop, self.axis, self.facts, self.early))
        return [s for s in found if s is not None]

    def _slots(self, size: int, beside: int, running: bool, shifts: bool) -> tuple[int, bool]:
        """Return the number of buffers, of `size` bytes each for all copies: as many as are wanted and fit; and
        whether MMAs may run on, or be shifted by an iteration.

        An MMA that runs on keeps its buffers for one more iteration. A buffer is added for that, unless fewer CTAs
        would then fit on an SM: in that case the copies run one iteration less ahead, or with three stages
        the MMA waits. Where an SM would hold fewer warps than it has schedulers, or than two for each if products are
        of FMAs, which hide no latency on their own, buffers give way to another CTA."""
        total = self.facts.max_shared_bytes
        fit, most = total // size, (total - beside) // size
        slots = max(1, min(self.wanted, most))
        ctas = {n: self.facts.ctas_that_fit(beside + n * size) for n in range(2, slots + 1)}
        by_fmas = any(isinstance(op, ops.DotOp) for op in self.loop.body)
        if slots > 2 and ctas[slots] * self.num_warps < SCHEDULERS * (1 + by_fmas):
            slots = next((n for n in range(slots - 1, 1, -1) if ctas[n] > ctas[slots]), slots)
        if not (running or shifts) or slots < 2:
            return slots, False
        if slots + 1 <= most and fit // (slots + 1) == fit // slots:
            return slots + 1, True
        return slots, slots > (2 if shifts else 3)

    def _beside(self, streams: list[Stream]) -> int:
        return bytes_beside(self.loop, {s.alloc for s in streams}, self.num_warps, self.facts)

    def _copy_within(self, last: ops.WgmmaOp, streams: list[Stream]) -> None:
        """Let copies be issued between two halves of the last MMA. The first half keeps the matrix unit busy during
        the copies, and no copy waits for the MMA of the previous iteration. An operand read into registers is read
        after the copies, while the MMA of the previous iteration runs."""
        at: Op = last
        if isinstance(last.left.op, ops.LocalLoadOp):
            at = last.left.op
        elif last.b.type.shape[0] * last.b.type.elem.storage_bits % (2 * MMA_ROW_BITS) == 0:
            first = last.clone()
            first.part, first.asynchronous, first.pending = (0, 2), True, 0
            last.part = (1, 2)
            last.set_operand(2, Builder.before_op(last).emit(first))
        at.attrs["position"] = 1
        streams[0].load.attrs["position"] = 1
