"""Emits loops over groups of rows, whose programs walk through the rows of a group and reduce columns on the way:

for k in range(0, 32):                         the rows of a group, one or several at a time
    x, dy = load row                           as the kernel of rows alone does it
    store dx
    acc = acc + dy                             a tile of a row's length, or of several rows
store acc
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.dtypes import dtype
from tessera.graph.emit.accesses import offset_of, place_of
from tessera.graph.emit.inner import InnerNest, Pass
from tessera.graph.emit.scopes import Index, Scope
from tessera.graph.emit.tiles import CannotEmit
from tessera.graph.emit.tiling import Axis, Machine, Tiling, next_power
from tessera.graph.index import Expr
from tessera.graph.ir.ops import LoopOp, ReduceOp, yielded
from tessera.graph.ir.types import TensorType, product
from tessera.ir import Block, Op, Value, elem_of, shape_of

Store = tuple[int, list[Expr], Value, Scope]  # the number of a result, its coordinates, its value


@dataclass(frozen=True, slots=True)
class Walk:
    """A loop over groups of rows. `rows`: the loop over those of a group; `columns`: loops of one reduction each, over
    these rows."""

    op: LoopOp
    rows: LoopOp
    columns: tuple[LoopOp, ...]


def walk_of(op: Op) -> Walk | None:
    """The parts of a loop over groups of rows; None for any other op."""
    if not isinstance(op, LoopOp) or not op.joined or len(op.extents) != 1:
        return None
    rows, *columns = [x for x in op.body if isinstance(x, LoopOp)] or [None]
    inner = [x for c in columns if c is not None for x in c.body if x.regions]
    if rows is None or not columns or len(inner) != len(columns):
        return None
    if any(not isinstance(r, ReduceOp) or r.extents != rows.extents for r in inner):
        return None
    return Walk(op, rows, tuple(c for c in columns if c is not None))


def tiling_of(walk: Walk, machine: Machine) -> Tiling:
    """A program for each group; tiles of as many whole rows as there is room for, and divide a group."""
    widths = [product(c.extents) for c in walk.columns]
    for v in yielded(walk.rows.body):
        widths.append(product(v.type.shape) if isinstance(v.type, TensorType) else 1)
    for x in walk.rows.body:
        widths.append(product(x.extents) if x.regions else 1)  # type: ignore[attr-defined]
    known = [n for n in widths if isinstance(n, int)]
    if len(known) != len(widths):
        raise CannotEmit("a group's rows are not of a known length")
    width = next_power(max(known))
    rows = max(1, machine.step // width)
    each = walk.rows.extents[0]
    if not isinstance(each, int):
        rows = max(1, machine.tile // width)
    while rows > 1 and Index(0, each, rows, 0).exact is False:
        rows //= 2
    rank = 1 + (rows > 1)
    warps = min(16, max(1, next_power(rows * width // 512)))
    axes = (Axis((0,), walk.op.extents[0], 1, None),)
    return Tiling(axes, rank, rank - 1, True, rows * width, warps)


class WalkNest(InnerNest):
    """The nest of a walk; `scope`: that of the row that the walk is at."""

    def __init__(self, walk: Walk, tiling: Tiling, index_type: dtype):
        super().__init__(tiling, index_type, exact=False)
        self.walked = walk
        self.scope: Scope | None = None

    def element(
        self, v: Value, coordinates: Sequence[Expr], scope: Scope, mask: Value | None = None
    ) -> Value:
        """What the rows have made is read where it was made."""
        if v.op is not self.walked.rows:
            return super().element(v, coordinates, scope, mask)
        made = yielded(self.walked.rows.body)[v.index]
        assert self.scope is not None
        if isinstance(made.type, TensorType):
            return super().element(made, coordinates[1:], scope, mask)
        return self.value(made, self.scope)


def emit_walk(nest: WalkNest, op: LoopOp, outer: Scope) -> dict[Value, Expr]:
    """Compute and store the rows of a group, one step after the other, and then what they come to in each column."""
    (group,) = (outer.bound[a] for a in op.body.args)
    index = _row_index(nest)
    reductions = [x for c in nest.walked.columns for x in c.body if isinstance(x, ReduceOp)]
    written: dict[Value, Expr] = {}

    def step(p: Pass) -> None:
        nest.scope = outer.child(nest.walked.rows.body, [index.whole], p.block, None)
        stores = _row_values(nest, index, p, group)
        for r in reductions:
            p.nexts += _accumulated(nest, r, index, p, outer)
        for k, place, v, scope in stores:  # when all that is read of a row has been read
            inside = nest.below(place[0], op.joined[k])
            nest.store(op.results[k], place, v, scope, inside)
            written[op.results[k]] = nest.indices.by_parts(offset_of(op.results[k].type, place))

    found = nest.walk(index, step, reductions)
    _store_columns(nest, op, reductions, found, group, outer, written)
    return written


def _row_index(nest: WalkNest) -> Index:
    """The index of a row in its group; several at a time lie along the first dimension of tiles."""
    several = nest.tiling.rank > 1
    width = max(next_power(product(c.extents)) for c in nest.walked.columns)  # type: ignore[arg-type]
    rows = nest.tiling.step // width if several else 1
    index = nest.indices.new(nest.walked.rows.extents[0], rows, 0 if several else None)
    if several:
        nest.places[0] = index
    return index


def _row_values(nest: WalkNest, index: Index, p: Pass, group: Expr) -> list[Store]:
    """What is stored of the rows of a step."""
    op, row = nest.walked.op, nest.scope
    assert row is not None
    stores: list[Store] = []
    for k, v in enumerate(yielded(op.body)):
        if v.op is not nest.walked.rows:
            continue
        made = yielded(nest.walked.rows.body)[v.index]
        inner: list[Expr] = []
        scope = row
        if isinstance(made.type, TensorType):
            along, inner = nest.space(made.type.shape)
            nest.walk(along, lambda q: None)
            scope = row.child(Block(), [], p.block, along)
            value = nest.element(made, inner, scope)
        else:
            value = nest.value(made, row)
        stores.append((k, place_of(op, k, [group], [index.whole, *inner]), value, scope))
    return stores


def _accumulated(nest: WalkNest, r: ReduceOp, index: Index, p: Pass, outer: Scope) -> list[Value]:
    """What the columns come to with the rows of this step."""
    t = nest.tiles
    column = r.parent_op()
    assert isinstance(column, LoopOp) and nest.scope is not None
    along, coordinates = nest.space(column.extents)
    at = nest.scope.child(column.body, coordinates, p.block, along)
    here = at.child(r.body, [index.whole], p.block, along)
    shape = tuple(
        along.block if k == along.place else index.block if k == index.place else 1
        for k in range(t.rank)
    )
    values = [t.spread(nest.value(v, here), shape) for v in yielded(r.body)]
    if not p.loop:
        return values
    starts = [(n, elem_of(v.type)) for n, v in zip(r.identities, values, strict=True)]
    before = nest.carry(p, shape_of(values[0].type), starts)
    return t.inline(r.combine, [*before, *values])


def _store_columns(
    nest: WalkNest,
    op: LoopOp,
    reductions: Sequence[ReduceOp],
    found: Sequence[Value],
    group: Expr,
    outer: Scope,
    written: dict[Value, Expr],
) -> None:
    rest, made = list(found), dict[Value, Value]()
    for r in reductions:
        values, rest = rest[: len(r.results)], rest[len(r.results) :]
        if nest.tiling.rank > 1:
            values = nest.tiles.reduce(values, 0, r.combine)
        column = r.parent_op()
        assert isinstance(column, LoopOp)
        numbers = {v: k for k, v in enumerate(yielded(column.body))}
        made |= {column.results[numbers[x]]: v for x, v in zip(r.results, values, strict=True)}
    for k, v in enumerate(yielded(op.body)):
        if v in made:
            along, coordinates = nest.space(v.type.shape)
            place = [group, *coordinates]
            scope = outer.child(Block(), [], outer.target, along)
            nest.store(op.results[k], place, made[v], scope)
            written[op.results[k]] = nest.indices.by_parts(offset_of(op.results[k].type, place))
