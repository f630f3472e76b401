"""Emits the gradients of attention, which compute the weights anew from the logarithms that attention has stored.

    dq, of a block of queries:                    dk, dv, of a block of keys:
    for each block of keys that it sees:          for each head of q that shares them, and each block of its queries:
        p = exp2(dot(q, k.T) * scale + bias - logs)   p = exp2(dot(k, q.T) * scale + bias - logs)     keys x queries
        ds = p * (dot(grad, v.T) - delta)             ds = p * (dot(v, grad.T) - delta)
        dq = dot(ds, k, dq)                           dk, dv = dot(ds, q, dk), dot(p, grad, dv)
    dq * scale                                    dk * scale, dv

Source: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tessera.graph.emit.attention_nest import LOG2_E, AttentionNest
from tessera.graph.emit.kernel import KernelCode, finished
from tessera.graph.emit.scopes import Index
from tessera.graph.emit.tiles import CannotEmit
from tessera.graph.emit.tiling import Machine
from tessera.graph.index import Expr, expr
from tessera.graph.ops import AttentionGradOp, AttentionKeyGradsOp, AttentionQueryGradOp
from tessera.ir import Block, Value
from tessera.ops import arith

SIZES = (64, 80, 48)  # of blocks of queries and keys


def emit_attention_grad(op: AttentionGradOp, machine: Machine, wide: bool = False) -> KernelCode:
    """The kernel of a gradient. CannotEmit where its types, or its dimensions, are not as a dot wants them."""
    if op.grad.type.elem != op.q.type.elem:
        raise CannotEmit("a gradient of another type than the queries")
    if isinstance(op, AttentionQueryGradOp):
        nest = _QueryGrad(op, op.q, SIZES, machine, wide, last_first=op.causal)
        return finished(nest, [op], nest.tiling, nest.emitted(op))
    assert isinstance(op, AttentionKeyGradsOp)
    nest = _KeyGrads(op, op.k, SIZES, machine, wide)
    return finished(nest, [op], nest.tiling, nest.emitted(op))


class _Grad(AttentionNest):
    def weights(
        self, op: AttentionGradOp, dots: Value, at: Sequence[Expr], rows: Index, keys: Index,
        body: Block,
    ) -> Value:  # fmt: skip
        """What queries weigh keys with, for their products."""
        t = self.tiles
        scores = self.scores(dots, at, rows, keys, body)
        logs = self.tile(op.logs, at, [rows], body)
        if op.bias is not None:  # a query may see no key
            none = t.compare(logs, "eq", self.number_of(-math.inf))
            logs = t.select(none, self.number_of(0.0), logs)
        return self.exp2(t.binary(arith.SubOp, scores, t.mul(logs, self.number_of(LOG2_E))))

    def of_scores(
        self, op: AttentionGradOp, p: Value, dp: Value, at: Sequence[Expr], rows: Index,
        walked: Index, body: Block,
    ) -> Value:  # fmt: skip
        """The gradient of the scores, for the weights and their gradient; 0 where `walked` is out of range."""
        t = self.tiles
        delta = self.tile(op.delta, at, [rows], body)
        ds = t.mul(p, t.binary(arith.SubOp, dp, delta))
        return self.zero_outside(ds, walked, computed=True)


class _QueryGrad(_Grad):
    def emitted(self, op: AttentionQueryGradOp) -> dict[Value, Expr]:
        """Emit all of it; where the result is stored."""
        rows, keys = self.own, self.blocks(op.k.type.shape[2], SIZES)
        at, shared = self.at, self.shared(self.at)
        q = self.tile(op.q, at, [rows, self.deep[1]], self.entry)
        grad = self.tile(op.grad, at, [rows, self.across[1]], self.entry)

        def step(body: Block, carried: list[Value]) -> list[Value]:
            zero = self.filled(0.0, rows, keys[1])
            k = self.tile(op.k, shared, [keys[1], self.deep[0]], body)
            p = self.weights(op, self.dot(q, k, zero), at, rows, keys[1], body)
            v = self.tile(op.v, shared, [keys[1], self.across[0]], body)
            dp = self.dot(grad, v, zero)
            ds = self.of_scores(op, p, dp, at, rows, keys[1], body)
            k = self.tile(op.k, shared, [keys[0], self.deep[1]], body)
            return [self.dot(ds, k, carried[0])]

        start = {"dq": self.filled(0.0, rows, self.deep[1])}
        (dq,) = self.walked(keys, (0, self.blocks_seen(rows, keys[1])), start, step)
        dq = self.tiles.mul(dq, self.number_of(op.scale))
        return self.save(op.result, dq, at, [rows, self.deep[1]])


class _KeyGrads(_Grad):
    def emitted(self, op: AttentionKeyGradsOp) -> dict[Value, Expr]:
        """Emit all of it; where the results are stored."""
        keys, group = self.own, self.group
        k = self.tile(op.k, self.at, [keys, self.deep[1]], self.entry)
        v = self.tile(op.v, self.at, [keys, self.across[1]], self.entry)
        start = {
            "dk": self.filled(0.0, keys, self.deep[1]),
            "dv": self.filled(0.0, keys, self.across[1]),
        }
        if group == 1:
            dk, dv = self._of_head(op, k, v, self.at, start)
        else:
            head = self.indices.new(group, 1, None)
            at = [self.at[0], self.at[1] * group + head.whole]

            def each(body: Block, carried: list[Value]) -> list[Value]:
                return self._of_head(op, k, v, at, dict(zip(start, carried, strict=True)))

            dk, dv = self.walked([head], (0, group), start, each)
        dk = self.tiles.mul(dk, self.number_of(op.scale))
        stored = [(op.results[0], dk, self.deep[1]), (op.results[1], dv, self.across[1])]
        return {r: e for x, y, i in stored for r, e in self.save(x, y, self.at, [keys, i]).items()}

    def _of_head(
        self,
        op: AttentionKeyGradsOp,
        k: Value,
        v: Value,
        at: Sequence[Expr],
        start: dict[str, Value],
    ) -> list[Value]:
        """Add what one head of queries gives."""
        keys, rows = self.own, self.blocks(op.q.type.shape[2], SIZES)

        def step(body: Block, carried: list[Value]) -> list[Value]:
            zero = self.filled(0.0, keys, rows[1])
            q = self.tile(op.q, at, [rows[1], self.deep[0]], body)
            p = self.weights(op, self.dot(k, q, zero), at, rows[1], keys, body)
            grad = self.tile(op.grad, at, [rows[1], self.across[0]], body)
            dp = self.dot(v, grad, zero)
            ds = self.of_scores(op, p, dp, at, rows[1], rows[1], body)
            q = self.tile(op.q, at, [rows[0], self.deep[1]], body)
            grad = self.tile(op.grad, at, [rows[0], self.across[1]], body)
            return [self.dot(ds, q, carried[0]), self.dot(p, grad, carried[1])]

        steps = self.indices.simple(expr(rows[1].steps))
        return self.walked(rows, (self.first_to_see(keys, rows[1]), steps), start, step)
