"""Computes the mean and the squared deviations of a row that a program holds by two sums in place of Welford's way,
which divides for each pair that it combines, but reads a row from memory once.

mean, m2, count = welford over (%r: 768) x[r]
    →   mean = (sum over (%r: 768) x[r]) / 768
        m2 = sum over (%r: 768) (x[r] - mean)²;  count = 768
"""

from __future__ import annotations

from tessera.graph.emit.tiling import Machine, choose
from tessera.graph.emit.walk import walk_of
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.combine import is_welford
from tessera.graph.ir.ops import LoopOp, ReduceOp, yielded
from tessera.graph.ir.types import product
from tessera.ir import Value
from tessera.ir.applications import apply
from tessera.ops import ConstOp, FuncOp


def take_moments_twice(function: FuncOp, machine: Machine) -> None:
    """Do so in each nest of a graph function whose programs hold whole rows."""
    for op in list(function.body):
        if not isinstance(op, LoopOp):
            continue
        walk = walk_of(op)
        body = op.body if walk is None else walk.rows.body
        found = [x for x in body if isinstance(x, ReduceOp) and _is_plain(x)]
        if found and (walk is not None or choose(op, op.extents, machine).whole):
            for x in found:
                if apply("graph-sum-moments", x):
                    _expand(x)


def _is_plain(op: ReduceOp) -> bool:
    """Whether it reduces numbers of the weight 1, one by one, to their moments."""
    if not is_welford(op.combine):
        return False
    given = [v.op.value if isinstance(v.op, ConstOp) else None for v in yielded(op.body)]
    return given[1:] == [0, 1]


def _expand(op: ReduceOp) -> None:
    elem = op.results[0].type
    b = GraphBuilder.before(op, "")

    def element(*indices: Value) -> Value:
        return b.inlined(op.body, dict(zip(op.body.args, indices, strict=True)))[0]

    def square(*indices: Value) -> Value:
        left = b.sub(element(*indices), mean)
        return b.mul(left, left)

    total = product(op.extents)
    assert isinstance(total, int)  # of a row that programs hold
    count = b.const(float(total), elem)
    mean = b.div(b.reduce("sum", op.extents, element), count)
    op.replace_by([mean, b.reduce("sum", op.extents, square), count])
