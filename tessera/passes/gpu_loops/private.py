"""Finds loads of loops that only stream: each thread copies ahead to a buffer of its own, which takes no registers.

    for i:                        for i {main_stage=2}:
      %x = load %p, %mask           %t = load %p, %mask  {stage=0}
      ... %x ...              →     %s = local_alloc %t  {stage=0, slots=3, signal='thread', private=True}
                                    %x = local_load %s
                                    ... %x ...

A thread reads back only what it copied itself, so that no thread waits for another one. Shared memory holds the
bytes in flight: enough to keep memory busy while the loop computes, without using registers.

Loads must not move before stores that may write what they read. A loop with stores is left alone, unless its author
asked for stages (`tl.range(num_stages=)`) and the stores use other arguments than the loads; so is one that loads past
the caches what other programs may write."""

from __future__ import annotations

from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.loop_times import NONE
from tessera.ir import Effect, Module, TileType, pass_
from tessera.ir.applications import Declined, apply
from tessera.ops import ForOp, LoadOp, Matmul, StoreOp
from tessera.ops.roles import ring_of
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.anchors import bytes_of
from tessera.passes.gpu_loops.choices import note_choice
from tessera.passes.gpu_loops.short import may_be_short, version_short
from tessera.passes.gpu_loops.streams import (
    bytes_beside,
    noting,
    require_ahead,
    require_buffer,
    staged_loops,
    through_buffer,
    write_copies,
)
from tessera.passes.gpu_movement.memory_effects import waits_for_others

PROGRAMS = 2  # CTAs that must still fit on an SM
# Warps that must, where the loop may be over after one iteration, which only other CTAs hide then.
WARPS = 24


@pass_("schedule-streams", optimization="prefetch", counts=True)
def schedule_streams(module: Module, facts: GpuFacts) -> None:
    """Plan how threads copy ahead for themselves what loops without MMAs load.

    Takes: GPU IR with layouts; `num_stages` of the module or the loop.
    Gives: loops with `main_stage`; loads with `stage`, through private buffers with `slots` and `signal`, of which a
        thread reads what it copied; a remark for each tile that is loaded in its own iteration.
    Needs: a GPU with `cp.async` (sm_80).
    Raises: nothing.
    Example: `sum` of tests/filecheck/schedule-streams.gir
        for { load; add } → for { load {stage=0}; local_alloc {private=True, stage=0, slots=3}; local_load; add }
    Compare: LLVM LoopDataPrefetch, which fills caches; CUDA guide, "Asynchronous Data Copies".
    """
    for loop, axis, wanted in staged_loops(module, facts, _is_simple):
        _plan(loop, axis, facts, wanted, module)


def _plan(loop: ForOp, axis: AxisAnalysis, facts: GpuFacts, wanted: int, module: Module) -> None:
    warps: int = module.attrs["num_warps"]
    stores = any(isinstance(op, StoreOp) for op in loop.body)
    found: list[LoadOp] = []
    for op in loop.body:
        if isinstance(op, LoadOp) and isinstance(op.result.type, TileType):
            with noting(module, op):
                if stores and not loop.num_stages:
                    raise Declined("the loop stores, and does not ask for stages")
                require_ahead(op, loop)
                require_buffer(op, axis, facts)
                found.append(op)
    size = sum(bytes_of(op.result) for op in found)
    slots = min(wanted, _room(loop, warps, facts) // size) if found else 1
    if found and slots < 2:
        with noting(module, found[0]):
            raise Declined(f"two iterations load {2 * size} bytes, too much beside other CTAs")
    if slots > 1 and apply("prefetch", loop):
        note_choice(
            loop, facts, warps, wanted=wanted, kinds=[NONE], chosen=(slots, NONE), beside=0, size=size,
            signal="by each thread",
        )  # fmt: skip
        version_short(loop)
        copied = [(op, through_buffer(op, axis, facts, private=True)) for op in found]
        write_copies(loop, copied, slots - 1, slots, "thread")


def _room(loop: ForOp, warps: int, facts: GpuFacts) -> int:
    """Return the bytes that a loop's rings may take: PROGRAMS CTAs fit, and what else is kept while the loop runs."""
    beside = bytes_beside(loop, (), warps, facts)
    programs = max(PROGRAMS, WARPS // warps) if may_be_short(loop) else PROGRAMS
    return min(facts.max_shared_bytes // programs, facts.max_shared_bytes - beside)


def _is_simple(loop: ForOp) -> bool:
    """Whether a loop is one block without waits or matmuls that writes by stores at most."""
    for op in loop.body:
        if ring_of(op) is not None:  # which another role fills
            return False
        if op.regions and any(isinstance(inner, ForOp | LoadOp | StoreOp) for inner in op.walk()):
            return False
        if isinstance(op, Matmul) or waits_for_others(op):
            return False
        if op.all_effects() & (Effect.WRITE | Effect.SYNC) and not isinstance(op, StoreOp):
            return False
    return True
