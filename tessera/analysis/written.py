"""Finds which arguments of a kernel it may write to: where the addresses of its stores and atomics come from."""

from __future__ import annotations

from tessera.analysis.provenance import incoming, reached
from tessera.dtypes import pointer_type
from tessera.ir import Block, Module, Value, elem_of
from tessera.ops import CallOp, FuncOp, arith, memory


def written_arguments(module: Module) -> list[int]:
    """Numbers of the kernel's arguments, in rising order, that a store, an atomic or a descriptor's store may change.

    An address that was loaded from memory is attributed to no argument."""
    functions = [op for op in module.body if isinstance(op, FuncOp)]
    calls: dict[str, list[CallOp]] = {}
    todo: list[Value] = []
    for op in (op for f in functions for op in f.walk()):
        if isinstance(op, CallOp):
            calls.setdefault(op.callee, []).append(op)
        elif isinstance(op, memory.PointerWrite):
            todo.append(op.ptr)
        elif isinstance(op, memory.DescriptorWrite):
            todo.append(op.desc)
    found: set[int] = set()

    def onward(v: Value) -> list[Value]:
        function = v.owner.parent if isinstance(v.owner, Block) else None
        if not isinstance(function, FuncOp):
            return _sources(v)
        if function.kernel:
            found.update([v.index] if _is_address(v) else [])
            return []
        return [call.operands[v.index] for call in calls.get(function.name, ())]

    reached(todo, onward)
    return sorted(found)


def _sources(v: Value) -> list[Value]:
    """The values that an address comes from: a result of an op, or an argument of a loop's block."""
    op = v.op
    if isinstance(op, CallOp):
        callee = op.resolve()
        return [] if callee is None else [callee.body.terminator.operands[v.index]]
    flowing = incoming(v)
    if op is None or flowing or isinstance(op, memory.LoadOp):
        return flowing
    # An address comes from addresses, unless it is made of an integer, which may come from anything.
    integer = isinstance(op, arith.CastOp | arith.BitcastOp) or not _is_address(v)
    return [x for x in op.operands if integer or _is_address(x)]


def _is_address(v: Value) -> bool:
    return isinstance(v.type, memory.DescriptorType) or isinstance(elem_of(v.type), pointer_type)
