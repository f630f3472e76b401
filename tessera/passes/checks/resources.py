"""Computes on tile IR the least that a kernel needs of an SM. Kernels that cannot fit are refused before any work on
layouts; with the same function the autotuner prunes their configs, and those that would mostly spill.

Shared memory: at a dot, it holds each operand loaded from global memory once (the pipeline uses fewer stages before
it gives up), and the operands of other dots that were loaded before a loop around it. Histograms, gathers and tiles
of the TMA unit need what their shapes say. These are lower bounds: only `allocate_shared` knows what layouts,
conversions and reductions add. Registers: those of a dot's result; values for which a thread has no registers are
spilled to its local memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tessera.analysis.scratch import dot_area, scratch_bytes
from tessera.errors import OutOfResources
from tessera.ir import Module, Op, elem_of, pass_, shape_of, with_elem
from tessera.ops import DescriptorLoadOp, DotOp, FuncOp, GatherOp, HistogramOp, TileLoad
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.accelerate import HELD_OPERAND_REGISTERS, choose
from tessera.passes.gpu_layout.mma_operands import loop_between, source_of

MOST_SPILLED = 2  # times a thread's registers that the result of a dot may take


@dataclass(frozen=True, slots=True)
class Need:
    """The least that one op needs of a resource, and its limit. If it `spills`, code runs beyond the limit, but a
    config that needs more than MOST_SPILLED times the limit is not worth compiling."""

    resource: str
    amount: int
    limit: int
    notes: tuple[str, ...] = ()
    spills: bool = False


@pass_("check-resources")
def check_resources(module: Module, facts: GpuFacts, pruning: bool = False) -> None:
    """Refuse a kernel that cannot fit whatever later passes do; if `pruning`, also one that would mostly spill.

    Takes: tile IR after the target-neutral passes, with `num_warps`.
    Gives: the IR as it is.
    Needs: any GPU (`facts`: threads, registers and shared memory of an SM).
    Raises: OutOfResources: a lower bound of threads, shared memory or registers exceeds the GPU's limit.
    Example: `too_many_bins` of tests/filecheck/check-resources.tir
        %h = histogram %x {bins=65536} → OutOfResources
    Compare: CUDA C++ Programming Guide, "Compute Capabilities", has the limits.
    """
    for need in needs_of(module, facts):
        if need.spills and not pruning:
            continue
        if need.amount > need.limit * (MOST_SPILLED if need.spills else 1):
            error = OutOfResources(need.amount, need.limit, need.resource)
            for note in need.notes:
                error.note(note)
            raise error


def needs_of(module: Module, facts: GpuFacts) -> Iterator[Need]:
    """Yield lower bounds, op by op. The target-neutral passes must have removed dead and duplicate ops."""
    num_warps: int = module.attrs["num_warps"]
    threads = num_warps * facts.warp_size
    yield Need("threads", threads, facts.max_warps * facts.warp_size)
    room = facts.max_shared_bytes
    for func in module.body:
        assert isinstance(func, FuncOp)
        dots = [op for op in func.walk() if isinstance(op, DotOp)]
        tiles = {op: _tiles(op, facts, threads) for op in dots}
        around = [
            (loop, t) for own in tiles.values() for t, loop in own.items() if loop is not None
        ]
        for op, own in tiles.items():
            yield _registers(op, threads, facts)
            live = [*own, *(t for loop, t in around if op.is_inside(loop) and t not in own)]
            yield _shared(op, dict.fromkeys(live), _by_hand(op, facts), room)
        for op in func.walk():
            if isinstance(op, HistogramOp | GatherOp):
                yield Need("shared memory", scratch_bytes(op, num_warps), room, (_about(op),))
            elif isinstance(op, DescriptorLoadOp):
                yield _shared(op, (op,), 0, room)


def _tiles(op: DotOp, facts: GpuFacts, threads: int) -> dict[TileLoad, Op | None]:
    """Return the loads of the dot's operands that are in shared memory when it runs, each with the loop around the dot
    throughout which it is there. Small invariant operands may be in registers instead."""
    choice = choose(op, facts)
    if choice is None:
        return {}
    found: dict[TileLoad, Op | None] = {}
    for v in (op.a, op.b):
        tile = source_of(v)[0].op
        if not isinstance(tile, TileLoad):
            continue
        if choice.cast not in (None, elem_of(v.type)):  # cast in registers
            continue
        loop = loop_between(op, tile)
        if loop is None or _bytes(tile) > 4 * HELD_OPERAND_REGISTERS * threads:
            found[tile] = loop
    return found


def _shared(op: Op, tiles: Collection[TileLoad], more: int, room: int) -> Need:
    needed = sum(_bytes(t) for t in tiles) + more
    notes = (_about(op), *(f"{_bytes(t)} bytes for {_about(t)}" for t in tiles))
    return Need("shared memory", needed, room, notes)


def _by_hand(op: DotOp, facts: GpuFacts) -> int:
    """Return the bytes of the operands of a dot that ordinary instructions compute."""
    if choose(op, facts) is not None:
        return 0
    elem = elem_of(op.acc.type)
    return sum(dot_area(with_elem(v.type, elem)) for v in (op.a, op.b))


def _bytes(tile: TileLoad) -> int:
    t = tile.result.type
    return t.numel * t.elem.storage_bytes


def _about(op: Op) -> str:
    name = f" {op.results[0].name}" if op.results[0].name else ""
    where = f" at {op.loc.short()}" if op.loc is not None else ""
    return f"{op.opcode}{name}{where}"


def _registers(op: DotOp, threads: int, facts: GpuFacts) -> Need:
    """Bound the registers of a dot's result. A kernel that mostly spills it compiles slowly and runs more slowly."""
    have = min(facts.registers, facts.register_file // threads)
    reg32 = op.acc.type.numel * max(32, elem_of(op.acc.type).bits) // 32 // threads
    shape = "x".join([str(n) for n in shape_of(op.acc.type)])
    where = f" at {op.loc.short()}" if op.loc is not None else ""
    notes = (
        f"the result of the dot{where} is {shape}, spread over {threads} threads",
        "more warps (`num_warps`) have more registers",
    )
    return Need("registers of a thread", reg32, have, notes, spills=True)
