"""Gives loops other index spaces, whose results are views of what the loops made before: extents of 1 go, indices
change places.

A loop over (4, 32, 16, 16) that reads a mean for each of the 32 is, for the loop that makes the means, one over
(32, 4, 16, 16). The results lie in memory as before: their types say which strides the indices have now.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int64
from tessera.graph.index import Expr, IndexMap, dim, expr, size
from tessera.graph.ir.ops import IndexOp, LoadOp, LoopOp, ReduceOp, ScatterOp, ViewOp
from tessera.graph.ir.types import TensorType
from tessera.ir import Block, Builder, Op, Rewriter, RuleSet, Value, rule
from tessera.ops import ConstOp, FuncOp

REINDEX = RuleSet()
Size = int | Expr


def _without_units(op: Op) -> list[int]:
    """The numbers of the extents of a nest that are not 1; the indices below the others become 0 and leave the body."""
    body, extents = op.regions[0], op.attrs["extents"]
    units = [k for k, n in enumerate(extents) if n == 1]
    used = [k for k in units if body.args[k].uses]
    if used:
        zero = ConstOp(value=0, results=[int64])
        assert body.first is not None
        body.insert_before(body.first, zero)
        for k in used:
            body.args[k].replace_all_uses(zero.result)
    for k in reversed(units):
        body.erase_arg(k)
    return [k for k in range(len(extents)) if k not in units]


@rule(REINDEX, LoopOp)
def loop_of_unit_extents(op: LoopOp, rw: Rewriter) -> Sequence[Value] | None:
    """loop (i: 1, j: n) → a view of loop (j: n), at the top level"""
    if all(n != 1 for n in op.extents) or not isinstance(op.parent_op(), FuncOp):
        return None
    kept = _without_units(op)
    return _replaced(op, kept, rw)


@rule(REINDEX, ReduceOp, ScatterOp)
def nest_of_unit_extents(op: ReduceOp | ScatterOp, rw: Rewriter) -> Op | None:
    """reduce (r: 1, s: n) → reduce (s: n);  scatter (i: n, j: 1) → scatter (i: n)"""
    if all(n != 1 for n in op.extents) or all(n == 1 for n in op.extents):
        return None
    op.extents = tuple(op.extents[k] for k in _without_units(op))
    return op


def _replaced(op: LoopOp, order: Sequence[int], rw: Rewriter) -> list[Value]:
    """The values that take the place of a loop's results when its indices are those numbered `order`, which are the
    arguments of its body already."""
    new = LoopOp(
        extents=tuple(op.extents[k] for k in order),
        regions=op.regions,
        results=[_ordered(r.type, len(op.extents), order) for r in op.results],
        loc=op.loc,
    )
    op.regions = []
    rw.insert(new)
    out: list[Value] = []
    for r, n in zip(op.results, new.results, strict=True):
        n.name = r.name
        out.append(rw.emit(_view_back(n, r.type, len(op.extents), order)))
    return out


def _ordered(t: TensorType, outer: int, order: Sequence[int]) -> TensorType:
    """The type of a result whose first `outer` dimensions are now those numbered `order`."""
    places = [*order, *range(outer, t.rank)]
    shape = tuple(t.shape[k] for k in places)
    plain = t.strides is None and list(order) == sorted(order)
    strides = None if plain else tuple(t.all_strides[k] for k in places)
    return TensorType(shape, t.elem, strides, t.device)


def _view_back(v: Value, t: TensorType, outer: int, order: Sequence[int]) -> ViewOp:
    """What has the old type and the same elements."""
    results = [*map(dim, order), *map_dims(outer, t.rank)]
    return ViewOp(v, index_map=IndexMap(t.rank, results), results=[t])


# --- other indices of a loop --------------------------------------------------------------------------------------
def permute(op: LoopOp, order: Sequence[int]) -> LoopOp:
    """The loop whose outermost index is the one numbered `order[0]`, and so on, in the place of a loop."""
    outer = len(op.extents)
    args = [op.body.args[k] for k in order]
    body = Block([a.type for a in args], names=[a.name for a in args])
    mapping = dict(zip(args, body.args, strict=True))
    types = [_ordered(r.type, outer, order) for r in op.results]
    extents = tuple(op.extents[k] for k in order)
    back = [dim(k) for k in order]
    return _put(
        op, LoopOp(extents=extents, regions=[_filled(body, op, mapping)], results=types), back
    )


def split(op: LoopOp, number: int, by: Size) -> LoopOp:
    """The loop that has, for the index of this number, one for the number of a part of `by` iterations and one for the
    place in it. `by` divides the extent."""
    outer = len(op.extents)
    parts = (size(expr(op.extents[number]) // by), by)
    names = [a.name for a in op.body.args]
    names[number : number + 1] = [names[number], ""]
    body = Block([int64] * (outer + 1), names=names)
    whole = IndexOp(
        [body.args[number], body.args[number + 1]], index_map=IndexMap(2, [dim(0) * by + dim(1)])
    )
    body.append(whole)
    args = [*body.args[:number], whole.result, *body.args[number + 2 :]]
    mapping = dict(zip(op.body.args, args, strict=True))
    extents = (*op.extents[:number], *parts, *op.extents[number + 1 :])
    back = [
        *map(dim, range(number)),
        dim(number) // by,
        dim(number) % by,
        *map(dim, range(number + 1, outer)),
    ]
    types = [_split_type(r.type, number, parts) for r in op.results]
    return _put(
        op, LoopOp(extents=extents, regions=[_filled(body, op, mapping)], results=types), back
    )


def _split_type(t: TensorType, number: int, parts: tuple[Size, Size]) -> TensorType:
    shape = (*t.shape[:number], *parts, *t.shape[number + 1 :])
    if t.strides is None:
        return TensorType(shape, t.elem, None, t.device)
    step = t.strides[number]
    strides = (*t.strides[:number], size(expr(step) * parts[1]), step, *t.strides[number + 1 :])
    return TensorType(shape, t.elem, strides, t.device)


def _filled(body: Block, op: LoopOp, mapping: dict[Value, Value]) -> Block:
    """`body` with copies of a loop's ops behind what it has."""
    for inner in op.body:
        body.append(inner.clone(mapping))
    return body


def _put(op: LoopOp, new: LoopOp, back: Sequence[Expr]) -> LoopOp:
    """Put a loop in the place of one whose results are views of the new ones: `back` has the new outer indices as
    expressions of the old ones. Loads read the new results, others use the views."""
    b = Builder.before_op(op)
    new.loc = op.loc
    b.insert(new)
    outer = len(op.extents)
    for r, n in zip(op.results, new.results, strict=True):
        n.name = r.name
        map = IndexMap(r.type.rank, [*back, *map_dims(outer, r.type.rank)])
        view = b.insert(ViewOp(n, index_map=map, results=[r.type]))
        for user in r.users():
            if isinstance(user, LoadOp):
                through = map.compose(user.map)
                user.set_operands(n, list(user.indices), user.mask, user.other)
                user.index_map = None if through.is_identity else through
        r.replace_all_uses(view.result)
        if not view.result.uses:
            view.erase()
    op.erase()
    return new


def map_dims(first: int, last: int) -> list[Expr]:
    return [dim(k) for k in range(first, last)]
