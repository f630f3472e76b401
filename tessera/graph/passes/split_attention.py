"""Makes the kernels that compute the gradients of attention: one for each head of keys, or two that meet nowhere.

%dq, %dk, %dv = graph.attention_grads %q, %k, %v, …    five products; adds up dq in memory, a head's in one program
    →   %dq = graph.attention_dq %q, %k, %v, …         seven products, for programs that share a head of keys, for dq
        %dk, %dv = graph.attention_dkdv %q, %k, %v, …  of a type that is rounded, and where not all are wanted
"""

from __future__ import annotations

from tessera.graph.emit.tiling import Machine
from tessera.graph.ir.ops import AttentionGradsOp, AttentionKeyGradsOp, AttentionQueryGradOp
from tessera.graph.ir.types import product
from tessera.ir import Builder
from tessera.ir.applications import apply
from tessera.ops import FuncOp


def split_attention(function: FuncOp, machine: Machine) -> None:
    """Make two of the gradients of attention where one kernel would leave a part of the machine idle."""
    for op in list(function.body):
        if isinstance(op, AttentionGradsOp):
            if not (_fits_heads(op, machine) and apply("graph-join-gradients", op)):
                _split(op)


def _fits_heads(op: AttentionGradsOp, machine: Machine) -> bool:
    """Whether a program can do all of a head of keys: all lanes are busy, and memory holds sums as they are."""
    heads = product(list(op.k.type.shape[:2]))
    many = isinstance(heads, int) and heads >= machine.lanes
    return machine.exact and many and op.q.type.elem == op.acc and all(r.uses for r in op.results)


def _split(op: AttentionGradsOp) -> None:
    b = Builder.before_op(op)
    dq, dk, dv = op.results
    for kind, results in ((AttentionQueryGradOp, [dq]), (AttentionKeyGradsOp, [dk, dv])):
        if any(r.uses for r in results):
            part = kind(*op.given, **op.attrs, results=[r.type for r in results])
            for old, new in zip(results, b.insert(part).results, strict=True):
                old.replace_all_uses(new)
    op.erase()
