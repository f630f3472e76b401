"""Finds elements of a tile that nothing uses: those whose coordinate along a dimension reaches a bound.

    a = load(p + (rows % m)[:, None] * stride + ks)      rows from m on are loaded from elsewhere,
    acc = dot(a, b, acc)                                 affect only rows from m on of acc,
    store(q, acc, mask=(rows < m)[:, None])              and are not stored: they may as well be zeros

A tile is followed through all its uses. Each use must keep elements along the dimension apart."""

from __future__ import annotations

from collections.abc import Collection

from tessera.analysis.polynomials import Along, Atom, Poly, Polynomials, moved, new_places, varies
from tessera.analysis.provenance import outgoing
from tessera.ir import Effect, Op, Value, shape_of
from tessera.ops import arith, control, gpu, memory, tile

Place = tuple[Value, int]  # a tile and a dimension of it


def conditions(mask: Value, polynomials: Polynomials) -> list[Poly | None]:
    """Return polynomials that are all negative where a mask is true; None for a condition that is no polynomial."""
    op = mask.op
    if isinstance(op, arith.AndOp):
        return conditions(op.lhs, polynomials) + conditions(op.rhs, polynomials)
    if isinstance(op, tile.BroadcastOp | tile.SplatOp | gpu.ConvertLayoutOp):
        return conditions(op.x, polynomials)
    if isinstance(op, arith.CmpOp):
        return [_negative(op.predicate, polynomials.of(op.lhs), polynomials.of(op.rhs))]
    places = new_places(op) if op is not None else None
    if op is None or places is None:
        return [None]
    return [moved(p, places) for p in conditions(op.operands[0], polynomials)]


def _negative(predicate: str, a: Poly | None, b: Poly | None) -> Poly | None:
    if a is None or b is None:
        return None
    one = Poly.constant(1)
    return {"lt": a - b, "le": a - b - one, "gt": b - a, "ge": b - a - one}.get(predicate)


def dead_beyond(v: Value, dim: int, start: Poly, bound: Poly, polynomials: Polynomials) -> bool:
    """Whether no effect of the kernel depends on the elements of `v` whose index along `dim` plus `start` reaches
    `bound`."""
    names = (start + bound).atoms
    todo: list[Place] = [(v, dim)]
    seen = set(todo)
    while todo:
        value, d = todo.pop()
        beyond = Poly.atom(Along(d)) + start - bound
        for op, index in value.uses:
            after = _after(op, index, d, beyond, polynomials)
            if after is None or (isinstance(op, control.YieldOp) and _renamed(op, names)):
                return False
            todo += [place for place in after if place not in seen]
            seen.update(after)
    return True


def _after(
    op: Op, index: int, d: int, beyond: Poly, polynomials: Polynomials
) -> list[Place] | None:
    """Return the tiles (with a dimension) whose elements depend only on this operand's elements at the same coordinate
    along `d`; None if the op uses the elements in another way."""
    if isinstance(op, tile.DotOp):
        rank = len(shape_of(op.result.type))
        kept = (d != rank - 1, d != rank - 2, True)[index]
        return [(op.result, d)] if kept else None
    places = new_places(op)
    if places is not None:
        return [(op.result, places[d])] if shape_of(op.operands[0].type)[d] > 1 else None
    if isinstance(op, tile.ReduceOp):
        return [(r, d - (d > op.axis)) for r in op.results] if d != op.axis else None
    if isinstance(op, memory.StoreOp):
        covered = index == 1 and op.mask is not None and beyond in conditions(op.mask, polynomials)
        return [] if covered else None
    if op.regions or op.terminator:
        loop = op.parent_op() if op.terminator else op
        return None if isinstance(loop, control.WhileOp) else [(v, d) for v in outgoing(op, index)]
    if not isinstance(op, arith.Elementwise | tile.BroadcastOp | gpu.ConvertLayoutOp):
        return None
    spread = shape_of(op.result.type)[d] != shape_of(op.operands[index].type)[d]
    return [(op.result, d)] if not spread and op.effects is Effect.NONE else None


def _renamed(op: control.YieldOp, names: Collection[Atom]) -> bool:
    """Whether a value that a coordinate is made of changes with the iteration that this op ends."""
    loop = op.parent_op()
    return isinstance(loop, control.ForOp) and any(varies(x, loop) for x in names)
