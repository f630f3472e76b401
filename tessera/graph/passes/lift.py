"""Moves a scan out of a nest that no kernel is made for as a whole, to a loop of its own, whose result the nest reads.
One from the end becomes one of the elements in reverse order.

graph.loop (%i: n) { t = graph.loop (%j: m) { scan (%r: k) … };  loads t across the rows }
    →   u = graph.loop (%i: n, %j: m) { scan (%r: k) … }
        graph.loop (%i: n) { t = graph.loop (%j: m) { graph.loop (%r: k) { load u[i, j, r] } };  … }
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.graph.index import IndexMap, dim, expr
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import IndexOp, LoopOp, ScanOp, yielded
from tessera.graph.passes.facts import captured
from tessera.ir import Block, Builder, Op, Value


def needed(op: Op, blocks: Sequence[Block]) -> list[Op]:
    """The ops of some blocks, outer ones first, that what an op captures is computed from, in their order."""
    found = set[Op]()
    todo = [op]
    while todo:
        for v in captured(todo.pop()):
            if v.op is not None and v.block in blocks and v.op not in found:
                found.add(v.op)
                todo.append(v.op)
    return [x for block in blocks for x in block if x in found]


def lift_scans(op: LoopOp) -> list[LoopOp]:
    """Loops of scans that were inside of a top-level loop, now in front of it; none if it is such a loop itself."""
    found = [x for x in op.walk() if isinstance(x, ScanOp)]
    regions = [x for x in op.body if x.regions]
    # One scan is all that such a loop has, or all that it yields, beside what the scan reads.
    for ops in (regions, list({v.op for v in yielded(op.body)})):
        if len(ops) == 1 and isinstance(ops[0], ScanOp) and not ops[0].reverse:
            return []
    lifted = [_lifted(scan, op) for scan in found]
    return [loop for loop in lifted if loop is not None]


def _lifted(scan: ScanOp, top: LoopOp) -> LoopOp | None:
    nests = _loops_around(scan, top)
    if nests is None:
        return None
    device: str = top.results[0].type.device
    g = GraphBuilder.before(top, device)
    args = [a for nest in nests for a in nest.body.args]
    blocks = [nest.body for nest in nests]
    work = needed(scan, blocks)

    def body(*indices: Value) -> list[Value]:
        mapping = dict(zip(args, indices, strict=True))
        for x in work:
            g.b.insert(x.clone(mapping))
        return g.b.insert(_forward(scan, mapping)).results

    results = g.loops([n for nest in nests for n in nest.extents], body)
    b = GraphBuilder.before(scan, device)

    def row(r: Value) -> list[Value]:
        at = b.index(expr(scan.extents[0]) - 1 - dim(0), r) if scan.reverse else r
        return [b.load(t, *args, at) for t in results]

    rows = b.loops(scan.extents, row)
    scan.replace_by(rows)
    loop = results[0].op
    assert isinstance(loop, LoopOp)
    return loop


def _forward(scan: ScanOp, mapping: dict[Value, Value]) -> Op:
    """A copy of a scan, which goes through the elements from the last on if it went from the end."""
    made = scan.clone(mapping)
    if made.reverse:
        made.reverse = False
        (r,) = made.body.args
        users = [(user, k) for user in r.users() for k, v in enumerate(user.operands) if v is r]
        back = IndexMap(1, [expr(made.extents[0]) - 1 - dim(0)])
        place = Builder.at_start(made.body).emit(IndexOp([r], index_map=back))
        for user, k in users:
            user.set_operand(k, place)
    return made


def _loops_around(op: Op, top: LoopOp) -> list[LoopOp] | None:
    """The loops that an op stands in, from the outermost on; None if it stands in something else, too."""
    found: list[LoopOp] = []
    at = op.parent_op()
    while isinstance(at, LoopOp):
        found.insert(0, at)
        if at is top:
            return found
        at = at.parent_op()
    return None
