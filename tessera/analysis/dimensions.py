"""Finds which dimensions of a function's tiles correspond, and along which dimensions elements are combined.

    %c = dot %a, %b, %acc       rows: {a.0, acc.0, c.0}      columns: {b.1, acc.1, c.1}      depth: {a.1, b.0}, met
    %s = reduce %c, axis 1      joins s.0 to the rows; the columns are met

Dimensions in one class can only be cut together: part i of one belongs to part i of the others. A class is *met* if an
op combines elements along it. Such a class cannot be cut, since the op needs all parts; `reasons` names that op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera import ops
from tessera.ir import DescriptorType, Op, TileType, Value

Dim = tuple[Value, int]


def extents(v: Value) -> tuple[int, ...]:
    """The extents of a tile, or of a descriptor's blocks."""
    return v.type.shape if isinstance(v.type, TileType | DescriptorType) else ()


class Dimensions:
    """The classes of one function; each is named by one of its dimensions (`find`)."""

    def __init__(self, func: ops.FuncOp):
        self._above: dict[Dim, Dim] = {}
        self.reasons: dict[Dim, Op] = {}
        for op in func.walk():
            if op is not func and not op.terminator:
                self._relate(op)

    def find(self, d: Dim) -> Dim:
        above = self._above
        while (up := above.get(d, d)) != d:
            above[d] = above.get(up, up)
            d = up
        return d

    def classes(self) -> dict[Dim, list[Dim]]:
        """Return the members of each class that has several members or is met."""
        found: dict[Dim, list[Dim]] = {}
        for d in self._above:
            found.setdefault(self.find(d), []).append(d)
        return found

    def _along(self, a: Value, i: int, b: Value, j: int) -> None:
        x, y = self.find((a, i)), self.find((b, j))
        self._above.setdefault(x, x)
        if x != y:
            self._above[y] = x
            if y in self.reasons:
                self.reasons.setdefault(x, self.reasons.pop(y))

    def _met(self, op: Op, v: Value, i: int) -> None:
        d = self.find((v, i))
        self._above.setdefault(d, d)
        self.reasons.setdefault(d, op)

    def _same(self, values: Sequence[Value], but: int | None = None) -> None:
        """Relate all dimensions of tiles of one shape, except dimension `but`."""
        tiles = [v for v in values if extents(v)]
        for v in tiles:
            for i in range(len(extents(v))):
                if i != but:
                    self._along(tiles[0], i, v, i)

    def _relate(self, op: Op) -> None:
        for kind, rule in _RULES.items():
            if isinstance(op, kind):
                rule(self, op)
                return
        for v in (*op.operands, *op.results):
            for i in range(len(extents(v))):
                self._met(op, v, i)

    # --- rules --------------------------------------------------------------------------------------------
    def pointwise(self, op: Op) -> None:
        self._same([*op.operands, *op.results])

    def source(self, op: Op) -> None:
        """Relate the results of an op that has no tile operands."""
        self._same(op.results)

    def broadcast(self, op: ops.BroadcastOp) -> None:
        for i, (n, m) in enumerate(zip(extents(op.x), extents(op.result), strict=True)):
            self._along(op.result, i, op.x if n == m else op.result, i)

    def expand(self, op: ops.ExpandDimsOp) -> None:
        for i in range(len(extents(op.x))):
            self._along(op.x, i, op.result, i + (i >= op.axis))

    def trans(self, op: ops.TransOp) -> None:
        for i, source in enumerate(op.order):
            self._along(op.x, source, op.result, i)

    def reshape(self, op: ops.ReshapeOp) -> None:
        """Relate the first dimensions where the products of extents so far are equal in both shapes: equal parts of
        them hold the same elements. Dimensions further inside are met."""
        old, new = extents(op.x), extents(op.result)
        i = j = 0
        while i < len(old) or j < len(new):
            first, n, m = (i, j), 1, 1
            while n != m or (i, j) == first:
                if i < len(old) and (n <= m or j == len(new)):
                    n, i = n * old[i], i + 1
                else:
                    m, j = m * new[j], j + 1
            self._group(op, range(first[0], i), range(first[1], j))

    def _group(self, op: ops.ReshapeOp, old: range, new: range) -> None:
        a = [d for d in old if extents(op.x)[d] > 1]
        b = [d for d in new if extents(op.result)[d] > 1]
        if a and b:
            self._along(op.x, a[0], op.result, b[0])
        for d in a[1:]:
            self._met(op, op.x, d)
        for d in b[1:]:
            self._met(op, op.result, d)

    def pairs(self, op: ops.JoinOp | ops.SplitOp) -> None:
        """Relate all dimensions but the last one of the wide tile, which has extent 2 and is met."""
        wide = op.result if isinstance(op, ops.JoinOp) else op.x
        for v in op.operands if isinstance(op, ops.JoinOp) else op.results:
            for i in range(len(extents(v))):
                self._along(wide, i, v, i)
        self._met(op, wide, len(extents(wide)) - 1)

    def dot(self, op: ops.DotOp) -> None:
        rank = len(extents(op.acc))
        self._same([op.acc, op.result])
        for i in range(rank - 2):
            self._along(op.a, i, op.acc, i)
            self._along(op.b, i, op.acc, i)
        self._along(op.a, rank - 2, op.acc, rank - 2)
        self._along(op.b, rank - 1, op.acc, rank - 1)
        self._along(op.a, rank - 1, op.b, rank - 2)
        self._met(op, op.a, rank - 1)

    def combine(self, op: ops.CombineOp) -> None:
        self._same(op.inputs)
        gone = isinstance(op, ops.ReduceOp)
        for i in range(len(extents(op.inputs[0]))):
            for result in op.results if i != op.axis else ():
                self._along(op.inputs[0], i, result, i - (gone and i > op.axis))
        for v in [op.inputs[0], *([] if gone else op.results)]:
            self._met(op, v, op.axis)

    def gather(self, op: ops.GatherOp) -> None:
        self._same([op.index, op.result])
        self._same([op.x, op.index], but=op.axis)
        self._met(op, op.x, op.axis)

    def block(self, op: ops.DescriptorLoadOp | ops.DescriptorStoreOp) -> None:
        tile = op.result if isinstance(op, ops.DescriptorLoadOp) else op.value
        dropped = op.dropped if isinstance(op, ops.DescriptorLoadOp) else 0
        for i in range(dropped, len(extents(op.desc))):
            self._along(op.desc, i, tile, i - dropped)

    def rows(self, op: ops.DescriptorGatherOp | ops.DescriptorScatterOp) -> None:
        tile = op.result if isinstance(op, ops.DescriptorGatherOp) else op.value
        self._along(op.rows, 0, tile, 0)
        self._along(op.desc, 1, tile, 1)

    def loop(self, op: ops.ForOp) -> None:
        yields = op.body.terminator.operands
        for row in zip(op.inits, op.carried, yields, op.results, strict=True):
            self._same(row)

    def branch(self, op: ops.IfOp) -> None:
        for i, result in enumerate(op.results):
            self._same([result, *[block.terminator.operands[i] for block in op.regions]])

    def repeat(self, op: ops.WhileOp) -> None:
        for row in zip(op.inits, op.before.args, op.after.terminator.operands, strict=True):
            self._same(row)
        handed = op.before.terminator.operands[1:]
        for row in zip(handed, op.after.args, op.results, strict=True):
            self._same(row)


