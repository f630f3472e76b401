"""Emits the gradients of attention, which compute the weights anew from the logarithms that attention has stored.

    dq, of a block of queries:                    dk, dv, of a block of keys:
    for each block of keys that it sees:          for each head of q that shares them, and each block of its queries:
        p = exp2(dot(q, k.T) * scale + bias - logs)   p = exp2(dot(k, q.T) * scale + bias - logs)     keys x queries
        ds = p * (dot(grad, v.T) - delta)             ds = p * (dot(v, grad.T) - delta)
        dq = dot(ds, k, dq)                           dk, dv = dot(ds, q, dk), dot(p, grad, dv)
    dq * scale                                    dk * scale, dv

A third kernel computes all three of a head of keys: of the same loops as the second one, with `dq += dot(ds, k)` in
memory, it does five products where the two do seven, but only a program for each head of keys.

Source: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tessera.graph.emit.attention_nest import LOG2_E, AttentionNest, fitting
from tessera.graph.emit.kernel import KernelCode, finished
from tessera.graph.emit.scopes import Index
from tessera.graph.emit.tiles import CannotEmit
from tessera.graph.emit.tiling import Machine
from tessera.graph.index import Expr, expr
from tessera.graph.ir.ops import (
    AttentionGradOp,
    AttentionGradsOp,
    AttentionKeyGradsOp,
    AttentionQueryGradOp,
)
from tessera.ir import Block, Value
from tessera.ops import arith

SIZES = (64, 80, 112, 48)  # of blocks of queries and keys


def emit_attention_grad(op: AttentionGradOp, machine: Machine, wide: bool = False) -> KernelCode:
    """The kernel of a gradient. CannotEmit where its types, or its dimensions, are not as a dot wants them."""
    if op.grad.type.elem != op.q.type.elem:
        raise CannotEmit("a gradient of another type than the queries")
    if isinstance(op, AttentionQueryGradOp):
        nest = _QueryGrad(op, op.q, SIZES, machine, wide, last_first=op.causal)
        return finished(nest, [op], nest.tiling, nest.emitted(op))
    if isinstance(op, AttentionGradsOp):
        nest = _HeadGrads(op, machine, wide)
        return finished(nest, [op], nest.tiling, nest.emitted())
    assert isinstance(op, AttentionKeyGradsOp)
    nest = _KeyGrads(op, op.k, SIZES, machine, wide)
    return finished(nest, [op], nest.tiling, nest.emitted(op))


def waste(m: int, n: int, causal: bool) -> float:
    """How many products of queries and keys the kernels for CPUs compute for each one that there is."""
    rows, keys = fitting(m, SIZES), fitting(n, SIZES)
    blocks = range(-(-m // rows))
    most = -(-n // keys)
    seen = [min(most, -(-(k + 1) * rows // keys)) if causal else most for k in blocks]
    return sum(seen) * rows * keys / max(1, m * n)


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
        keys: Index, body: Block,
    ) -> Value:  # fmt: skip
        """The gradient of the scores, for the weights and their gradient; 0 where an index that the kernel walks along
        is out of range."""
        t = self.tiles
        delta = self.tile(op.delta, at, [rows], body)
        ds = t.mul(p, t.binary(arith.SubOp, dp, delta))
        for index in self.walks(rows, keys):
            ds = self.zero_outside(ds, index, computed=True)
        return ds


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
            ds = self.of_scores(op, p, dp, at, rows[1], keys, body)
            q = self.tile(op.q, at, [rows[0], self.deep[1]], body)
            grad = self.tile(op.grad, at, [rows[0], self.across[1]], body)
            return [self.dot(ds, q, carried[0]), self.dot(p, grad, carried[1])]

        return self.walked(rows, (self.first_to_see(keys, rows[1]), rows[1].steps), start, step)


class _HeadGrads(_Grad):
    """A program computes all of a head of keys: it adds up the gradient of queries in memory, block of keys by block,
    and those of keys and values as transposed tiles, so that here, too, no computed tile is transposed for a dot."""

    def __init__(self, op: AttentionGradsOp, machine: Machine, wide: bool):
        super().__init__(op, op.k, (), machine, wide)
        self.grads = op
        self.keys, self.rows = (self.blocks(x.type.shape[2], SIZES) for x in (op.k, op.q))
        self.head = self.indices.new(self.group, 1, None)

    def emitted(self) -> dict[Value, Expr]:
        """Emit all of it. No result may lie in an operand's memory, whose elements are read again and again."""
        self._of_heads({}, self._cleared)
        self.walked(self.keys, (0, self.keys[0].steps), {}, self._of_keys)
        return dict.fromkeys(self.grads.results, expr(-1))

    def _of_heads(
        self, start: dict[str, Value], make: Callable[[dict[str, Value]], list[Value]]
    ) -> list[Value]:
        """What `make` carries through all heads that share the one of keys."""
        if self.group == 1:
            return make(start)
        names = list(start)
        bounds = 0, self.group
        return self.walked(
            [self.head],
            bounds,
            start,
            lambda _, carried: make(dict(zip(names, carried, strict=True))),
        )

    @property
    def _queries(self) -> list[Expr]:
        """The coordinates of the head of queries."""
        if self.group == 1:
            return self.at
        return [self.at[0], self.at[1] * self.group + self.head.whole]

    def _cleared(self, _: dict[str, Value]) -> list[Value]:
        along = [self.rows[0], self.deep[1]]

        def step(body: Block, carried: list[Value]) -> list[Value]:
            self.save(self.grads.results[0], self.filled(0.0, *along), self._queries, along)
            return carried

        return self.walked(self.rows, (0, self.rows[0].steps), {}, step)

    def _of_keys(self, body: Block, carried: list[Value]) -> list[Value]:
        """Store the gradients of a block of keys and its values, and add what it gives to those of queries."""
        op, (_, dk, dv) = self.grads, self.grads.results
        keys, deep, across = self.keys, self.deep, self.across
        k = self.tile(op.k, self.at, [keys[0], deep[1]], body)
        kt = self.tile(op.k, self.at, [keys[1], deep[0]], body)
        vt = self.tile(op.v, self.at, [keys[1], across[0]], body)
        bounds = self.first_to_see(keys[0], self.rows[0]), self.rows[0].steps

        def of_head(start: dict[str, Value]) -> list[Value]:
            return self.walked(
                self.rows, bounds, start, lambda body, c: self._step(k, kt, vt, body, *c)
            )

        start = {
            "dk": self.filled(0.0, deep[0], keys[1]),
            "dv": self.filled(0.0, across[0], keys[1]),
        }
        made = self._of_heads(start, of_head)
        for result, v, place in zip((dk, dv), made, (deep[0], across[0]), strict=True):
            self.save(result, v, self.at, [keys[1], place])
        return carried

    def _step(
        self, k: Value, kt: Value, vt: Value, body: Block, dk: Value, dv: Value
    ) -> list[Value]:
        op, at = self.grads, self._queries
        rows, keys, deep, across = self.rows, self.keys[1], self.deep, self.across
        zero = self.filled(0.0, rows[0], keys)
        q = self.tile(op.q, at, [rows[0], deep[1]], body)
        p = self.weights(op, self.dot(q, kt, zero), at, rows[0], keys, body)
        grad = self.tile(op.grad, at, [rows[0], across[1]], body)
        ds = self.of_scores(op, p, self.dot(grad, vt, zero), at, rows[0], keys, body)
        ds = self.tiles.mul(ds, self.number_of(op.scale))
        q = self.tile(op.q, at, [rows[1], deep[0]], body)
        grad = self.tile(op.grad, at, [rows[1], across[0]], body)
        found = [self.dot(q, ds, dk), self.dot(grad, p, dv)]
        along = [rows[0], deep[1]]
        before = self.read_back(op.results[0], at, along)
        self.save(op.results[0], self.dot(ds, k, before), at, along)
        return found
