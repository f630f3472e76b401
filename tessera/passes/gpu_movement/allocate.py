"""Writes the offsets of buffers and scratch in shared memory into the IR, and refuses kernels that need too much."""

from __future__ import annotations

from tessera.analysis.allocation import Buffer, placed
from tessera.analysis.scratch import conversion_plan
from tessera.errors import OutOfResources
from tessera.ir import Module, pass_
from tessera.layout.convert import SharedExchange
from tessera.ops import ConvertLayoutOp, LocalAllocOp
from tessera.passes.gpu_facts import GpuFacts

NAMED_BUFFERS = 4  # how many of the largest buffers the error names


@pass_("allocate-shared")
def allocate_shared(module: Module, facts: GpuFacts) -> None:
    """Place buffers and scratch in shared memory.

    Takes: GPU IR; no later pass makes, moves or drops buffers and conversions.
    Gives: `offset` of each `local_alloc`, `scratch` (offset) and `scratch_bytes` of ops that need some, `within_warps`
        of conversions whose warps keep to bytes of their own, the module's `shared` (bytes). Each function has bytes of
        its own, as a callee runs while its caller's buffers live.
    Needs: any GPU.
    Raises: OutOfResources: the sum exceeds what a CTA can have; the largest buffers are named.
    Example: `one_after_the_other` of tests/filecheck/allocate-shared.gir
        local_alloc; local_load; local_alloc → local_alloc {offset=0}; local_load; local_alloc {offset=0}
    Compare: Triton `allocate-shared-memory`.
    """
    top = 0
    everything: list[Buffer] = []
    for func, buffers, end in placed(module, facts):
        if not func.kernel:
            func.attrs["shared_range"] = (top, end)
        top = end
        everything += buffers
        for b in buffers:
            if isinstance(b.op, LocalAllocOp):
                b.op.offset = b.offset
            else:
                for op in (b.op, *b.others):
                    op.attrs |= {"scratch": b.offset, "scratch_bytes": b.size}
                    if isinstance(op, ConvertLayoutOp):
                        plan = conversion_plan(op, facts)
                        if isinstance(plan, SharedExchange) and plan.within_warps:
                            op.attrs["within_warps"] = True
    module.attrs["shared"] = top
    if top > facts.max_shared_bytes:
        error = OutOfResources(top, facts.max_shared_bytes, "shared memory")
        everything.sort(key=lambda b: -b.size)
        for b in everything[:NAMED_BUFFERS]:
            where = f" at {b.op.loc.short()}" if b.op.loc is not None else ""
            name = b.op.results[0].name if b.op.results else ""
            error.note(f"{b.size} bytes for {b.op.opcode} {name}{where}".replace("  ", " "))
        raise error
