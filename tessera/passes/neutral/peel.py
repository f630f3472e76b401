"""Takes the first iteration out of loops that ask in each iteration whether it is the first one.

    for i in lb..ub by s (%x = %x0)              A(lb); %x1 = ... %x0 ...
      A(i); %x' = if i == lb {...} else {...}  → for i in lb+s..ub by s (%x = %x1)
      yield %x'                                     A(i); %x' = if i == lb {...} else {...}

The test is true in the copy and false in the loop, where canonicalisation drops it (`known-comparisons`). Assemblers
unroll a body without a branch, so that the loads of several iterations are in flight together.
"""

from __future__ import annotations

from tessera.ir import Builder, Module, Value, elem_of, pass_
from tessera.ir.applications import apply
from tessera.ops import arith, control
from tessera.ops.control import ForOp
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.loops import const, iteration, trip_count

SMALL = 64  # ops of a body that is copied


@pass_("peel-first", optimization="peel-first", counts=True)
def peel_first(module: Module) -> None:
    """Copy the first iteration of small loops that branch on being in it, in front of the loop.

    Takes: tile IR; only loops with constant bounds and at least two iterations are changed.
    Gives: the first iteration, and a loop of one iteration less.
    Needs: `known-comparisons` and `canonicalize` after it; GPU pipelines run it.
    Raises: nothing.
    Example: `mean` of tests/filecheck/peel-first.tir
        for (%i) { cmp; if } → cmp; if; const; for (%i) { cmp; if }
    Compare: LLVM LoopPeel.
    """
    for op in list(module.walk()):
        if isinstance(op, ForOp) and _peelable(op) and apply("peel-first", op):
            _peel(op)


def _peelable(loop: ForOp) -> bool:
    if (trip_count(loop) or 0) < 2:
        return False
    asks = False
    for count, op in enumerate(loop.body.walk()):
        if count > SMALL or isinstance(op, control.Loop):
            return False
        asks = asks or (isinstance(op, control.IfOp) and _is_first(op.condition, loop))
    return asks


def _is_first(condition: Value, loop: ForOp) -> bool:
    """Whether a condition compares the induction variable with the first of its values."""
    op = condition.op
    return (
        isinstance(op, arith.CmpOp)
        and op.predicate in ("eq", "ne")
        and op.lhs is loop.induction
        and constant_of(op.rhs) == constant_of(loop.lb)
    )


def _peel(loop: ForOp) -> None:
    b = Builder.before_op(loop)
    mapping = iteration(b, loop, loop.lb, loop.inits)
    first = [mapping.get(v, v) for v in loop.body.terminator.operands]
    lb = const(b, constant_of(loop.lb) + constant_of(loop.step), elem_of(loop.lb.type))
    loop.set_operands(lb, loop.ub, loop.step, first)
