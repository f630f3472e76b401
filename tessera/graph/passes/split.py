"""Splits reductions that few programs would do: partial results of many parts first, then those together.

graph.loop () { sum over (%r: 1048576) x[r] }
    →   t = graph.loop (%s: 264) { sum over (%c: 3972) x[s * 3972 + c] }        the last part is masked
        graph.loop () { sum over (%s: 264) t[s] }
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tessera.dtypes import int64
from tessera.graph.emit.scopes import delinearised
from tessera.graph.emit.tiling import Machine, Size, choose, next_power
from tessera.graph.index import Expr, IndexMap, dim, expr
from tessera.graph.ir.ops import (
    CheckedOp,
    CombiningOp,
    IndexOp,
    LoadOp,
    LoopOp,
    ReduceOp,
    SortOp,
    yielded,
)
from tessera.graph.ir.types import TensorType, product
from tessera.graph.passes.inline import masked
from tessera.ir import Block, Builder, Op, Value
from tessera.ir.applications import apply
from tessera.ir.rewrite import lies_in
from tessera.ops import FuncOp, YieldOp, arith


def split_reductions(function: FuncOp, machine: Machine, whole: Collection[Op] = ()) -> None:
    """Split the reductions of a graph function that would leave most of a machine idle, but in the loops `whole`."""
    for op in list(function.body):
        if isinstance(op, LoopOp) and op not in whole and not op.joined:
            parts = _parts(op, machine)
            if parts > 1 and apply("graph-split-reductions", op):
                _split(op, parts)


def _parts(op: LoopOp, machine: Machine) -> int:
    """How many parts the reductions of a nest should be done in; 1: they stay whole."""
    inner = [x for x in op.body if isinstance(x, LoopOp | CombiningOp | SortOp)]
    reductions = [x for x in inner if isinstance(x, ReduceOp)]
    totals = [n for x in reductions if isinstance(n := product(list(x.extents)), int)]
    if not reductions or not len(totals) == len(reductions) == len(inner) or 0 in totals:
        return 1
    if any(isinstance(v.type, TensorType) for v in yielded(op.body)):
        return 1
    tiling = choose(op, op.extents, machine)
    programs, beside = tiling.programs, product([a.block for a in tiling.axes])
    if not isinstance(programs, int) or not programs:
        return 1
    if any(depends(x, reductions) for x in reductions):
        return 1
    if tiling.whole and tiling.inner == tiling.rank - 1 and not machine.exact:
        return 1  # a row is loaded at once, in less time than another launch takes
    wanted = 2 * machine.lanes // programs
    if not isinstance(beside, int) or wanted <= 1:
        return 1
    return min(next_power(wanted), max(totals) * beside // machine.part)


def depends(op: ReduceOp, others: Sequence[ReduceOp]) -> bool:
    """Whether what an op reduces is computed from the result of another reduction."""
    seen = set[Op]()
    todo: list[Op] = [op]
    while todo:
        for x in todo.pop().walk():
            for v in x.operands:
                d = v.op
                if d is not None and d not in seen and d.parent is op.parent:
                    if d in others:
                        return True
                    seen.add(d)
                    todo.append(d)
    return False


def _split(op: LoopOp, parts: int) -> None:
    """Put a loop of partial results in front of a nest, whose reductions then go over those. Each has parts of its own
    length, and reads no more of them than it has; of the longest one no part is empty."""
    reductions = [x for x in op.body if isinstance(x, ReduceOp)]
    totals = [n for x in reductions if isinstance(n := product(list(x.extents)), int)]
    most = max(totals)
    parts = -(-most // -(-most // parts))
    each = [-(-total // parts) for total in totals]
    partial = _partial_loop(op, reductions, parts, each, totals)
    results = iter(partial.results)
    for r, length, total in zip(reductions, each, totals, strict=True):
        body = Block([int64], names=["s"])
        b = Builder(body)
        at = [body.args[0], *op.body.args]
        loads = [b.emit(LoadOp(next(results), at, None, None)) for _ in r.results]
        b.insert(YieldOp(loads))
        regions = [body, r.combine.clone({})]
        count = -(-total // length)
        new = ReduceOp(extents=(count,), identities=r.identities, regions=regions)
        Builder.before_op(r).insert(new)
        r.replace_by(new.results)


def _partial_loop(
    op: LoopOp,
    reductions: Sequence[ReduceOp],
    parts: int,
    each: Sequence[int],
    totals: Sequence[int],
) -> LoopOp:
    """The loop over the parts and the nest's indices, inserted before the nest. What lies side by side in memory before
    the sum does so behind it, too."""
    block = Block([int64] * (len(op.extents) + 1))
    part, *indices = block.args
    mapping: dict[Value, Value] = dict(zip(op.body.args, indices, strict=True))
    b = Builder(block)
    made: list[Value] = []
    of = {x: pair for x, *pair in zip(reductions, each, totals, strict=True)}
    for x in op.body:
        if isinstance(x, ReduceOp):
            length, total = of[x]
            made += part_of(b, x, mapping, part, length, total, parts * length > total)
        elif not isinstance(x, YieldOp) and all(
            v in mapping or v.block is not op.body for v in x.operands
        ):
            b.insert(x.clone(mapping))
    b.insert(YieldOp(made))
    loop = LoopOp(extents=(parts, *op.extents), regions=[block])
    for r in loop.results:
        r.type = TensorType(r.type.shape, r.type.elem, None, op.results[0].type.device)
    Builder.before_op(op).insert(loop)
    return loop


def part_of(
    b: Builder,
    op: ReduceOp,
    mapping: dict[Value, Value],
    part: Value,
    each: int,
    total: int,
    beyond: bool,
) -> Sequence[Value]:
    """The reduction of one part of an extent; what lies behind the extent counts as the identity."""
    body = part_body(op, mapping, part, each, total, op.identities, beyond)
    regions = [body, op.combine.clone(dict(mapping))]
    return b.insert(ReduceOp(extents=(each,), identities=op.identities, regions=regions)).results


def part_body(
    op: LoopOp | CombiningOp,
    mapping: dict[Value, Value],
    part: Value,
    each: Size,
    total: Size,
    outside: Sequence[int | float | bool] = (),
    beyond: bool = False,
) -> Block:
    """The body of a nest for element c of a part: nothing is loaded behind the end of the extent, and `outside` is
    what the body yields there, where that matters. `beyond`: whether whole parts may lie there."""
    body = Block([int64], names=["c"])
    inner = Builder(body)
    place = dim(0) * each + dim(1)
    indices = [part, body.args[0]]
    at = dict(mapping)
    for a, e in zip(op.body.args, delinearised(place, op.extents), strict=True):
        at[a] = _index(inner, indices, e)
    inside: Value | None = None
    if beyond or not (isinstance(total, int) and isinstance(each, int) and total % each == 0):
        end = inner.emit(IndexOp([], index_map=IndexMap(0, [expr(total)])))
        inside = inner.emit(arith.CmpOp(_index(inner, indices, place), end, predicate="lt"))
    for x in op.body:
        if isinstance(x, YieldOp):
            break
        new = inner.insert(x.clone(at))
        if inside is not None:
            _mask_loads(new, inside, body)
    values = [at.get(v, v) for v in yielded(op.body)]
    if inside is not None and outside:
        values = [
            inner.emit(
                arith.SelectOp(inside, v, inner.emit(arith.ConstOp(value=n, results=[v.type])))
            )
            for v, n in zip(values, outside, strict=True)
        ]
    inner.insert(YieldOp(values))
    return body


def _index(b: Builder, indices: Sequence[Value], e: Expr) -> Value:
    return b.emit(IndexOp(list(indices), index_map=IndexMap(2, [e])))


def _mask_loads(op: Op, inside: Value, block: Block) -> None:
    """Let the loads in an op read only where `inside` holds; what the block around it makes is there."""
    for x in list(op.walk()):
        if isinstance(x, CheckedOp) or (
            isinstance(x, LoadOp) and not lies_in(x.tensor.block, block)
        ):
            masked(x, inside)
