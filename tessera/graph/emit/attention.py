"""Emits attention that never stores the scores: a program walks the keys for a block of queries of one head.

    peak, total, acc = -inf, 0, 0
    for each block of keys:                                   a causal program stops at its last query
        s = dot(q, k.T) * scale + bias, -inf where a query does not see a key
        higher = max(peak, max of each row of s)
        p, shrink = exp2(s - higher), exp2(peak - higher)
        total, acc = total * shrink + sum(p), dot(p, v, acc * shrink)
    out = acc / total;  logs = (peak + log2(total)) / log2(e)

Source: T. Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tessera.dtypes import dtype, int32, int64
from tessera.graph.emit.accesses import offset_of, through_views
from tessera.graph.emit.kernel import KernelCode, finished
from tessera.graph.emit.nest import PROGRAM, Nest, expr_of
from tessera.graph.emit.scopes import Index, Scope, delinearised
from tessera.graph.emit.tiles import CannotEmit
from tessera.graph.emit.tiling import Axis, Machine, Tiling, cdiv, next_power
from tessera.graph.index import Expr, Sym, dim, expr, minimum
from tessera.graph.ops import AttentionOp
from tessera.graph.types import product
from tessera.ir import Block, Op, Value
from tessera.ops import MATH_OPS, YieldOp, arith, control, tile

LOG2_E = 1 / math.log(2)
QUERIES, KEYS = 64, 128  # of a block, at most
Size = int | Expr


def emit_attention(op: AttentionOp, machine: Machine, wide: bool = False) -> KernelCode:
    """The kernel of an attention. CannotEmit where its types, or its dimensions, are not as a dot wants them."""
    same = op.q.type.elem == op.k.type.elem == op.v.type.elem
    deep, out = op.q.type.shape[3], op.v.type.shape[3]
    known = isinstance(deep, int) and isinstance(out, int)
    if not (same and known and op.q.type.elem.is_floating()):
        raise CannotEmit("an attention of this type, or of dimensions that are not known")
    *batch, m, _ = op.q.type.shape
    queries = _block(m, QUERIES, machine)
    axes = (Axis((0,), product(list(batch)), 1, None), Axis((1,), m, queries, 0))
    nest = _Attention(op, Tiling(axes, 2, warps=4), int64 if wide else int32, machine)
    return finished(nest, [op], nest.tiling, nest.emitted())


def _block(n: Size, most: int, machine: Machine) -> int:
    """Elements of a block along an extent."""
    if not isinstance(n, int) or n > most:
        return most
    return max(1, n) if machine.exact else max(16, next_power(n))


class _Attention(Nest):
    def __init__(self, op: AttentionOp, tiling: Tiling, index_type: dtype, machine: Machine):
        super().__init__(tiling, index_type)
        self.op = op
        batch, rows = tiling.axes
        (n, deep), wide = op.k.type.shape[2:], op.v.type.shape[3]
        self.sides = [_block(x, 1 << 16, machine) for x in (deep, wide)]
        self.keys_block = _block(n, KEYS, machine)
        new = self.indices.new
        self.batch = new(batch.extent, 1, None)
        self.rows = new(rows.extent, rows.block, 0)
        self.keys = [new(n, self.keys_block, place) for place in (0, 1)]
        self.deep = [new(deep, self.sides[0], place) for place in (0, 1)]
        self.wide = new(wide, self.sides[1], 1)
        self._number()
        self.at = delinearised(self.batch.whole, op.q.type.shape[:2])

    def _number(self) -> None:
        """Which head and block a program computes: of a causal attention the ones with the most keys first."""
        tiles = cdiv(self.rows.extent, self.rows.block)
        tiles = max(tiles, 1) if isinstance(tiles, int) else tiles
        number = expr_of(Sym(PROGRAM))
        block = number % tiles
        if self.op.causal:
            block = expr(tiles) - 1 - block
        for index, e in ((self.batch, number // tiles), (self.rows, block)):
            value = self.code.value(self.indices.simple(e), self.index_type)
            self.numbers[index.number] = value

    # --- tiles --------------------------------------------------------------------------------------------
    def tile(self, v: Value, at: Sequence[Expr], along: Sequence[Index], target: Block) -> Value:
        """The tile of a tensor at coordinates, 0 where an index is out of range."""
        self.places = dict(enumerate(along))
        tensor, place = through_views(v, at)
        place = [self.indices.simple(c) for c in place]
        found = self.element(tensor, place, Scope(Block(), {}, target))
        for index in along:
            found = self.zero_outside(found, index)
        return self.tiles.spread(found, tuple(i.block for i in along))

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

    def filled(self, x: float, columns: int) -> Value:
        return self.tiles.spread(self.number_of(x), (self.rows.block, columns))

    # --- the kernel -----------------------------------------------------------------------------------------
    def emitted(self) -> dict[Value, Expr]:
        """Emit all of it; where each result is stored."""
        q = self.tile(
            self.op.q,
            [*self.at, self.rows.whole, self.deep[1].whole],
            [self.rows, self.deep[1]],
            self.entry,
        )
        inits = [self.filled(x, n) for x, n in ((-math.inf, 1), (0.0, 1), (0.0, self.sides[1]))]
        body = Block(
            [self.index_type, *(v.type for v in inits)], names=["k", "peak", "total", "acc"]
        )
        for index in self.keys:
            self.numbers[index.number] = body.args[0]
        with self.builder.at(body):
            self.builder.insert(YieldOp(self._step(q, body)))
        bounds = [self.extent(n) for n in (0, self._steps(), 1)]
        loop = control.ForOp(*bounds, inits, regions=[body])
        return self._stored(*self.builder.insert(loop).results)

    def _steps(self) -> Size:
        """How many blocks of keys the queries of a program see."""
        last = expr(self.keys[0].extent)
        if self.op.causal:
            end = dim(self.rows.count.position) * self.rows.block + self.rows.block
            last = minimum(last, end if self.rows.steps != 1 else expr(self.rows.block))
        return self.indices.simple((last + (self.keys_block - 1)) // self.keys_block)

    def _step(self, q: Value, body: Block) -> list[Value]:
        t, (peak, total, acc) = self.tiles, body.args[1:]
        scores = self._scores(q, body)
        higher = t.binary(arith.MaxOp, peak, self.reduced(scores, arith.MaxOp))
        shift = higher
        if self.op.bias is not None:  # a query may see none of the keys so far
            none = t.compare(higher, "eq", self.number_of(-math.inf))
            shift = t.select(none, self.number_of(0.0), higher)
        weights = self.exp2(t.binary(arith.SubOp, scores, shift))
        shrink = self.exp2(t.binary(arith.SubOp, peak, shift))
        total = t.add(t.mul(total, shrink), self.reduced(weights, arith.AddOp))
        v = self.tile(
            self.op.v,
            [*self._shared(), self.keys[0].whole, self.wide.whole],
            [self.keys[0], self.wide],
            body,
        )
        weights = t.cast(weights, self.op.v.type.elem)
        return [higher, total, t.emit(tile.DotOp(weights, v, t.mul(acc, shrink)))]

    def _shared(self) -> list[Expr]:
        """Batch and head of keys and values."""
        heads, groups = self.op.q.type.shape[1], self.op.k.type.shape[1]
        if heads == groups:
            return self.at
        return [self.at[0], self.at[1] // (heads // groups)]

    def _scores(self, q: Value, body: Block) -> Value:
        """The scores of a block in powers of two, -inf where a query does not see a key."""
        t, op = self.tiles, self.op
        rows, keys = self.rows, self.keys[1]
        k = self.tile(
            op.k, [*self._shared(), keys.whole, self.deep[0].whole], [self.deep[0], keys], body
        )
        scores = t.emit(tile.DotOp(q, k, self.filled(0.0, keys.block)))
        scores = t.mul(scores, self.number_of(op.scale * LOG2_E))
        if op.bias is not None:
            own = [
                i if n != 1 else expr(0) for i, n in zip(self.at, op.bias.type.shape, strict=False)
            ]
            bias = self.tile(op.bias, [*own, rows.whole, keys.whole], [rows, keys], body)
            scores = t.add(scores, t.mul(t.cast(bias, op.acc), self.number_of(LOG2_E)))
        seen = self.bound(keys)
        if op.causal:
            at = [self.code.value(i.parts, self.index_type) for i in (keys, rows)]
            seen = t.both(seen, t.compare(at[0], "le", at[1]))
        return scores if seen is None else t.select(seen, scores, self.number_of(-math.inf))

    def _stored(self, peak: Value, total: Value, acc: Value) -> dict[Value, Expr]:
        t, (out, logs) = self.tiles, self.op.results
        none = t.compare(total, "eq", self.number_of(0.0))
        total = t.select(none, self.number_of(1.0), total)
        found = t.cast(t.binary(arith.DivOp, acc, total), out.type.elem)
        log = t.add(peak, t.emit(MATH_OPS["log2"](total)))
        log = t.select(none, self.number_of(0.0), t.mul(log, self.number_of(1 / LOG2_E)))
        self.places = {0: self.rows, 1: self.wide}
        scope = Scope(Block(), {}, self.entry)
        written: dict[Value, Expr] = {}
        for r, v, at in (
            (out, found, [self.rows.whole, self.wide.whole]),
            (logs, log, [self.rows.whole]),
        ):
            self.store(r, [*self.at, *at], v, scope)
            written[r] = self.indices.by_parts(offset_of(r.type, [*self.at, *at]))
        return written
