"""Tells how far apart most neighbouring elements of a tile of numbers or pointers are along each dimension.

Axis facts hold for all elements, and say only that there is no run where some do not continue it.
A convolution's `(x // width) * height_stride + x % width` is no run, as rows end at unknown places, but most neighbours
are 1 apart; along its channels they are `channel_stride` apart, of which a multiple may be known. This is for choices
of speed alone: it says what holds for most neighbours, not for all.
"""

from __future__ import annotations

from tessera.analysis.axis import AxisAnalysis
from tessera.ir import Op, Value, shape_of
from tessera.ops import FuncOp, arith, tile

SEVERAL = 2  # an unknown factor counts as the least one that changes anything
LONG_RUN = 32  # lanes of a warp: of shorter runs, one of its accesses meets several

Steps = tuple[int | None, ...]


class NeighbourSteps:
    """For each dimension how many elements most neighbours are apart at least; None where that is not known."""

    def __init__(self, func: FuncOp, axis: AxisAnalysis) -> None:
        self.axis = axis
        self.table: dict[Value, Steps] = {}
        for op in func.walk():
            if op.results and shape_of(op.results[0].type):
                self.table[op.results[0]] = self._uniform(op.results[0], self._steps(op))

    def of(self, v: Value) -> Steps:
        unknown: Steps = (None,) * len(shape_of(v.type))
        return self.table.get(v) or self._uniform(v, unknown)

    def _uniform(self, v: Value, steps: Steps) -> Steps:
        """Return the steps with 0 where the axis facts say that all elements are equal."""
        equal, shape = self.axis.facts(v).constancy, shape_of(v.type)
        return tuple(0 if equal[d] >= shape[d] else s for d, s in enumerate(steps))

    def _steps(self, op: Op) -> Steps:
        match op:
            case tile.ArangeOp():
                return (1,)
            case arith.AddOp() | arith.SubOp() | arith.AddPtrOp():
                pairs = zip(*(self.of(v) for v in op.operands), strict=True)
                return tuple(None if a is None or b is None else max(a, b) for a, b in pairs)
            case arith.MulOp():
                pairs = zip(self._scaled(op.lhs, op.rhs), self._scaled(op.rhs, op.lhs), strict=True)
                return tuple(b if a is None else a for a, b in pairs)
            case arith.DivOp() | arith.RemOp():
                return self._cut(op)
            case tile.BroadcastOp() | arith.CastOp() | arith.HintOp():
                return self.of(op.x)
            case tile.ExpandDimsOp():
                steps = self.of(op.x)
                return (*steps[: op.axis], 0, *steps[op.axis :])
            case _:
                return (None,) * len(shape_of(op.results[0].type))

    def _scaled(self, v: Value, factor: Value) -> Steps:
        """Return the steps of a product, None where the factor is not the same for all elements."""
        facts = self.axis.facts(factor)
        least = [max(SEVERAL, n) for n in facts.divisibility]
        if facts.value is not None:
            least = [abs(facts.value)] * len(least)
        triples = zip(self.of(v), self.of(factor), least, strict=True)
        return tuple(None if s is None or f != 0 else s * n for s, f, n in triples)

    def _cut(self, op: arith.DivOp | arith.RemOp) -> Steps:
        """Return the steps of a quotient or a remainder. Divided by a large number, most neighbours have the same."""
        divisor = self.axis.facts(op.rhs).value
        short = divisor is not None and abs(divisor) < LONG_RUN
        pairs = zip(self.of(op.lhs), self.of(op.rhs), strict=True)
        return tuple(
            None if short or f != 0 else 0 if isinstance(op, arith.DivOp) else s for s, f in pairs
        )
