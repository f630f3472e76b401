"""Finds the values that decide what a kernel accesses and how often its loops run: addresses, masks, bounds of
loops and conditions, and all that these are computed of. To count a kernel's work nothing else has to be computed."""

from __future__ import annotations

from tessera import ops
from tessera.analysis.provenance import incoming
from tessera.ir import Block, Module, Op, SharedType, Value

POINTERS = (ops.LoadOp, ops.StoreOp, ops.AsyncCopyOp, ops.AtomicRmwOp, ops.AtomicCasOp)
GATHERS = (ops.DescriptorGatherOp, ops.DescriptorScatterOp)
BLOCKS = (ops.DescriptorLoadOp, ops.DescriptorStoreOp, ops.TensorCopyOp)


def needed_values(module: Module) -> set[Value]:
    """Return the values of a module's functions on which its accesses and its control flow depend."""
    found: set[Value] = set()
    calls: dict[str, list[ops.CallOp]] = {}
    work: list[Value] = []
    for op in module.walk():
        work += _roots(op)
        if isinstance(op, ops.CallOp):
            calls.setdefault(op.callee, []).append(op)
    through_memory = False
    while work:
        v = work.pop()
        if v in found:
            continue
        found.add(v)
        work += _sources(v, calls)
        if isinstance(v.op, ops.LocalLoadOp) and not through_memory:
            through_memory = True  # what was stored there counts as well
            for op in module.walk():
                if isinstance(op, ops.LocalStoreOp | ops.LocalAllocOp):
                    work += op.operands
                work += [r for r in op.results if isinstance(r.type, SharedType)]
    return found


def _roots(op: Op) -> list[Value]:
    if isinstance(op, POINTERS):
        runs = op.runs if isinstance(op, ops.AsyncCopyOp) else None
        return [v for v in (op.ptr, op.mask, runs) if v is not None]
    if isinstance(op, BLOCKS):
        return [op.desc, *op.offsets]
    if isinstance(op, GATHERS):
        return list(op.operands[:3])
    if isinstance(op, ops.ForOp):
        return [op.lb, op.ub, op.step]
    if isinstance(op, ops.IfOp | ops.ConditionOp):
        return [op.operands[0]]
    return []


def _sources(v: Value, calls: dict[str, list[ops.CallOp]]) -> list[Value]:
    """Return what a value is computed of."""
    sources = incoming(v)
    if sources:
        return sources
    if isinstance(v.owner, Block):
        function = v.owner.parent
        if isinstance(function, ops.FuncOp):
            return [call.args[v.index] for call in calls.get(function.name, ())]
        return []
    op = v.owner
    if isinstance(op, ops.CallOp):
        callee = op.resolve()
        return [] if callee is None else [callee.body.terminator.operands[v.index]]
    return list(op.operands)
