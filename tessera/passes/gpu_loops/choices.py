"""Notes for `explain` which plans there were for a loop: how many buffers fit, and what its MMAs may do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tessera import ops
from tessera.analysis.loop_times import LoopChoice, LoopPlan, choices, work_of
from tessera.analysis.registers import mma_reg32
from tessera.ir.applications import is_noting, note_plan
from tessera.passes.gpu_facts import GpuFacts

BESIDE_REG32 = 32  # registers of a thread for addresses and counters, beside those of MMAs


def note_choice(
    loop: ops.ForOp, facts: GpuFacts, warps: int, *, wanted: int, kinds: Sequence[str], chosen: tuple[int, str],
    beside: int, size: int, signal: str, refills: bool = False,
) -> None:  # fmt: skip
    """Keep the plan that has the `chosen` buffers and MMAs, and the others. `wanted`: buffers that were asked for;
    `kinds`: what MMAs may do (loop_times.py); `beside`: bytes besides the rings; `size`: of one buffer of each.
    `refills`: one of the buffers is left out, as another one is filled again in the iteration that reads it."""

    def plans() -> Iterator[LoopPlan]:
        registers = min(facts.registers, mma_reg32(loop.body) + BESIDE_REG32)
        most = facts.register_file // (registers * warps * facts.warp_size)
        for buffers, ahead, kind in choices(list(kinds), wanted + 2):
            used, obstacle = beside + buffers * size, ""
            if used > facts.max_shared_bytes:
                obstacle = f"{used} bytes of shared memory, and a CTA has {facts.max_shared_bytes}"
            elif buffers > wanted + (kind != kinds[-1]):
                obstacle = f"num_stages={wanted} allows fewer buffers"
            ctas = max(1, min(facts.ctas_that_fit(used), most))
            yield LoopPlan(buffers, ahead, kind, signal, used, ctas, obstacle)

    found = {(p.buffers, p.mmas): p for p in plans()} if is_noting() else {}
    plan = found.get(chosen) if refills else found.pop(chosen, None)
    if plan is not None and refills:
        used = plan.bytes - size
        plan = replace(plan, buffers=plan.buffers - 1, bytes=used, ctas=facts.ctas_that_fit(used))
    if plan is not None:
        note_plan(LoopChoice(loop.loc, work_of(loop, warps), plan, tuple(found.values())))
