"""Folds comparisons of integers that hold, or fail, for all elements, whatever the program and the iteration, and
leaves out what both sides add."""

from __future__ import annotations

from tessera.analysis.ranges import IntegerRanges, compared
from tessera.ir import Builder, Module, Op, Value, elem_of, pass_, with_elem
from tessera.ir.applications import apply
from tessera.ops import arith, tile
from tessera.passes.neutral.fold import before_widening


@pass_("known-comparisons", optimization="known-comparisons", counts=True)
def known_comparisons(module: Module) -> None:
    """Replace comparisons of integers whose intervals decide them by constants, and compare sums with a common addend
    by what else they add.

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
        if a is None or b is None:
            continue
        holds = compared(op.predicate, a, b)
        if holds is not None and apply("known-comparisons", op):
            new = Builder.before_op(op).emit(arith.ConstOp(value=holds, results=[op.result.type]))
            op.result.replace_all_uses(new)
            op.erase()
        elif holds is None:
            _leave_common(op)


# --- common addends -------------------------------------------------------------------------------------------
def _leave_common(op: arith.CmpOp) -> None:
    """s + x < s + y  →  x < y   (neither sum wraps; s is the same for all elements)

    Rows and columns of a triangular mask begin at the same place: without it, registers are compared whose difference
    is known, and all are of 32 bits where the place has 64."""
    (left, over_left), (right, over_right) = _sum(op.lhs), _sum(op.rhs)
    if left is None or right is None:
        return
    for i, x in enumerate(left.operands):
        for j, y in enumerate(right.operands):
            same = _of_all(x) is _of_all(y) is not None
            if same and apply("common-addends", op):
                b = Builder.before_op(op)
                rests = _narrowed(left.operands[1 - i], right.operands[1 - j])
                for side, (rest, over) in enumerate(
                    zip(rests, (over_left, over_right), strict=True)
                ):
                    op.set_operand(side, _spread(b, rest, over))
                return


def _sum(v: Value) -> tuple[arith.AddOp | None, list[Op]]:
    """Return the sum that is spread to `v`, and the ops that spread it, the last one first."""
    over: list[Op] = []
    while isinstance(v.op, tile.ExpandDimsOp | tile.BroadcastOp):
        over.append(v.op)
        v = v.op.x
    return v.op if isinstance(v.op, arith.AddOp) else None, over


def _of_all(v: Value) -> Value | None:
    """Return the scalar that all elements are, if there is one."""
    return v.op.x if isinstance(v.op, tile.SplatOp) else None


def _narrowed(x: Value, y: Value) -> tuple[Value, Value]:
    """Return what casts of both widen from one type, or both."""
    a, b = before_widening(x), before_widening(y)
    if a is None or b is None or elem_of(a.type) is not elem_of(b.type):
        return x, y
    return a, b


def _spread(b: Builder, v: Value, over: list[Op]) -> Value:
    for op in reversed(over):
        new = b.insert(op.clone({op.operands[0]: v}))
        new.results[0].type = with_elem(new.results[0].type, elem_of(v.type))
        v = new.results[0]
    return v
