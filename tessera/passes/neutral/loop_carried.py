"""Carries additional values through the loops and branches around the ops that change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.ir import Block, Builder, Op, Value
from tessera.ops import ConditionOp, ForOp, IfOp, WhileOp, YieldOp
from tessera.passes.neutral.loops import set_yields, with_carried


def carry(
    loop: ForOp, state: Sequence[Value], body: Callable[[ForOp, list[Value]], list[Value]]
) -> list[Value]:
    """Carry additional values through a loop. `body` gets the new loop and the values, and returns them for the next
    iteration. Return their final values."""
    new = with_carried(loop, state)
    set_yields(new, body(new, new.carried[-len(state) :]))
    return new.results[-len(state) :]


class Carrying:
    """Base class for what carries a state: `block` returns the state after a block and calls `through` for inner
    ops."""

    def block(self, block: Block, state: list[Value]) -> list[Value]:
        raise NotImplementedError

    def through(self, op: Op, state: list[Value]) -> list[Value]:
        """Return the state after a loop or a branch."""
        if isinstance(op, ForOp):
            return self.through_for(op, state)
        return self._while(op, state) if isinstance(op, WhileOp) else self._if(op, state)

    def through_for(self, op: ForOp, state: list[Value]) -> list[Value]:
        return carry(op, state, lambda new, args: self.block(new.body, args))

    def _while(self, op: WhileOp, state: list[Value]) -> list[Value]:
        for block in op.regions:
            out = self.block(block, [block.add_arg(v.type, v.name) for v in state])
            term, operands = block.terminator, [*block.terminator.operands, *out]
            condition = isinstance(term, ConditionOp)
            end = ConditionOp(operands[0], operands[1:]) if condition else YieldOp(operands)
            Builder.before_op(term).insert(end)
            term.erase()
        new = WhileOp([*op.inits, *state], regions=op.regions, loc=op.loc, **op.attrs)
        return _grown(op, new).results[-len(state) :]

    def _if(self, op: Op, state: list[Value]) -> list[Value]:
        assert isinstance(op, IfOp)
        for block in op.regions:
            out = self.block(block, state)
            term = block.terminator
            Builder.before_op(term).insert(YieldOp([*term.operands, *out], loc=term.loc))
            term.erase()
        types = [*[r.type for r in op.results], *[v.type for v in state]]
        new = IfOp(op.condition, results=types, regions=op.regions, loc=op.loc, **op.attrs)
        return _grown(op, new).results[-len(state) :]


def _grown(op: Op, new: Any) -> Any:
    """Put `new`, which took over the blocks of `op` and has additional results, in its place."""
    Builder.before_op(op).insert(new)
    op.regions = []
    for block in new.regions:
        block.parent = new
    for old, fresh in zip(op.results, new.results, strict=False):
        old.replace_all_uses(fresh)
        fresh.name = old.name
    op.erase()
    return new
