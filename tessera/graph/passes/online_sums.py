"""Computes the largest element of a long row and the sum of its softmax in one walk through the row, in place of two.

m = max over (%r: 128256) x[r]
s = sum over (%r: 128256) exp(x[r] - m)
    →   m, t = softmax_sums over (%r: 128256) (x[r], 1)
        s = t + (m - m)

Whenever a larger element comes, what was summed is scaled (Milakov and Gimelshein, Online normalizer calculation for
softmax, 2018). `m - m` is NaN where eager's sum is: rows that hold an infinity or a NaN as their largest element.
"""

from __future__ import annotations

from tessera.graph.emit.tiling import Machine, choose
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.combine import is_simple, softmax_sums
from tessera.graph.ir.ops import LoopOp, ReduceOp, yielded
from tessera.ir import Op, Value
from tessera.ir.applications import apply
from tessera.ops import ExpOp, FuncOp, SubOp


def sum_softmax_online(function: FuncOp, machine: Machine) -> None:
    """Do so in each nest of a graph function whose programs read rows in steps, but on machines where an exponential
    costs more than reading an element once more."""
    if machine.exact:
        return
    for op in list(function.body):
        if isinstance(op, LoopOp) and not choose(op, op.extents, machine).whole:
            maxima = [x for x in op.body if isinstance(x, ReduceOp) and is_simple(x.combine, "max")]
            for largest in maxima:
                _join(largest)


def _join(largest: ReduceOp) -> None:
    """Make one reduction of one that finds the largest elements and those that sum up exponentials below them."""
    around = dict.fromkeys(x.parent_op() for x in largest.result.users())
    found = [x for x in around if x is not None and _adds(x, largest)]
    if not found or not apply("graph-online-softmax", largest):
        return
    elem = largest.result.type
    b = GraphBuilder.before(largest, "")

    def element(*indices: Value) -> list[Value]:
        given = dict(zip(largest.body.args, indices, strict=True))
        return [b.inlined(largest.body, given)[0], b.const(1.0, elem)]

    most, total = b.reduces(largest.extents, element, softmax_sums, (float("-inf"), 0.0))
    total = b.add(total, b.sub(most, most))
    for op in found:
        op.replace_by([total])
    largest.replace_by([most])


def _adds(op: Op, largest: ReduceOp) -> bool:
    """Whether an op sums up exp(x - m) over what `largest` finds the largest element `m` of."""
    if not isinstance(op, ReduceOp) or op.parent is not largest.parent:
        return False
    if op.extents != largest.extents or not is_simple(op.combine, "sum"):
        return False
    power = yielded(op.body)[0].op
    if not isinstance(power, ExpOp) or not isinstance(power.x.op, SubOp):
        return False
    difference = power.x.op
    if difference.rhs is not largest.result or difference.result.type != largest.result.type:
        return False
    indices = dict(zip(op.body.args, largest.body.args, strict=True))
    return _is_same(difference.lhs, yielded(largest.body)[0], indices)


def _is_same(a: Value, b: Value, known: dict[Value, Value]) -> bool:
    """Whether two values are computed alike from values that are the same, or `known` to be."""
    if a is b or known.get(a) is b:
        return True
    p, q = a.op, b.op
    if p is None or q is None or type(p) is not type(q) or p.regions or p.attrs != q.attrs:
        return False
    if a.index != b.index or p.segments != q.segments or len(p.operands) != len(q.operands):
        return False
    if not all(_is_same(x, y, known) for x, y in zip(p.operands, q.operands, strict=True)):
        return False
    known[a] = b
    return a.type == b.type
