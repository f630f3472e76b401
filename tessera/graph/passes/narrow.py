"""Stores what loops widen at the end as it was before: who reads it widens it.

y = graph.loop (%i) { cast(%b: bf16 → fp32) }      →      y = graph.loop (%i) { %b }
z = graph.loop (%i) { f(y[i]) }                           z = graph.loop (%i) { f(cast(y[i] → fp32)) }

Fusion lets a conversion run with what it converts; where others read the result, half of its bytes say as much.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import dtype
from tessera.graph.ir.ops import LoadOp, LoopOp, yielded
from tessera.graph.ir.types import TensorType
from tessera.ir import Builder, Module, Op, Rewriter, RuleSet, Value, pass_, rule
from tessera.ops import CastOp, FuncOp

NARROW = RuleSet()


@rule(NARROW, LoopOp)
def stored_as_it_was(op: LoopOp, rw: Rewriter) -> Op | None:
    """A tensor of numbers that were widened is one of the numbers before"""
    if not isinstance(op.parent_op(), FuncOp):
        return None
    changed = False
    for r in op.results:
        tensors, v = _chain(r)
        if _is_widened(v) and all(_is_only_read(t, t is not r) for t in tensors):
            _narrow(tensors, v)
            changed = True
    return op if changed else None


def _chain(r: Value) -> tuple[list[Value], Value]:
    """A loop's result and the rows of inner loops that it is made of, and the number that is an element of them."""
    tensors = [r]
    while True:
        op = tensors[-1].op
        assert isinstance(op, LoopOp)
        v = yielded(op.body)[tensors[-1].index]
        if not isinstance(v.op, LoopOp) or v.op.parent is not op.body:
            return tensors, v
        tensors.append(v)


def _narrow(tensors: Sequence[Value], v: Value) -> None:
    """Let tensors have the elements that `v` was made of, and those who load them widen these."""
    assert isinstance(v.op, CastOp)
    source, wide, inner = v.op.x, v.type, tensors[-1]
    assert isinstance(inner.op, LoopOp)
    inner.op.body.terminator.set_operand(inner.index, source)
    for r in tensors:
        r.type = TensorType(r.type.shape, source.type, r.type.strides, r.type.device)
        for load in r.users():
            if isinstance(load, LoadOp):
                load.result.type = source.type
                users = list(load.result.uses)
                cast = Builder.after_op(load).emit(CastOp(load.result, results=[wide]))
                for user, index in users:
                    user.set_operand(index, cast)


def _is_widened(v: Value) -> bool:
    """Whether a value is a floating point number that had fewer bits, and is the same in them."""
    if not isinstance(v.op, CastOp) or not isinstance(v.type, dtype):
        return False
    a, b = v.op.x.type, v.type
    return a.is_floating() and b.is_floating() and 16 <= a.bits < b.bits


def _is_only_read(r: Value, local: bool) -> bool:
    """Whether nothing but loads uses a tensor, none of which has another number where it is masked; a `local` one is
    given to its outer loop once, too."""
    users = list(r.users())
    loads = [u for u in users if isinstance(u, LoadOp) and u.tensor is r and u.other is None]
    return bool(users) and len(users) - len(loads) == local


@pass_("graph-narrow-results", optimization="graph-narrow-results", counts=True)
def narrow_results(module: Module) -> None:
    """Store widened numbers in the bits that they had."""
    Rewriter(NARROW, "graph-narrow-results").run(module)
