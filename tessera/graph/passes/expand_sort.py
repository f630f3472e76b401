"""Expresses sorts by loops. In short rows each element counts those that come before it, and goes to that place.

graph.loop (%i: s0) { sort (%r: n) { yield key(i, r), value(i, r) } }
    →   k = graph.loop (%i: s0, %r: n) { key(i, r) as an integer of the same order }
        p = graph.loop (%i: s0, %r: n) { sum over (%q: n) q < r ? k[i, q] <= k[i, r] : k[i, q] < k[i, r] }
        o = graph.scatter (%i: s0, %r: n) { o[i, p[i, r]] = r }
        graph.loop (%i: s0) { graph.loop (%r: n) { yield key(i, o[i, r]), value(i, o[i, r]) } }

In rows of at most `FEW` elements there is no scatter, but a sum over the elements that go to a place: of one.
That is n² independent comparisons a row, without a branch: the fastest way for short rows, and a stable one.

On CPUs, keys of up to 32 bits in rows of more than `COUNTED` and up to `LONGEST` elements become the upper half of
integers of 64 bits whose lower half is the place: these are all different, so that any way to sort them is stable, and
the sort of a power of two of them is a kernel by itself (`emit/sorting.py`), of some log2(n)² comparisons an element.
Other rows are left.

    →   k = graph.loop (%i: s0, %r: 512) { r < n ? (key(i, r) as an integer of the same order) << 32 | r : the largest }
        s = graph.loop (%i: s0) { sort (%r: 512) { yield k[i, r] } }
        graph.loop (%i: s0) { graph.loop (%r: n) { o = s[i, r] & 0xffffffff; yield key(i, o), value(i, o) } }
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TypeGuard

from tessera.dtypes import dtype, float32, int1, int16, int32, int64
from tessera.graph.index import Expr
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import LoadOp, LoopOp, SortOp, yielded
from tessera.graph.ir.scalars import Scalar, is_nan, where
from tessera.graph.ir.types import TensorType, product
from tessera.graph.passes.lift import needed
from tessera.ir import Block, Module, Value, pass_
from tessera.ops import arith

# Elements of the longest row that is sorted by counting, by the type of the device; of keys that a network sorts as
# well. (4,096 rows of 28 fp32 take 1.09 ms by counting on a Zen 3's thread, 0.99 by a network, of 64 7.1 and 2.7.)
MOST, COUNTED = {"cpu": 256, "cuda": 1024}, 24
# Elements of the longest row each place of which asks all elements which one comes there: a few comparisons more, but
# no scatter, so that the sort is part of what makes the rows and of what reads them.
FEW = 16
# Of the longest that counting always sorts faster than eager: 4,096 of 64 fp64 take 10.3 ms on a Zen 3, eager 9.7, and
# 4.6 for medians. A GPU counts longer rows, too, that are so few that this takes as long as eager's launches.
# (An H200: 1.1e12 comparisons a second. 4,096 rows of 512 elements took 1,013 us, eager 115.)
ALWAYS, COMPARISONS = {"cpu": 32, "cuda": 64}, 1 << 24
# Elements of the longest row that is sorted by a network: of floats, of integers, which eager sorts faster.
LONGEST = (8192, 2048)
HALF = 32  # bits of the place in an integer that is sorted


@pass_("graph-expand-sorts")
def expand_sorts(module: Module) -> None:
    """Express the sorts of all functions by loops."""
    for function in module.functions:
        expand_sorts_of(function.regions[0])


def expand_sorts_of(body: Block) -> None:
    """Express sorts by loops, at top level and in its loops."""
    for op in list(body):
        if isinstance(op, SortOp):
            _expand(op, None)
        elif isinstance(op, LoopOp):
            for inner in list(op.body):
                if isinstance(inner, SortOp):
                    _expand(inner, op)


def is_short(n: int | Expr, device: str, elem: dtype) -> TypeGuard[int]:
    """Whether rows of n elements of a type are sorted by counting on a device."""
    narrow = device == "cpu" and elem.bits <= HALF
    return isinstance(n, int) and n <= (COUNTED if narrow else MOST[device.split(":")[0]])


def is_quick(rows: Sequence[int | Expr], n: int, device: str) -> bool:
    """Whether counting takes less time than eager's sort for rows of n elements."""
    if n <= ALWAYS[device.split(":")[0]]:
        return True
    count = product(list(rows))
    return device != "cpu" and isinstance(count, int) and count * n * n <= COMPARISONS


