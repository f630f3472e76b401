"""Finds the intervals of integers whose values the code itself bounds: constants, `arange`, program ids, induction
variables with constant bounds, and arithmetic on these.

    for %i from 0 to 128 by 8:        %i in [0, 120]
        %r = %i + arange(0, 8)        %r in [0, 127]      so that %r < 128 holds for all elements

An interval holds for every element of a tile. Values of which nothing is known are absent. Arithmetic that may leave
its type's range is taken to give any number, since it wraps. Arguments of kernels are unknown here; what is known of
them at a launch is evaluated by `intervals.py`, whose arithmetic this is.
"""

from __future__ import annotations

from tessera.analysis.intervals import OPERATIONS, Interval, Known, fit
from tessera.dtypes import dtype, int1
from tessera.ir import Module, Op, Value, elem_of
from tessera.ops import arith, control, tile

_ARITHMETIC: dict[type[Op], str] = {
    arith.AddOp: "add", arith.SubOp: "sub", arith.MulOp: "mul", arith.DivOp: "div", arith.RemOp: "rem",
    arith.MinOp: "min", arith.MaxOp: "max",
}  # fmt: skip
_MOST = (1 << 31) - 1  # program ids and counts


class IntegerRanges:
    """The intervals of a module's values, which must not change meanwhile."""

    def __init__(self, module: Module) -> None:
        self.known: dict[Value, Known] = {}
        for op in module.walk():  # operands come before their users
            if isinstance(op, control.ForOp):
                self._keep(op.induction, self._induction(op))
            elif len(op.results) == 1:
                self._keep(op.result, self._result(op))

    def of(self, v: Value) -> Interval:
        """The least and the greatest number that an element of `v` may be, or None."""
        return self.known.get(v)

    def reach(self, v: Value) -> int | None:
        """The least n of which it is known that all elements of `v` are in [-n, n)."""
        found = self.of(v) or _word(v)
        return None if found is None else max(-found[0], found[1] + 1)

    def _keep(self, v: Value, found: Interval) -> None:
        e: object = elem_of(v.type)
        if found is None or not isinstance(e, dtype) or not e.is_int() or e is int1:
            return
        if e.signed and fit(found, e.bits) is None:
            return
        if not e.signed and not (found[0] >= 0 and found[1] < 1 << e.bits):
            return
        self.known[v] = found

    def _induction(self, op: control.ForOp) -> Interval:
        lb, ub, step = (self.of(v) for v in (op.lb, op.ub, op.step))
        if lb is None or ub is None or step is None:
            return None
        return OPERATIONS["loop"](lb, ub, step)

    def _result(self, op: Op) -> Interval:
        if isinstance(op, arith.ConstOp):
            c: object = op.value
            return (c, c) if isinstance(c, int) else None
        if isinstance(op, tile.ArangeOp):
            return op.start, op.end - 1
        if isinstance(op, tile.ProgramIdOp):
            return 0, _MOST - 1
        if isinstance(op, tile.NumProgramsOp):
            return 1, _MOST
        if isinstance(op, arith.CastOp):
            return self.of(op.x) or _word(op.x)  # `_keep` drops what does not fit the result's type
        if isinstance(op, tile.Rearrangement | arith.HintOp):
            return self.of(op.operands[0])
        if isinstance(op, arith.SelectOp):
            a, b = self.of(op.on_true), self.of(op.on_false)
            return None if a is None or b is None else OPERATIONS["hull"](a, b)
        if isinstance(op, arith.AndOp):
            return self._masked(op)
        kind = _ARITHMETIC.get(type(op))
        if kind is None:
            return None
        a, b = (self.of(v) for v in op.operands)
        if kind in ("rem", "min", "max") and a is None:
            a = _word(op.operands[0])  # the other operand alone bounds the result
        if kind in ("min", "max") and b is None:
            b = _word(op.operands[1])
        return None if a is None or b is None else OPERATIONS[kind](a, b)

    def _masked(self, op: arith.AndOp) -> Interval:
        """`x & m` has no bit that a non-negative `m` lacks."""
        bounds = [x[1] for v in op.operands if (x := self.of(v)) is not None and x[0] >= 0]
        return (0, min(bounds)) if bounds else None


def _word(v: Value) -> Interval:
    e: object = elem_of(v.type)
    if not isinstance(e, dtype) or not e.is_int() or e is int1:
        return None
    return (-(1 << (e.bits - 1)), (1 << (e.bits - 1)) - 1) if e.signed else (0, (1 << e.bits) - 1)


def compared(predicate: str, a: Known, b: Known) -> bool | None:
    """Whether `x predicate y` for all x in a and y in b; None: for some of them only."""
    if predicate in ("gt", "ge"):
        return compared({"gt": "lt", "ge": "le"}[predicate], b, a)
    if predicate == "lt":
        return True if a[1] < b[0] else False if a[0] >= b[1] else None
    if predicate == "le":
        return True if a[1] <= b[0] else False if a[0] > b[1] else None
    same = True if a == b and a[0] == a[1] else False if a[1] < b[0] or b[1] < a[0] else None
    return same if predicate == "eq" or same is None else not same
