"""Follows values through control flow, pointers back to the arguments they point into, and views back to buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Sequence

from tessera.dtypes import pointer_type
from tessera.ir import Block, Op, Value, elem_of
from tessera.ops import arith, control, gpu, memory, tile

BOUNDS = 3  # operands of a `for` in front of the initial values


# --- control flow -------------------------------------------------------------------------------------------
def incoming(v: Value) -> list[Value]:
    """Return the values that `v` may be, like a phi's operands: `v` is loop-carried, or a result of a loop or branch.

    Empty for all other values: results of other ops, arguments of functions, the induction variable of a `for`."""
    inside = isinstance(v.owner, Block)
    op = v.owner.parent if isinstance(v.owner, Block) else v.owner
    if isinstance(op, control.ForOp):
        index = v.index - inside
        return [op.inits[index], op.body.terminator.operands[index]] if index >= 0 else []
    if isinstance(op, control.WhileOp):
        if v.owner is op.before:
            return [op.inits[v.index], op.after.terminator.operands[v.index]]
        return [op.before.terminator.operands[1 + v.index]]
    if isinstance(op, control.IfOp) and not inside:
        return [block.terminator.operands[v.index] for block in op.regions]
    return []


def outgoing(op: Op, index: int) -> list[Value]:
    """Return the values that operand `index` of an op may become: the inverse of `incoming`. The op is a loop or ends a
    block of a loop or branch. Empty for bounds, conditions and operands of other ops."""
    if isinstance(op, control.ForOp):
        return [op.carried[index - BOUNDS], op.results[index - BOUNDS]] if index >= BOUNDS else []
    if isinstance(op, control.WhileOp):
        return [op.before.args[index]]
    around = op.parent_op()
    if isinstance(op, control.ConditionOp) and isinstance(around, control.WhileOp):
        return [around.after.args[index - 1], around.results[index - 1]] if index else []
    if not isinstance(op, control.YieldOp):
        return []
    if isinstance(around, control.ForOp):
        return [around.carried[index], around.results[index]]
    if isinstance(around, control.WhileOp):
        return [around.before.args[index]]
    return [around.results[index]] if isinstance(around, control.IfOp) else []


def reached(values: Iterable[Value], onward: Callable[[Value], Iterable[Value]]) -> KeysView[Value]:
    """Return some values, those to which `onward` leads from them, and so on, in the order in which they are found."""
    found: dict[Value, None] = {}
    work = list(values)
    while work:
        v = work.pop()
        if v not in found:
            found[v] = None
            work += onward(v)
    return found.keys()


def defined_inside(v: Value, op: Op) -> bool:
    """Whether a value is computed in the blocks of an op, or is an argument of one, so that it may change between
    iterations."""
    owner = v.owner if isinstance(v.owner, Op) else v.owner.parent
    around = isinstance(v.owner, Block) and owner is op
    return around or (owner is not None and owner.is_inside(op))


# --- pointers -----------------------------------------------------------------------------------------------
def argument_of(ptr: Value) -> Value | None:
    """Return the function argument that a pointer, a tile of pointers or a descriptor points into on every path; None
    if there may be several, or if it is not known."""
    (v, *others) = origins_of(ptr) or (ptr,)
    known = not others and isinstance(v.owner, Block) and isinstance(v.owner.parent, control.FuncOp)
    return v if known else None


def origins_of(ptr: Value) -> frozenset[Value]:
    """Return what a pointer may be made from: arguments, or addresses that were loaded."""
    return frozenset(v for v in reached([ptr], pointers_of) if not pointers_of(v))


def pointers_of(v: Value) -> Sequence[Value]:
    """Return the pointers that a pointer or descriptor is made from: by an offset, a rearrangement, a select or control
    flow. Empty at its origin: arguments, loaded addresses, integers."""
    op = v.op
    if isinstance(op, arith.AddPtrOp | arith.HintOp | tile.Rearrangement | memory.MakeDescriptorOp):
        return op.operands[:1]
    if isinstance(op, arith.CastOp | arith.BitcastOp):
        return op.operands if isinstance(elem_of(op.x.type), pointer_type) else ()
    if isinstance(op, arith.SelectOp):
        return (op.on_true, op.on_false)
    return op.operands if isinstance(op, tile.JoinOp) else incoming(v)


# --- shared memory ------------------------------------------------------------------------------------------
def buffer_of(view: Value) -> Value:
    """Return the buffer in shared memory that a chain of views (transposes, buffers of a ring) shows."""
    while isinstance(view.op, gpu.SharedView):
        view = view.op.operands[0]
    return view


def untransposed(view: Value) -> Value:
    """Return the buffer, perhaps one of a ring, that a chain of transposes shows."""
    while isinstance(view.op, gpu.LocalTransOp):
        view = view.op.x
    return view
