"""Buffers of operands that are turned in a loop, several of them in turn, so that a product may run on meanwhile.

    for i:                                    ring = local_alloc of 3 buffers; barrier
      %t = local_load %x                      for i:
      %s = local_alloc %t              →        %t = local_load %x
      %d = wgmma %a, %s, %acc                   local_store %t -> ring[i mod 3]
                                                %d = wgmma %a, ring[i mod 3], %acc

All warps write a buffer and meet before the product reads it. A warpgroup comes to that meeting when its product of two
iterations before is done, so that the buffer of three iterations before is free after it: one barrier an iteration.
Where shared memory is scarce the loop's own tiles come first."""

from __future__ import annotations

from tessera.analysis.scratch import scratch_bytes
from tessera.ir import Builder, Module, SharedType, Value, pass_
from tessera.ops import (
    AddOp,
    BarrierOp,
    CmpOp,
    ForOp,
    FuncOp,
    LocalAllocOp,
    LocalIndexOp,
    LocalLoadOp,
    LocalStoreOp,
    SelectOp,
    WgmmaOp,
)
from tessera.passes.consumers import carry
from tessera.passes.facts import GpuFacts
from tessera.passes.rings import start_const

BUFFERS = 3
FEWEST_STAGES = 2
SLACK = 2048  # bytes for barriers and alignment


@pass_("rotate")
def rotate(module: Module, facts: GpuFacts) -> None:
    """Give turned operands of sums a buffer for each of three iterations. Assumes layouts; before `specialize`."""
    num_warps: int = module.attrs["num_warps"]
    for func in module.body:
        assert isinstance(func, FuncOp)
        for loop in [op for op in func.walk() if isinstance(op, ForOp)]:
            products = [op for op in loop.walk() if isinstance(op, WgmmaOp)]
            alloc = _turned(loop, products[0]) if len(products) == 1 else None
            if alloc is not None and _fits(func, loop, alloc, num_warps, facts):
                _rotate(loop, alloc)


def _fits(func: FuncOp, loop: ForOp, turned: LocalAllocOp, num_warps: int, facts: GpuFacts) -> bool:
    """Whether there is room for the buffers beside two stages of the tiles that the loop loads."""
    need = SLACK + BUFFERS * turned.bytes
    for op in func.walk():
        if isinstance(op, LocalAllocOp) and op is not turned:
            need += op.bytes * (FEWEST_STAGES if op.parent is loop.body else 1)
    need += max(scratch_bytes(op, num_warps, facts) for op in func.walk())
    return need <= facts.max_shared_bytes


def _turned(loop: ForOp, product: WgmmaOp) -> LocalAllocOp | None:
    """The buffer of a turned operand, if the product only adds up from iteration to iteration."""
    alloc = product.right.op
    if not isinstance(alloc, LocalAllocOp) or alloc.parent is not loop.body:
        return None
    if alloc.init is None or not isinstance(alloc.init.op, LocalLoadOp):
        return None
    carried = product.acc.op is None and product.acc.block is loop.body
    sums = carried and list(product.result.uses) == [(loop.body.terminator, product.acc.index - 1)]
    return alloc if sums and len(alloc.result.uses) == 1 else None


def _rotate(loop: ForOp, alloc: LocalAllocOp) -> None:
    before = Builder.before_op(loop)
    t: SharedType = alloc.result.type
    ring = LocalAllocOp(None, results=[SharedType((BUFFERS, *t.shape), t.elem, t.layout)])
    ring.attrs["rotates"] = True
    before.emit(ring)
    before.insert(BarrierOp(loc=loop.loc))  # products of a loop around may still read
    zero = start_const(before, 0)

    def body(new: ForOp, state: list[Value]) -> list[Value]:
        (slot,) = state
        at = Builder.before_op(alloc)
        view = at.emit(LocalIndexOp(ring.result, slot, slot=0))
        assert alloc.init is not None
        at.insert(LocalStoreOp(alloc.init, view, loc=alloc.loc))
        alloc.replace_by([view])
        end = Builder.before_op(new.body.terminator)
        following = end.emit(AddOp(slot, start_const(end, 1)))
        wraps = end.emit(CmpOp(following, start_const(end, BUFFERS), predicate="eq"))
        return [end.emit(SelectOp(wraps, start_const(end, 0), following))]

    carry(loop, [zero], body)
