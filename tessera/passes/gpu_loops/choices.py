"""Notes for `explain` which plans there were for a loop: how many buffers fit, and what its MMAs may do."""

from __future__ import annotations

from dataclasses import dataclass

from tessera import ops
from tessera.analysis.loop_times import LoopChoice, LoopPlan, choices, work_of
from tessera.analysis.registers import mma_reg32
from tessera.ir.applications import is_noting, note_plan
from tessera.passes.gpu_facts import GpuFacts

BESIDE_REG32 = 32  # registers of a thread for addresses and counters, beside those of MMAs


@dataclass
class Looked:
    """A loop for which `wanted` buffers were asked for, and whose MMAs may do one of `kinds` (loop_times.py)."""

    loop: ops.ForOp
    facts: GpuFacts
    warps: int
    wanted: int
    kinds: list[str]

    def note(self, chosen: tuple[int, str], beside: int, size: int, signal: str) -> None:
        """Keep the plan with that many buffers and that kind of MMAs, and the others. `beside`: bytes of shared memory
        besides the rings; `size`: of one buffer of each ring."""
        if not is_noting():
            return
        found = {(p.buffers, p.mmas): p for p in self._plans(beside, size, signal)}
        plan = found.pop(chosen, None)
        if plan is not None:
            work, others = work_of(self.loop, self.warps), tuple(found.values())
            note_plan(LoopChoice(self.loop.loc, work, plan, others))

    def _plans(self, beside: int, size: int, signal: str) -> list[LoopPlan]:
        facts, found = self.facts, list[LoopPlan]()
        registers = min(facts.registers, mma_reg32(self.loop.body) + BESIDE_REG32)
        most = facts.register_file // (registers * self.warps * facts.warp_size)
        for buffers, ahead, kind in choices(self.kinds, self.wanted + 2):
            used, obstacle = beside + buffers * size, ""
            if used > facts.max_shared_bytes:
                obstacle = f"{used} bytes of shared memory, and a CTA has {facts.max_shared_bytes}"
            elif buffers > self.wanted + (kind != self.kinds[-1]):
                obstacle = f"num_stages={self.wanted} allows fewer buffers"
            ctas = max(1, min(facts.ctas_that_fit(used), most))
            found.append(LoopPlan(buffers, ahead, kind, signal, used, ctas, obstacle))
        return found
