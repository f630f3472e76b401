"""Computes whether the producer must wait for the consumers before a loop: only if these have since the last wait
done something that the loop's loads may see (ordering.py).

    while start < end:                       while start < end, seen = false:
      for k: … descriptor_load …               (meet if seen)  for k: … descriptor_load …
      if last < steps:                         …
        store; publish                   →     seen' = not (last < steps) and first > 0
      else:
        while missing > 0 (first): wait

The flag is computed from scalars, since both roles need it: of ops in branches and loops, whether they run. If
that cannot be known in advance, they count as run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from tessera.analysis.provenance import defined_inside, reached
from tessera.dtypes import int1
from tessera.ir import Block, Builder, Op, SharedType, TileType, Value
from tessera.ir.applications import Declined
from tessera.ops import AndOp, ForOp, IfOp, OrOp, WhileOp, XorOp
from tessera.passes.neutral.loop_carried import Carrying
from tessera.passes.neutral.loops import const, runs_at_all


class AcquireFlags(Carrying):
    """Carries the flag through all ops around loops that are `ordered` (producer.py `Split`), with regard to what their
    loads may see; `found`: its value before each loop."""

    def __init__(self, top: Block, ordered: Mapping[ForOp, Sequence[Op]]):
        self.loops = set(ordered)
        self.seen = {op for group in ordered.values() for op in group}
        self.found: dict[ForOp, Value] = {}
        self.around = {above for op in self.loops for above in op.ancestors()} - self.loops
        self.block(top, [const(Builder.at_start(top), False, int1)])

    def at(self, op: Op, state: list[Value]) -> list[Value]:
        """Return the flag after an op."""
        if isinstance(op, ForOp) and op in self.loops:
            return self._after_acquire(op, state[0])
        if not any(x in self.seen for x in op.walk()):
            return state
        b = Builder.before_op(op)
        return [b.emit(OrOp(state[0], self._runs(b, op)))]

    def _after_acquire(self, loop: ForOp, flag: Value) -> list[Value]:
        """Return the flag after a loop, which clears it if the loop has an iteration."""
        b = Builder.before_op(loop)
        for op in loop.walk():
            if isinstance(op, ForOp) and op in self.loops:
                self.found[op] = flag if op is loop else const(b, False, int1)
        runs = runs_at_all(b, loop.lb, loop.ub, loop.step)
        return [b.emit(AndOp(flag, _not(b, runs)))]

    # --- whether something is done --------------------------------------------------------------------------
    def _runs(self, b: Builder, op: Op) -> Value:
        """Return whether an op of `seen` inside an op runs, or may run."""
        try:
            return self._of(b, op, op, {})
        except Declined:
            return const(b, True, int1)

    def _of(self, b: Builder, op: Op, top: Op, mapping: dict[Value, Value]) -> Value:
        if op in self.seen:
            return const(b, True, int1)
        if isinstance(op, IfOp):
            condition = _copied(b, op.condition, top, mapping)
            then, orelse = (self._of_block(b, block, top, mapping) for block in op.regions)
            other = b.emit(AndOp(_not(b, condition), orelse))
            return b.emit(OrOp(b.emit(AndOp(condition, then)), other))
        if isinstance(op, WhileOp) and not any(x in self.seen for x in op.before.walk()):
            for arg, v in zip(op.before.args, op.inits, strict=True):
                with suppress(Declined):
                    mapping[arg] = _copied(b, v, top, mapping)
            return _copied(b, op.before.terminator.operands[0], top, mapping)
        if isinstance(op, ForOp):
            lb, ub, step = (_copied(b, v, top, mapping) for v in (op.lb, op.ub, op.step))
            return runs_at_all(b, lb, ub, step)
        raise Declined("it cannot be computed in front of what it decides")

    def _of_block(self, b: Builder, block: Block, top: Op, mapping: dict[Value, Value]) -> Value:
        total = const(b, False, int1)
        for op in block:
            if any(x in self.seen for x in op.walk()):
                total = b.emit(OrOp(total, self._of(b, op, top, mapping)))
        return total


def _copied(b: Builder, v: Value, top: Op, mapping: dict[Value, Value]) -> Value:
    """Compute a scalar of the inside of `top` in front of `top`."""

    def sources(x: Value) -> Sequence[Value]:
        if x in mapping or not (x.op is top or defined_inside(x, top)):
            return ()
        op = x.op
        if op is None or op.regions or op.effects or any(map(_is_tile, (x, *op.operands))):
            raise Declined("it cannot be computed in front of what it decides")
        return op.operands

    needed = reached([v], sources)
    for op in top.walk():
        if op is not top and any(r in needed and r not in mapping for r in op.results):
            b.insert(op.clone(mapping))
    return mapping.get(v, v)


def _is_tile(v: Value) -> bool:
    return isinstance(v.type, TileType | SharedType)


def _not(b: Builder, v: Value) -> Value:
    return b.emit(XorOp(v, const(b, True, int1)))
