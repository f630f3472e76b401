"""Divides in 32 bits what was widened to 64 and still fits in 32: processors take several times as long for 64."""

from __future__ import annotations

from tessera.analysis.ranges import IntegerRanges
from tessera.dtypes import int32, int64
from tessera.ir import Builder, Module, Value, elem_of, pass_, with_elem
from tessera.ir.applications import apply
from tessera.ops import arith

HALF = 1 << 31  # numbers of 32 bits lie in [-HALF, HALF)


@pass_("narrow-division", optimization="narrow-division", counts=True)
def narrow_division(module: Module) -> None:
    """Divide numbers of 64 bits in 32 bits where these hold both operands and the result.

    Takes: valid tile IR.
    Gives: quotients and remainders in int32, extended to int64; what fed them is left to canonicalisation.
    Needs: nothing of a target.
    Raises: nothing.
    Example: `tiles` of tests/filecheck/narrow-division.tir
        cast; cast; div → cast; cast; div (in i32); cast
    Compare: LLVM's `narrowSDivOrSRem` of Correlated Value Propagation, and BypassSlowDivision, which branches.
    """
    ops = [
        op
        for op in module.walk()
        if isinstance(op, arith.DivOp | arith.RemOp) and elem_of(op.result.type) is int64
    ]
    if not ops:
        return
    ranges = IntegerRanges(module)
    for op in ops:
        if _fits(ranges, op.lhs, op.rhs) and apply("narrow-division", op):
            b = Builder.before_op(op)
            narrow = b.emit(type(op)(_narrow(b, op.lhs), _narrow(b, op.rhs)))
            wide = b.emit(arith.CastOp(narrow, results=[op.result.type]))
            wide.name = op.result.name
            op.result.replace_all_uses(wide)
            op.erase()


def _fits(ranges: IntegerRanges, lhs: Value, rhs: Value) -> bool:
    """Whether 32 bits hold the operands and what they give: the smallest number over -1 is too large by one."""
    a, b = ranges.of(lhs), ranges.of(rhs)
    if a is None or b is None or not all(-HALF <= x < HALF for x in (*a, *b)):
        return False
    return a[0] > -HALF or not b[0] <= -1 <= b[1]


def _narrow(b: Builder, v: Value) -> Value:
    op = v.op
    if isinstance(op, arith.CastOp) and elem_of(op.x.type) is int32:
        return op.x
    return b.emit(arith.CastOp(v, results=[with_elem(v.type, int32)]))
