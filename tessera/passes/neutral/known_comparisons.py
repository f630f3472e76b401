"""Folds comparisons of integers that hold, or fail, for all elements, whatever the program and the iteration."""

from __future__ import annotations

from tessera.analysis.ranges import IntegerRanges, compared
from tessera.ir import Builder, Module, pass_
from tessera.ir.applications import apply
from tessera.ops import arith


@pass_("known-comparisons", optimization="known-comparisons", counts=True)
def known_comparisons(module: Module) -> None:
    """Replace comparisons of integers whose intervals decide them by constants.

    Takes: valid IR of any level.
    Gives: the same ops; masks that are always true, and branches that are never taken, are left to canonicalisation.
    Needs: nothing of a target.
    Raises: nothing.
    Example: `rows` of tests/filecheck/known-comparisons.tir
        for (%i) { splat; add; cmp; cmp; print } → for (%i) { splat; add; const; const; print }
    Compare: LLVM Correlated Value Propagation, MLIR `int-range-optimizations`.
    """
    ops = [op for op in module.walk() if isinstance(op, arith.CmpOp)]
    if not ops:
        return
    ranges = IntegerRanges(module)
    for op in ops:
        a, b = ranges.of(op.lhs), ranges.of(op.rhs)
        holds = compared(op.predicate, a, b) if a is not None and b is not None else None
        if holds is not None and apply("known-comparisons", op):
            new = Builder.before_op(op).emit(arith.ConstOp(value=holds, results=[op.result.type]))
            op.result.replace_all_uses(new)
            op.erase()
