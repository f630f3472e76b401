"""Gives operands that a loop transposes several buffers, so that MMAs may run on meanwhile.

    for i:                                    ring = local_alloc of 3 buffers; barrier
      %t = local_load %x                      for i:
      %s = local_alloc %t              →        %t = local_load %x
      %d = wgmma %a, %s, %acc                   local_store %t -> ring[i mod 3]
                                                %d = wgmma %a, ring[i mod 3], %acc

All warps write a buffer and synchronise before the MMA reads it. A warpgroup reaches that barrier when its MMA of two
iterations before is complete, so that after it the buffer of three iterations before is free: one barrier an iteration.
Where shared memory is scarce the loop's own tiles come first. Nothing is done where a transpose role
will transpose the operand (transpose_role.py)."""

from __future__ import annotations

from tessera import ops
from tessera.ir import Builder, Module, SharedType, pass_
from tessera.ir.applications import apply
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_loops.slots import advance
from tessera.passes.gpu_loops.transpose_role import (
    BUFFERS,
    room_for_transposed,
    transposed_operand,
    transposition_of,
)
from tessera.passes.neutral.loops import const32, set_yields, with_carried


@pass_("transpose-buffers", optimization="transpose-buffers", counts=True)
def transpose_buffers(module: Module, facts: GpuFacts) -> None:
    """Give transposed operands of sums a buffer for each of three iterations.

    Takes: GPU IR with layouts, before `warp-specialize`.
    Gives: a ring of three buffers in place of one, so that an iteration's MMA may run on while the next one writes.
    Needs: a GPU with `wgmma`, and room in shared memory.
    Raises: nothing.
    Example: `one_buffer_each_iteration` of tests/filecheck/transpose-buffers.gir
        for { local_load; local_alloc; wgmma }
        → local_alloc {rotates=True}; barrier; for { local_load; local_index; local_store; wgmma }
    Compare: multi-buffering in MLIR (`memref::multiBuffer`).
    """
    num_warps: int = module.attrs["num_warps"]
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        for loop in [op for op in func.walk() if isinstance(op, ops.ForOp)]:
            alloc = transposed_operand(loop)
            if alloc is None or not room_for_transposed(func, loop, alloc, num_warps, facts):
                continue
            if transposition_of(func, num_warps, facts) is None and apply(
                "transpose-buffers", loop
            ):
                _rotate(loop, alloc)


def _rotate(loop: ops.ForOp, alloc: ops.LocalAllocOp) -> None:
    before = Builder.before_op(loop)
    t: SharedType = alloc.result.type
    ring = ops.LocalAllocOp(None, results=[SharedType((BUFFERS, *t.shape), t.elem, t.layout)])
    ring.attrs["rotates"] = True
    before.emit(ring)
    before.insert(ops.BarrierOp(loc=loop.loc))  # MMAs of an enclosing loop may still read
    new = with_carried(loop, [const32(before, 0)])
    slot, at = new.carried[-1], Builder.before_op(alloc)
    view = at.emit(ops.LocalIndexOp(ring.result, slot, slot=0))
    assert alloc.init is not None
    at.insert(ops.LocalStoreOp(alloc.init, view, loc=alloc.loc))
    alloc.replace_by([view])
    set_yields(new.body, advance(Builder.before_op(new.body.terminator), (slot,), BUFFERS))
