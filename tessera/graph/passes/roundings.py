"""Leaves out roundings between operations on half types: inside of a kernel, what was computed in fp32 for one of them
is handed on to the next one as it is.

cast(cast(x: fp32 → bf16) {contract} → fp32)   →   x

Eager rounds each result, since it stores it. The rules of operations mark these roundings with `contract`; conversions
that a program asks for have no mark, and stay. Results that kernels store are rounded as ever. What is compared keeps
its rounding: the greatest element is looked for by comparing with one that was stored.
"""

from __future__ import annotations

from tessera.graph.ir.ops import LoadOp, LoopOp, yielded
from tessera.graph.ir.types import TensorType
from tessera.ir import Module, Op, Rewriter, RuleSet, Value, pass_, rule
from tessera.ops import CastOp, CmpOp, FuncOp

ROUNDINGS = RuleSet()


def _rounds(v: Value, wide: object) -> bool:
    """Whether a value is one of the type `wide`, rounded to fewer bits because an operation ends."""
    op = v.op
    return isinstance(op, CastOp) and op.contract and op.x.type == wide


def _is_compared(v: Value) -> bool:
    return any(isinstance(user, CmpOp) for user in v.users())


@rule(ROUNDINGS, CastOp)
def rounded_between(op: CastOp, rw: Rewriter) -> Value | None:
    """cast(cast(x → fewer bits) {contract} → x's type) → x"""
    if not _rounds(op.x, op.result.type) or _is_compared(op.result):
        return None
    inner = op.x.op
    assert isinstance(inner, CastOp)
    return inner.x


@rule(ROUNDINGS, LoopOp)
def rounded_row(op: LoopOp, rw: Rewriter) -> Op | None:
    """A tensor that stays in a kernel keeps the type that its elements were computed in"""
    changed = False
    for k, (v, r) in enumerate(zip(yielded(op.body), op.results, strict=True)):
        if isinstance(op.parent_op(), FuncOp) or not isinstance(v.op, CastOp):
            continue
        wide = v.op.x.type
        if _rounds(v, wide) and all(_widens(user, r, wide) for user in r.users()):
            op.body.terminator.set_operand(k, v.op.x)
            r.type = TensorType(r.type.shape, wide, r.type.strides, r.type.device)
            for load in r.users():
                load.result.type = wide
                for cast in load.result.users():
                    cast.result.replace_all_uses(load.result)
            changed = True
    return op if changed else None


def _widens(user: Op, row: Value, wide: object) -> bool:
    """Whether an op does nothing with a row but load elements that are cast to a type."""
    if not isinstance(user, LoadOp) or user.tensor is not row or user.other is not None:
        return False
    casts = user.result.users()
    return all(isinstance(c, CastOp) and c.result.type == wide for c in casts) and not any(
        _is_compared(c.result) for c in casts
    )


@pass_("graph-drop-roundings", optimization="graph-drop-roundings", counts=True)
def drop_roundings(module: Module) -> None:
    """Hand numbers on between the operations of a kernel without rounding them."""
    Rewriter(ROUNDINGS, "graph-drop-roundings").run(module)
