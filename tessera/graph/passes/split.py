"""Splits reductions that few programs would do: partial results of many parts first, then those together.

graph.loop () { sum over (%r: 1048576) x[r] }
    →   t = graph.loop (%s: 264) { sum over (%c: 3972) x[s * 3972 + c] }        the last part is masked
        graph.loop () { sum over (%s: 264) t[s] }
graph.loop (%j: 3) { sum over (%r: 4096) x[r, j] }                         several rows are whole vectors of a CPU
    →   t = graph.loop (%s: 4, %p: 8, %j: 3) { sum over (%c: 128) x[(s * 128 + c) * 8 + p, j] }
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import gcd

from tessera.dtypes import int64
from tessera.graph.emit.accesses import Accesses
from tessera.graph.emit.scopes import delinearised
from tessera.graph.emit.tiling import Machine, Size, choose, coalesced, next_power
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
from tessera.ir.rewrite import is_dead, lies_in
from tessera.ops import FuncOp, YieldOp, arith

ROW = 32  # elements that keep the units for vectors of a CPU busy, in so few registers that two parts fit


def split_reductions(function: FuncOp, machine: Machine, whole: Collection[Op] = ()) -> None:
    """Split the reductions of a graph function that would leave most of a machine idle, but in the loops `whole`."""
    for op in list(function.body):
        if isinstance(op, LoopOp) and op not in whole and not op.joined:
            parts = _parts(op, machine)
            if parts > 1 and apply("graph-split-reductions", op):
                _split(op, parts, ROW if machine.exact else 1)


def _parts(op: LoopOp, machine: Machine) -> int:
    """How many parts the reductions of a nest should be done in; 0 or 1: they stay whole."""
    inner = [x for x in op.body if isinstance(x, LoopOp | CombiningOp | SortOp)]
    reductions = [x for x in inner if isinstance(x, ReduceOp)]
    totals = [n for x in reductions if isinstance(n := product(list(x.extents)), int)]
    if not reductions or not len(totals) == len(reductions) == len(inner) or 0 in totals:
        return 1
    if depends(op.body, reductions) or any(
        isinstance(v.type, TensorType) for v in yielded(op.body)
    ):
        return 1
    tiling = choose(op, op.extents, machine)
    programs, beside = tiling.programs, product([a.block for a in tiling.axes])
    if not isinstance(programs, int) or not isinstance(beside, int) or not programs:
        return 1
    if tiling.whole and tiling.inner == tiling.rank - 1 and not machine.exact:
        return 1  # a row is loaded at once, in less time than another launch takes
    wanted = 2 * machine.lanes // programs
    return min(next_power(max(1, wanted)), max(totals) * beside // machine.part)


def depends(block: Block, reductions: Sequence[ReduceOp]) -> bool:
    """Whether what one of several reductions in a block reduces is computed from the result of another."""
    reached = set[Op]()
    for x in block:
        if any(v.op in reached for y in x.walk() for v in y.operands):
            if x in reductions:
                return True
            reached.add(x)
        elif x in reductions:
            reached.add(x)
    return False


def _split(op: LoopOp, parts: int, most: int) -> None:
    """Put a loop of partial results in front of a nest, whose reductions then go over those. Each has parts of its own
    length, of rows of at most so many elements, and reads no more than it has; of the longest one no part is empty."""
    reductions = [x for x in op.body if isinstance(x, ReduceOp)]
    totals = [n for x in reductions if isinstance(n := product(list(x.extents)), int)]
    rows = _rows(product(op.extents), gcd(*totals), most)
    longest, beside = max(totals) // rows, (rows,) if rows > 1 else ()
    shared = -(-longest // -(-longest // parts))
    sizes = [(-(-(n // rows) // shared), n // rows) for n in totals]
    partial = _partial_loop(op, (shared, *beside), sizes)
    if beside and len(coalesced(partial.extents, Accesses(partial, partial.extents).found)) > 2:
        partial.erase()  # some of what it reads does not go on from one row to the next
        _split(op, parts, 1)
        return
    results = iter(partial.results)
    for r, (length, total) in zip(reductions, sizes, strict=True):
        extents = (-(-total // length), *beside)
        body = Block([int64] * len(extents))
        b = Builder(body)
        at = [*body.args, *op.body.args]
        b.insert(YieldOp([b.emit(LoadOp(next(results), at, None, None)) for _ in r.results]))
        regions = [body, r.combine.clone({})]
        new = ReduceOp(extents=extents, identities=r.identities, regions=regions)
        Builder.before_op(r).insert(new)
        r.replace_by(new.results)


def _rows(columns: Size, total: int, most: int) -> int:
    """How many rows of few columns a part should take at a time, so that they fill vectors."""
    if not isinstance(columns, int) or not 1 < columns <= most // 2:
        return 1
    found = [n for n in range(1, most // columns + 1) if total % n == 0]
    return max(found, key=lambda n: (n * columns % 8 == 0, n))


def _partial_loop(op: LoopOp, parts: Sequence[int], sizes: Sequence[tuple[int, int]]) -> LoopOp:
    """The loop over the parts, their rows and the nest's indices, inserted before the nest. `sizes`: of each reduction
    the length of a part and of all. What lies side by side in memory before the sum does so behind it, too."""
    block = Block([int64] * (len(parts) + len(op.extents)))
    at, indices = block.args[: len(parts)], block.args[len(parts) :]
    mapping: dict[Value, Value] = dict(zip(op.body.args, indices, strict=True))
    b = Builder(block)
    made: list[Value] = []
    each = iter(sizes)
    for x in op.body:
        if isinstance(x, ReduceOp):
            length, total = next(each)
            beyond = parts[0] * length > total
            body = part_body(x, mapping, at, length, total, x.identities, beyond, parts[1:])
            regions = [body, x.combine.clone(dict(mapping))]
            new = ReduceOp(extents=(length,), identities=x.identities, regions=regions)
            made += b.insert(new).results
        elif not x.terminator and all(v in mapping or v.block is not op.body for v in x.operands):
            b.insert(x.clone(mapping))
    b.insert(YieldOp(made))
    loop = LoopOp(extents=(*parts, *op.extents), regions=[block])
    for r in loop.results:
        r.type = TensorType(r.type.shape, r.type.elem, None, op.results[0].type.device)
    Builder.before_op(op).insert(loop)
    for x in filter(is_dead, reversed(list(block))):
        x.erase()
    return loop


def part_body(
    op: LoopOp | CombiningOp,
    mapping: dict[Value, Value],
    parts: Sequence[Value],
    each: Size,
    total: Size,
    outside: Sequence[int | float | bool] = (),
    beyond: bool = False,
    rows: Sequence[int] = (),
) -> Block:
    """The body of a nest for element c of a part: nothing is loaded behind the end of the extent, and `outside` is
    what the body yields there, where that matters. `beyond`: whether whole parts may lie there. `rows`: of how many
    neighbours an element takes the one that the second of `parts` says."""
    body = Block([int64], names=["c"])
    inner = Builder(body)
    place = dim(0) * each + dim(1)
    first = place * rows[0] + dim(2) if rows else place
    indices = [parts[0], body.args[0], *parts[1:]]
    at = dict(mapping)
    for a, e in zip(op.body.args, delinearised(first, op.extents), strict=True):
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
        pairs = list(zip(values, outside, strict=True))
        others = [inner.emit(arith.ConstOp(value=n, results=[v.type])) for v, n in pairs]
        values = [inner.emit(arith.SelectOp(inside, *x)) for x in zip(values, others, strict=True)]
    inner.insert(YieldOp(values))
    return body


def _index(b: Builder, indices: Sequence[Value], e: Expr) -> Value:
    return b.emit(IndexOp(list(indices), index_map=IndexMap(len(indices), [e])))


def _mask_loads(op: Op, inside: Value, block: Block) -> None:
    """Let the loads in an op read only where `inside` holds; what the block around it makes is there."""
    for x in list(op.walk()):
        own = isinstance(x, LoadOp) and lies_in(x.tensor.block, block)
        if not own and isinstance(x, LoadOp | CheckedOp):
            masked(x, inside)
