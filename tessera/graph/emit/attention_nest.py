"""Gives the kernels of attention and of its gradients what they share: programs, tiles of operands, scores.

Tiles lie along queries and what is beside them: keys, or the elements of a head. A tile of scores is rows x keys in
kernels for queries and keys x rows in those for keys, so that no tile that was computed is transposed for a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.dtypes import int32, int64
from tessera.graph.emit.accesses import offset_of, through_views
from tessera.graph.emit.nest import PROGRAM, Nest
from tessera.graph.emit.scopes import Index, Scope, delinearised
from tessera.graph.emit.tiles import CannotEmit
from tessera.graph.emit.tiling import Axis, Machine, Tiling, cdiv, next_power
from tessera.graph.index import Expr, dim, expr, minimum, sym
from tessera.graph.ir.ops import AttentionBase
from tessera.graph.ir.types import product
from tessera.ir import Block, Op, Value, elem_of
from tessera.ops import MATH_OPS, YieldOp, control, tile

LOG2_E = 1 / math.log(2)
Size = int | Expr


def check_types(op: AttentionBase) -> None:
    """CannotEmit where types, or dimensions of heads, are not as a dot wants them."""
    same = op.q.type.elem == op.k.type.elem == op.v.type.elem
    known = isinstance(op.q.type.shape[3], int) and isinstance(op.v.type.shape[3], int)
    if not (same and known and op.q.type.elem.is_floating()):
        raise CannotEmit("an attention of this type, or of dimensions that are not known")


def block_of(n: Size, sizes: Sequence[int], machine: Machine) -> int:
    """Elements of a block along an extent: the first of `sizes`, on CPUs that which goes least beyond the extent."""
    if not isinstance(n, int):
        return sizes[0]
    if not machine.exact:
        return sizes[0] if n > sizes[0] else max(16, next_power(n))
    return fitting(n, sizes)


def fitting(n: int, sizes: Sequence[int]) -> int:
    """The block of an extent on CPUs. Even one that is the whole extent is a multiple of 16, whose vectors are full."""
    if n <= max(sizes):
        return max(1, n) if n < 16 else -(-n // 16) * 16
    return min(sizes, key=lambda size: -(-n // size) * size)


class AttentionNest(Nest):
    """Programs compute a head and a block of queries or keys, of one of `sizes`: they lie along the rows of tiles
    (`own`). `of` tells whose: the operand of queries, or of keys. Without `sizes` they compute all blocks of a head.
    `at`: the coordinates of a program's batch and head. `deep`, `across`: the elements of a head of q and k, and of v,
    along rows and along columns."""

    def __init__(
        self,
        op: AttentionBase,
        of: Value,
        sizes: Sequence[int],
        machine: Machine,
        wide: bool,
        last_first: bool = False,
        warps: int = 4,
    ):
        check_types(op)
        *heads, n, _ = of.type.shape
        n, sizes = (n, sizes) if sizes else (1, (1,))
        batch = Axis((0,), product(heads), 1, None)
        blocks = Axis((1,), n, block_of(n, sizes, machine), 0)
        super().__init__(Tiling((batch, blocks), 2, warps=warps), int64 if wide else int32)
        self.op, self.machine = op, machine
        self.batch = self.indices.new(batch.extent, 1, None)
        self.own = self.indices.new(n, blocks.block, 0)
        self._number(last_first)
        self.at = delinearised(self.batch.whole, heads)
        self.deep, self.across = (self._elements(x.type.shape[3]) for x in (op.q, op.v))

    def _number(self, last_first: bool) -> None:
        """Which head and block a program computes; perhaps the last blocks first."""
        blocks = cdiv(self.own.extent, self.own.block)
        blocks = max(blocks, 1) if isinstance(blocks, int) else blocks
        number = sym(PROGRAM)
        block = number % blocks
        if last_first:
            block = expr(blocks) - 1 - block
        for index, e in ((self.batch, number // blocks), (self.own, block)):
            self.numbers[index.number] = self.code.value(self.indices.simple(e), self.index_type)

    def _elements(self, n: int) -> list[Index]:
        return self.both_places(n, n if self.machine.exact else max(16, next_power(n)))

    def both_places(self, n: Size, block: int) -> list[Index]:
        """An index along the rows of tiles, and the same one along their columns."""
        return [self.indices.new(n, block, place) for place in (0, 1)]

    def blocks(self, n: Size, sizes: Sequence[int]) -> list[Index]:
        """The same, of blocks of one of these sizes."""
        return self.both_places(n, block_of(n, sizes, self.machine))

    # --- tiles --------------------------------------------------------------------------------------------
    def tile(self, v: Value, outer: Sequence[Expr], inner: Sequence[Index], target: Block) -> Value:
        """The tile of a tensor at outer coordinates and inner indices, each of which lies along its own dimension of
        tiles; 0 where one is out of range."""
        self.places = {i.place: i for i in inner if i.place is not None}
        tensor, place = through_views(v, [*outer, *(i.whole for i in inner)])
        place = [self.indices.simple(c) for c in place]
        found = self.element(tensor, place, Scope(Block(), {}, target))
        for index in inner:
            found = self.zero_outside(found, index)
        return self.tiles.spread(found, self._shape(inner))

    def _shape(self, inner: Sequence[Index]) -> tuple[int, ...]:
        blocks = {i.place: i.block for i in inner}
        return tuple(blocks.get(place, 1) for place in range(2))

    def save(
        self, result: Value, v: Value, outer: Sequence[Expr], inner: Sequence[Index]
    ) -> dict[Value, Expr]:
        """Store a tile of a result, and say where."""
        self.places = {i.place: i for i in inner if i.place is not None}
        at = [*outer, *(i.whole for i in inner)]
        v = self.tiles.cast(v, result.type.elem)
        self.store(result, at, v, Scope(Block(), {}, self.entry))
        return {result: self.indices.by_parts(offset_of(result.type, at))}

    def read_back(self, result: Value, outer: Sequence[Expr], inner: Sequence[Index]) -> Value:
        """The tile of a result that this program has stored before."""
        self.places = {i.place: i for i in inner if i.place is not None}
        at = [*outer, *(i.whole for i in inner)]
        offset = self.indices.by_parts(offset_of(result.type, at))
        found = self._load_at(result, offset, None, None, Scope(Block(), {}, self.entry))
        return self.tiles.spread(found, self._shape(inner))

    def reduced(self, v: Value, kind: type[Op], **attrs: Any) -> Value:
        """One value a row."""
        elem = self.op.acc
        body = Block([elem, elem])
        with self.builder.at(body):
            self.builder.insert(YieldOp([self.tiles.emit(kind(*body.args, **attrs))]))
        return self.tiles.reduce([v], 1, body)[0]

    def exp2(self, v: Value) -> Value:
        return self.tiles.emit(MATH_OPS["exp2"](v))

    def number_of(self, x: float) -> Value:
        return self.tiles.const(x, self.op.acc)

    def filled(self, x: float, *inner: Index) -> Value:
        return self.tiles.spread(self.number_of(x), self._shape(inner))

    def dot(self, a: Value, b: Value, acc: Value) -> Value:
        """acc + a @ b; `a` may have been computed in another type than `b` has."""
        return self.tiles.emit(tile.DotOp(self.tiles.cast(a, elem_of(b.type)), b, acc))

    # --- what is walked through ------------------------------------------------------------------------------
    def walked(
        self,
        indices: Sequence[Index],
        bounds: tuple[Size, Size],
        carried: Mapping[str, Value],
        step: Callable[[Block, list[Value]], list[Value]],
    ) -> list[Value]:
        """What a loop over the blocks of an index leaves in `carried`. `step` gets its body and what it carries."""
        body = Block([self.index_type, *(v.type for v in carried.values())], names=["k", *carried])
        for index in indices:
            self.numbers[index.number] = body.args[0]
        with self.builder.at(body):
            self.builder.insert(YieldOp(step(body, list(body.args[1:]))))
        limits = [self.extent(n) for n in (*bounds, 1)]
        loop = control.ForOp(*limits, list(carried.values()), regions=[body])
        return self.builder.insert(loop).results

    @property
    def group(self) -> Size:
        """How many heads of queries share one of keys."""
        heads, groups = self.op.q.type.shape[1], self.op.k.type.shape[1]
        return 1 if heads == groups else heads // groups

    def blocks_seen(self, rows: Index, keys: Index) -> Size:
        """How many blocks of keys a block of queries sees."""
        last = expr(keys.extent)
        if self.op.causal:
            last = minimum(last, self.end(rows))
        return self.indices.simple((last + (keys.block - 1)) // keys.block)

    def first_to_see(self, keys: Index, rows: Index) -> Size:
        """The first block of queries that sees a block of keys."""
        if not self.op.causal or keys.steps == 1:
            return 0
        return self.indices.simple(dim(keys.count.position) * keys.block // rows.block)

    @staticmethod
    def end(index: Index) -> Expr:
        """Where the block of an index ends."""
        start = dim(index.count.position) * index.block if index.steps != 1 else expr(0)
        return start + index.block

    def walks(self, *indices: Index) -> list[Index]:
        """Those that the kernel walks along."""
        return [i for i in indices if i is not self.own]

    # --- scores -----------------------------------------------------------------------------------------------
    def shared(self, at: Sequence[Expr]) -> list[Expr]:
        """Batch and head of keys and values, for those of queries."""
        return list(at) if self.group == 1 else [at[0], at[1] // self.group]

    def scores(
        self, dots: Value, at: Sequence[Expr], rows: Index, keys: Index, target: Block
    ) -> Value:
        """Scores in powers of two of the products of queries and keys of a head, -inf where a query does not see a key,
        and where an index that the kernel walks along is out of range."""
        t, op = self.tiles, self.op
        scores = t.mul(dots, self.number_of(op.scale * LOG2_E))
        if op.bias is not None:
            sizes = zip(at, op.bias.type.shape, strict=False)
            own = [i if n != 1 else expr(0) for i, n in sizes]
            bias = t.cast(self.tile(op.bias, own, [rows, keys], target), op.acc)
            scores = t.add(scores, t.mul(bias, self.number_of(LOG2_E)))
        seen: Value | None = None
        for index in self.walks(rows, keys):
            seen = t.both(seen, self.bound(index))
        if op.causal:
            places = [self.code.value(i.parts, self.index_type) for i in (keys, rows)]
            seen = t.both(seen, t.compare(places[0], "le", places[1]))
        return scores if seen is None else t.select(seen, scores, self.number_of(-math.inf))