_RULES: dict[type[Op], Callable[[Dimensions, Any], None]] = {
    ops.Elementwise: Dimensions.pointwise,
    ops.AssertOp: Dimensions.pointwise,
    ops.AssumeOp: Dimensions.pointwise,
    ops.ArangeOp: Dimensions.source,
    ops.ConstOp: Dimensions.source,
    ops.SplatOp: Dimensions.source,
    ops.BroadcastOp: Dimensions.broadcast,
    ops.ExpandDimsOp: Dimensions.expand,
    ops.TransOp: Dimensions.trans,
    ops.ReshapeOp: Dimensions.reshape,
    ops.JoinOp: Dimensions.pairs,
    ops.SplitOp: Dimensions.pairs,
    ops.DotOp: Dimensions.dot,
    ops.CombineOp: Dimensions.combine,
    ops.GatherOp: Dimensions.gather,
    ops.LoadOp: Dimensions.pointwise,
    ops.StoreOp: Dimensions.pointwise,
    ops.AtomicRmwOp: Dimensions.pointwise,
    ops.AtomicCasOp: Dimensions.pointwise,
    ops.MakeDescriptorOp: Dimensions.source,
    ops.DescriptorLoadOp: Dimensions.block,
    ops.DescriptorStoreOp: Dimensions.block,
    ops.DescriptorGatherOp: Dimensions.rows,
    ops.DescriptorScatterOp: Dimensions.rows,
    ops.ForOp: Dimensions.loop,
    ops.IfOp: Dimensions.branch,
    ops.WhileOp: Dimensions.repeat,
}