def is_medium(n: int | Expr, device: str, elem: dtype, effort: float = inf) -> TypeGuard[int]:
    """Whether rows of n elements of a type are sorted by a network, of fewer comparisons than `effort`."""
    if not isinstance(n, int) or device != "cpu" or elem.bits > HALF:
        return False
    stages, most = (n - 1).bit_length(), LONGEST[0 if elem.is_floating() else 1]
    return n <= most and stages * (stages + 1) // 2 << stages < effort


def _expand(op: SortOp, outer: LoopOp | None) -> None:
    n, first = op.extents[0], outer or op
    device: str = first.results[0].type.device
    elem: dtype = yielded(op.body)[0].type
    around = list(outer.body.args) if outer else []
    g, b = GraphBuilder.before(first, device), GraphBuilder.before(op, device)
    if is_short(n, device, elem) and not is_single(op):
        order, mask = _by_counting(g, op, outer, n), None
    elif is_medium(n, device, elem):
        order, mask = _by_network(g, op, outer, n), (1 << HALF) - 1
    else:
        return

    def sorted_values(p: Value) -> list[Value]:
        at = b.load(order, *around, p)
        if mask is not None:
            at = b.binary("and", at, b.const(mask, int64))
        return b.inlined(op.body, {op.body.args[0]: at})

    made = b.loops([n], sorted_values)
    for new, old in zip(made, op.results, strict=True):
        new.type = old.type
    op.replace_by(made)


def is_single(op: SortOp) -> bool:
    """Whether a sort is one of those that a kernel does: of integers that lie in memory one behind the other."""
    n, load = op.extents[0], yielded(op.body)[0].op
    if not isinstance(load, LoadOp) or op.body.args[0] not in load.indices[-1:] or load.mask:
        return False
    packed = load.tensor.type == TensorType(load.tensor.type.shape, int64) and not load.index_map
    single = packed and len(op.results) == 1 and not op.descending
    return single and isinstance(n, int) and n > COUNTED and not n & (n - 1)


def _by_counting(g: GraphBuilder, op: SortOp, outer: LoopOp | None, n: int) -> Value:
    """The places of elements in the order of the sort, each in a loop of its own."""
    extents = (*(outer.extents if outer else ()), n)
    keys = g.loop(extents, lambda *i: _key(g, op, outer, i))
    places = g.loop(extents, lambda *i: place(g, keys, n, i))
    if n <= FEW:
        return g.loop(extents, lambda *i: _found(g, places, n, i))
    none = g.loop(extents, lambda *i: g.const(0, int64))
    return g.scatter(none, extents, lambda *i: [*i[:-1], g.load(places, *i), i[-1]])


def _found(g: GraphBuilder, places: Value, n: int, indices: Sequence[Value]) -> Value:
    """Which element of a row goes to a place: one does."""
    *outer, r = indices

    def own(q: Value) -> Value:
        here = g.compare("eq", g.load(places, *outer, q), r)
        return g.select(here, q, g.const(0, int64))

    return g.reduce("sum", [n], own)


def _by_network(g: GraphBuilder, op: SortOp, outer: LoopOp | None, n: int) -> Value:
    """Integers in the order of the sort, whose lower halves are the places of elements."""
    rows = outer.extents if outer else ()
    width = 1 << (n - 1).bit_length()
    keys = g.loop((*rows, n), lambda *i: _key(g, op, outer, i))

    def padded(*i: Value) -> Value:
        inside = g.compare("lt", i[-1], g.const(n, int64))
        given = Scalar(g.load(keys, *i, mask=inside), g.b)
        key = given.to(int64)
        if not given.type.signed:
            key = key - (1 << (HALF - 1))
        found = key << HALF | Scalar(i[-1], g.b)
        return g.select(inside, found.value, g.const((1 << 63) - 1, int64))

    joined = g.loop((*rows, width), padded)

    def row(*i: Value) -> list[Value]:
        return g.sort(width, lambda *r: g.load(joined, *i, *r))

    return g.loops(rows, row)[0]


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
