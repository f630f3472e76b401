"""Says what holds in a part of a loop's index space: which comparisons of indices are true for all of it, what runs.

loop (i: 10) { i < 4 ? load a[i] : load b[i - 4] }      within the box from 4 on, 6 long: load b[i - 4]
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tessera.dtypes import int1, int64
from tessera.graph.index import Expr, IndexMap, dim, size
from tessera.graph.ir.ops import LoadOp, LoopOp, yielded
from tessera.graph.passes.facts import Leaves, SymbolRanges, decided, extent_of, shared_ranges
from tessera.ir import Op, Value
from tessera.ops import AndOp, CmpOp, ConstOp, OrOp, SelectOp, XorOp

Size = int | Expr


@dataclass(frozen=True, slots=True)
class Box:
    """A part of an index space: from `lows` on, `sizes` long."""

    lows: tuple[Expr, ...]
    sizes: tuple[Size, ...]

    def index(self, d: int, inside: Expr) -> Expr:
        """Index d where it is `inside` of the box."""
        return self.lows[d] if self.sizes[d] == 1 else self.lows[d] + inside

    def between(self, d: int, low: Expr, high: Expr) -> Box:
        """What of it has an index d between two bounds."""
        lows, sizes = list(self.lows), list(self.sizes)
        lows[d], sizes[d] = low, size(high - low)
        return Box(tuple(lows), tuple(sizes))


@dataclass
class Conditions:
    """What is known of a loop's body in parts of its index space."""

    loop: LoopOp
    symbols: SymbolRanges
    known: dict[tuple[Value, Box], bool | None] = field(
        default_factory=dict[tuple[Value, Box], bool | None]
    )

    def moved(self, leaves: Leaves, box: Box) -> list[Expr]:
        """For each leaf of an expression what it is inside of a box: indices count from its beginning."""
        args = self.loop.body.args
        return [
            box.index(v.index, dim(n)) if v in args else dim(n) for n, v in enumerate(leaves.values)
        ]

    def holds(self, v: Value, box: Box) -> bool | None:
        """Whether a condition holds for all indices of a box (True) or none (False)."""
        key = v, box
        if key not in self.known:
            self.known[key] = self._holds(v, box)
        return self.known[key]

    def _holds(self, v: Value, box: Box) -> bool | None:
        op = v.op
        if isinstance(op, ConstOp):
            return bool(op.value)
        if isinstance(op, CmpOp) and op.lhs.type is int64:
            return self._compared(op, box)
        if not isinstance(op, AndOp | OrOp | XorOp) or v.type is not int1:
            return None
        a, b = (self.holds(x, box) for x in op.operands)
        if isinstance(op, XorOp):
            return None if a is None or b is None else a != b
        decides = isinstance(op, OrOp)
        if decides in (a, b):
            return decides
        return None if None in (a, b) else not decides

    def _compared(self, op: CmpOp, box: Box) -> bool | None:
        leaves = Leaves()
        a, b = leaves.follow(op.lhs), leaves.follow(op.rhs)
        args = self.loop.body.args
        extents = [box.sizes[v.index] if v in args else extent_of(v) for v in leaves.values]
        ranges = shared_ranges(tuple(extents), tuple(sorted(self.symbols.items())))
        a, b = IndexMap(len(extents), [a, b]).at(self.moved(leaves, box), len(extents)).results
        return decided(op.predicate, a, b, ranges)

    def under(self, v: Value, box: Box) -> Value | None:
        """The value that another one is inside of a box; None for the zero that a load gives where nothing is read."""
        op = v.op
        if isinstance(op, SelectOp):
            known = self.holds(op.condition, box)
            return v if known is None else self.under(op.on_true if known else op.on_false, box)
        if isinstance(op, LoadOp) and op.mask is not None and self.holds(op.mask, box) is False:
            return None if op.other is None else self.under(op.other, box)
        return v

    def needed(self, box: Box) -> set[Op]:
        """The ops that have to run inside of a box."""
        found: set[Op] = set()
        work = yielded(self.loop.body)
        while work:
            v = self.under(work.pop(), box)
            op = None if v is None else v.op
            if op is not None and op.parent is self.loop.body and op not in found:
                found.add(op)
                if isinstance(op, LoadOp) and op.mask is not None and self.holds(op.mask, box):
                    work += op.indices
                else:
                    work += op.operands
        return found
