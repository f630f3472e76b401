"""Cuts off the end of tiles that a mask with a constant bound leaves out: heads of 96 numbers in tiles of 128.

    dims = arange(0, 128)                              dims = arange(0, 96)
    q = load(p + dims, mask=dims < 96, other=0)   →    q = load(p + dims)
    s = dot(q, k, 0)             depth 128             s = dot(q, k, 0)             depth 96

The language has tiles of powers of two only; loops have no such limit. What a mask leaves out of loads and stores costs
little, but a dot multiplies the zeros. Dimensions that correspond are cut together, wherever they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tessera.analysis.dead_elements import conditions
from tessera.analysis.dimensions import Dim, Dimensions
from tessera.analysis.polynomials import Along, Poly, Polynomials, new_places
from tessera.dtypes import dtype
from tessera.ir import Builder, Effect, Module, Op, TileType, Value, elem_of, pass_, shape_of
from tessera.ir.applications import apply
from tessera.ops import arith, control, memory, special, tile
from tessera.passes.neutral.known_comparisons import known_comparisons

UNIT = 32  # of extents: two bf16 for each of the 16 rows of a tile of the matrix unit
UNIT_BYTES = 64  # the same for products of bytes: four for each row
COPIES = 4  # of each op at most, on average; attention needs one. Index arithmetic that shares more stays shared
_APART = (
    arith.ConstOp, tile.ArangeOp, tile.SplatOp, tile.BroadcastOp, tile.ExpandDimsOp, tile.TransOp, control.ForOp,
    control.IfOp, control.WhileOp, control.YieldOp, control.ConditionOp,
)  # fmt: skip


@pass_("narrow-tiles", optimization="narrow-tiles", counts=True)
def narrow_tiles(module: Module) -> None:
    """Cut off the end of tiles that no effect depends on.

    Takes: tile IR. A dimension of a dot, and all that correspond, end at a constant bound for each effect: masks of
    stores are false from there on, both operands of a dot along its depth are zero.
    Gives: the same ops on tiles whose extent is that bound, rounded up to a multiple of 32 (of 64 for bytes).
    Needs: the CPU, where extents need not be powers of two.
    Raises: nothing.
    Example: `columns` of tests/filecheck/narrow-tiles.tir
        arange {end=128}; cmp; load; dot; store → arange {end=96}; load; dot; store
    Compare: `SimplifyDemandedVectorElts` of LLVM InstCombine, for one vector.
    """
    changed = False
    for func in module.body:
        if isinstance(func, control.FuncOp) and _may_narrow(func):
            _part(func)
            changed |= _narrow(func)
    if changed:
        known_comparisons(module)  # most masks hold everywhere now


def _may_narrow(func: control.FuncOp) -> bool:
    """Whether a function has dots, and a comparison that fails from some index on."""
    ops, ends = list(func.walk()), _Ends()
    return any(isinstance(op, tile.DotOp) for op in ops) and any(
        (ends.masked(op.result, d) or n) < n
        for op in ops
        if isinstance(op, arith.CmpOp)
        for d, n in enumerate(shape_of(op.result.type))
    )


def _part(func: control.FuncOp) -> None:
    """Give each user index arithmetic of its own: dimensions do not correspond because their extents are equal. `cse`
    joins again what stays equal."""
    ops = list(func.walk())
    room = COPIES * len(ops)
    sources: set[Value] = set()
    for op in ops:
        if _is_source(op, sources):
            sources.update(op.results)
    for op in reversed(ops):
        uses = list(op.results[0].uses)[1:] if op.results and op.results[0] in sources else []
        room -= len(uses)
        for user, index in uses if room >= 0 else ():
            own = op.clone({})
            Builder.before_op(op).insert(own)
            user.set_operand(index, own.results[0])


def _is_source(op: Op, sources: Collection[Value]) -> bool:
    """Whether an op computes a tile of constants, indices or masks from nothing but scalars."""
    if isinstance(op, arith.ConstOp | tile.SplatOp | tile.ArangeOp):
        return isinstance(op.results[0].type, TileType)
    whole = isinstance(op, arith.Elementwise) and _keeps_apart(op) and _is_integer(op.results[0])
    return (whole or isinstance(op, tile.ExpandDimsOp | tile.BroadcastOp)) and all(
        x in sources for x in op.operands
    )


def _is_integer(v: Value) -> bool:
    e = elem_of(v.type)
    return isinstance(e, dtype) and e.is_int()


def _narrow(func: control.FuncOp) -> bool:
    dimensions, ends = Dimensions(func), _Ends()
    needed: dict[Dim, int] = {}
    dots: dict[Dim, list[tile.DotOp]] = {}
    demands = list(_whole(func.body.args))  # arguments have the types that callers know
    for op in func.walk():
        demands += ends.needed_by(op) if op is not func else ()
        if isinstance(op, tile.DotOp):
            for v, d, _ in _whole((op.a, op.b)):
                dots.setdefault(dimensions.find((v, d)), []).append(op)
    for v, d, end in demands:
        name = dimensions.find((v, d))
        needed[name] = max(needed.get(name, 0), end)
    changed = False
    for name, members in dimensions.classes().items():
        end = _rounded(needed.get(name, 0), dots.get(name, ()))
        tiles = all(isinstance(v.type, TileType) for v, _ in members)
        v, d = name
        if (
            tiles
            and name in dots
            and 0 < end < shape_of(v.type)[d]
            and apply("narrow-tiles", dots[name][0])
        ):
            _cut(members, end)
            changed = True
    return changed


def _whole(values: Iterable[Value]) -> Iterable[tuple[Value, int, int]]:
    """Yield that all elements of tiles are needed."""
    for v in values:
        for d, n in enumerate(shape_of(v.type)):
            yield v, d, n


def _rounded(end: int, dots: Iterable[tile.DotOp]) -> int:
    """Return the extent of tiles of which `end` elements are needed."""
    small = any(elem_of(x.type).bits <= 8 for op in dots for x in (op.a, op.b))
    unit = UNIT_BYTES if small else UNIT
    return -(-end // unit) * unit


def _cut(members: Iterable[Dim], end: int) -> None:
    for v, d in members:
        shape = shape_of(v.type)
        v.type = TileType((*shape[:d], end, *shape[d + 1 :]), elem_of(v.type))
        if isinstance(v.op, tile.ArangeOp):
            v.op.end = v.op.start + end


class _Ends:
    """How many elements along a dimension matter. None: all that there are, or more than is known."""

    def __init__(self) -> None:
        self.polynomials = Polynomials()

    def needed_by(self, op: Op) -> Iterable[tuple[Value, int, int]]:
        """Yield (tile, dimension, elements needed) where an op does more than to keep elements along it apart."""
        if isinstance(op, memory.StoreOp | memory.AtomicRmwOp):
            yield from self._written(op)
        elif isinstance(op, tile.DotOp):
            yield self._depth(op)
        elif isinstance(op, tile.ReduceOp):
            for v in op.inputs:
                yield v, op.axis, shape_of(v.type)[op.axis]
        elif not _keeps_apart(op):
            yield from _whole((*op.operands, *op.results))

    def _written(self, op: memory.StoreOp | memory.AtomicRmwOp) -> Iterable[tuple[Value, int, int]]:
        for d, n in enumerate(shape_of(op.ptr.type)):
            end = self.masked(op.mask, d)
            yield op.ptr, d, n if end is None else min(n, end)

    def _depth(self, op: tile.DotOp) -> tuple[Value, int, int]:
        last = len(shape_of(op.a.type)) - 1
        ends = (self._zero(op.a, last), self._zero(op.b, last - 1))
        whole = shape_of(op.a.type)[last]
        return op.a, last, min(whole, max(whole if end is None else end for end in ends))

    def masked(self, mask: Value | None, d: int) -> int | None:
        """Return the index along `d` from which on a mask is false."""
        if mask is None:
            return None
        found: list[int] = []
        for p in conditions(mask, self.polynomials):
            rest = (p - Poly.atom(Along(d))).value if p is not None else None
            if rest is not None:
                found.append(max(-rest, 0))
        return min(found, default=None)

    def _zero(self, v: Value, d: int) -> int | None:
        """Return the index along `d` from which on all elements are zero."""
        op = v.op
        if isinstance(op, arith.ConstOp):
            return 0 if not op.value else None
        if isinstance(op, memory.LoadOp):
            zero = op.other is None or self._zero(op.other, d) == 0
            return self.masked(op.mask, d) if zero else None
        if isinstance(op, tile.BroadcastOp):
            same = shape_of(op.x.type)[d] == shape_of(v.type)[d]
            return self._zero(op.x, d) if same else self._uniform(op.x)
        if isinstance(op, tile.SplatOp):
            return self._uniform(op.x)
        if isinstance(op, arith.CastOp):
            return self._zero(op.x, d)
        if isinstance(op, arith.SelectOp):
            return self._chosen(op, d)
        places = new_places(op) if isinstance(op, tile.ExpandDimsOp | tile.TransOp) else None
        if op is None or places is None or d not in places:
            return None
        return self._zero(op.operands[0], places.index(d))

    def _uniform(self, v: Value) -> int | None:
        """Return 0 if a value is zero everywhere."""
        while isinstance(v.op, tile.Rearrangement | arith.CastOp):
            v = v.op.x
        return 0 if isinstance(v.op, arith.ConstOp) and not v.op.value else None

    def _chosen(self, op: arith.SelectOp, d: int) -> int | None:
        other = self._zero(op.on_false, d)
        ends = [
            x for x in (self.masked(op.condition, d), self._zero(op.on_true, d)) if x is not None
        ]
        return max(other, min(ends)) if other is not None and ends else None


def _keeps_apart(op: Op) -> bool:
    """Whether element i of the results depends on element i of the operands only, along each dimension of theirs."""
    if isinstance(op, memory.LoadOp):
        return not op.volatile
    if isinstance(op, arith.HintOp):  # promises are about blocks of elements
        return not any(n > 1 for n in (*op.contiguity, *op.constancy))
    if isinstance(op, special.InlineAsmOp):
        return False  # may take several elements at once
    plain = isinstance(op, arith.Elementwise) and op.effects is Effect.NONE
    return plain or isinstance(op, _APART)
