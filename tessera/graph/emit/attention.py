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

from tessera.graph.emit.attention_nest import LOG2_E, AttentionNest
from tessera.graph.emit.kernel import KernelCode, finished
from tessera.graph.emit.tiling import Machine
from tessera.graph.index import Expr
from tessera.graph.ir.ops import AttentionOp
from tessera.ir import Block, Value
from tessera.ops import MATH_OPS, arith

QUERIES, KEYS = (64, 80, 48), (128, 112, 96, 80)  # sizes of blocks


def emit_attention(op: AttentionOp, machine: Machine, wide: bool = False) -> KernelCode:
    """The kernel of an attention. CannotEmit where its types, or its dimensions, are not as a dot wants them."""
    # Of a causal attention the programs with the most keys are first.
    nest = _Attention(op, op.q, QUERIES, machine, wide, last_first=op.causal)
    return finished(nest, [op], nest.tiling, nest.emitted(op))


class _Attention(AttentionNest):
    def emitted(self, op: AttentionOp) -> dict[Value, Expr]:
        """Emit all of it; where each result is stored."""
        rows, keys = self.own, self.blocks(op.k.type.shape[2], KEYS)
        outer = self.shared(self.at)
        q = self.tile(op.q, self.at, [rows, self.deep[1]], self.entry)

        def step(body: Block, carried: list[Value]) -> list[Value]:
            k = self.tile(op.k, outer, [keys[1], self.deep[0]], body)
            scores = self.dot(q, k, self.filled(0.0, rows, keys[1]))
            scores = self.scores(scores, self.at, rows, keys[1], body)
            v = self.tile(op.v, outer, [keys[0], self.across[1]], body)
            return self._step(scores, v, *carried)

        start = {
            "peak": self.filled(-math.inf, rows),
            "total": self.filled(0.0, rows),
            "acc": self.filled(0.0, rows, self.across[1]),
        }
        found = self.walked(keys, (0, self.blocks_seen(rows, keys[1])), start, step)
        return self._stored(op, *found)

    def _step(self, scores: Value, v: Value, peak: Value, total: Value, acc: Value) -> list[Value]:
        t = self.tiles
        higher = t.binary(arith.MaxOp, peak, self.reduced(scores, arith.MaxOp))
        shift = higher
        if self.op.bias is not None:  # a query may see none of the keys so far
            none = t.compare(higher, "eq", self.number_of(-math.inf))
            shift = t.select(none, self.number_of(0.0), higher)
        weights = self.exp2(t.binary(arith.SubOp, scores, shift))
        shrink = self.exp2(t.binary(arith.SubOp, peak, shift))
        total = t.add(t.mul(total, shrink), self.reduced(weights, arith.AddOp))
        return [higher, total, self.dot(weights, v, t.mul(acc, shrink))]

    def _stored(self, op: AttentionOp, peak: Value, total: Value, acc: Value) -> dict[Value, Expr]:
        t, (out, logs) = self.tiles, op.results
        none = t.compare(total, "eq", self.number_of(0.0))
        total = t.select(none, self.number_of(1.0), total)
        log = t.add(peak, t.emit(MATH_OPS["log2"](total)))
        log = t.select(none, self.number_of(0.0), t.mul(log, self.number_of(1 / LOG2_E)))
        found = t.binary(arith.DivOp, acc, total)
        return self.save(out, found, self.at, [self.own, self.across[1]]) | self.save(
            logs, log, self.at, [self.own]
        )
