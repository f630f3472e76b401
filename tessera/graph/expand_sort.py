"""Expresses sorts of short rows by loops: each element counts those that come before it, and goes to that place.

graph.loop (%i: s0) { sort (%r: n) { yield key(i, r), value(i, r) } }
    →   k = graph.loop (%i: s0, %r: n) { key(i, r) as an integer of the same order }
        p = graph.loop (%i: s0, %r: n) { sum over (%q: n) q < r ? k[i, q] <= k[i, r] : k[i, q] < k[i, r] }
        o = graph.scatter (%i: s0, %r: n) { o[i, p[i, r]] = r }
        graph.loop (%i: s0) { graph.loop (%r: n) { yield key(i, o[i, r]), value(i, o[i, r]) } }

That is n² comparisons a row, all independent, without a branch: vectors and threads do them at full speed. So it is
the fastest way for short rows, and a stable one. Longer rows than `MOST` are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from tessera.dtypes import dtype, float32, int1, int16, int32, int64
from tessera.graph.build import GraphBuilder
from tessera.graph.index import Expr
from tessera.graph.lift import needed
from tessera.graph.ops import LoopOp, SortOp
from tessera.graph.scalars import Scalar, is_nan, where
from tessera.ir import Block, Module, Value, pass_
from tessera.ops import arith

# Elements of the longest row that is sorted by counting, by the type of the device.
MOST = {"cpu": 256, "cuda": 1024}


@pass_("graph-expand-sorts")
def expand_sorts(module: Module) -> None:
    """Express the sorts of all functions by loops."""
    for function in module.functions:
        expand_sorts_of(function.regions[0])


def expand_sorts_of(body: Block) -> None:
    """Express the sorts of short rows by loops, at top level and in its loops."""
    for op in list(body):
        if isinstance(op, SortOp):
            _expand(op, None)
        elif isinstance(op, LoopOp):
            for inner in list(op.body):
                if isinstance(inner, SortOp):
                    _expand(inner, op)


def is_short(n: int | Expr, device: str) -> TypeGuard[int]:
    """Whether rows of n elements are sorted by counting on a device."""
    return isinstance(n, int) and n <= MOST[device.split(":")[0]]


def _expand(op: SortOp, outer: LoopOp | None) -> None:
    n, first = op.extents[0], outer or op
    device: str = first.results[0].type.device
    if not is_short(n, device):
        return
    g = GraphBuilder.before(first, device)
    extents = (*(outer.extents if outer else ()), n)
    keys = g.loop(extents, lambda *i: _key(g, op, outer, i))
    places = g.loop(extents, lambda *i: place(g, keys, n, i))
    none = g.loop(extents, lambda *i: g.const(0, int64))
    order = g.scatter(none, extents, lambda *i: [*i[:-1], g.load(places, *i), i[-1]])
    around = list(outer.body.args) if outer else []
    b = GraphBuilder.before(op, g.device)

    def sorted_values(p: Value) -> list[Value]:
        return b.inlined(op.body, {op.body.args[0]: b.load(order, *around, p)})

    made = b.loops([n], sorted_values)
    for new, old in zip(made, op.results, strict=True):
        new.type = old.type
    op.replace_by(made)


def _key(g: GraphBuilder, op: SortOp, outer: LoopOp | None, indices: Sequence[Value]) -> Value:
    """The key for these indices, as an integer whose order is the sort's."""
    mapping: dict[Value, Value] = {}
    if outer is not None:
        mapping.update(zip(outer.body.args, indices[:-1], strict=True))
        for x in needed(op, [outer.body]):
            g.b.insert(x.clone(mapping))
    mapping[op.body.args[0]] = indices[-1]
    key = ordered(Scalar(g.inlined(op.body, mapping)[0], g.b))
    return (~key if op.descending else key).value


def ordered(x: Scalar) -> Scalar:
    """An integer in the order of keys: NaNs are equal and above all others, -0 and 0 are equal."""
    if x.type == int1:
        return x.to(int32)
    if not x.type.is_floating():
        return x
    if x.type.bits < 16:
        x = x.to(float32)
    kind: dtype = {16: int16, 32: int32, 64: int64}[x.type.bits]
    most = (1 << (kind.bits - 1)) - 1
    bits = (x + 0.0).emit(arith.BitcastOp((x + 0.0).value, results=[kind]))
    negative = where(bits < 0, bits ^ most, bits)
    return where(is_nan(x), most, negative)


def place(g: GraphBuilder, keys: Value, n: int, indices: Sequence[Value]) -> Value:
    """How many keys of a row come before one (int64)."""
    *outer, r = indices
    own = Scalar(g.load(keys, *indices), g.b)

    def before(q: Value) -> Value:
        other = Scalar(g.load(keys, *outer, q), g.b)
        earlier = g.compare("lt", q, r)
        first = g.select(earlier, (other <= own).value, (other < own).value)
        return g.cast(first, int32)

    return g.cast(g.reduce("sum", [n], before), int64)
