"""Carries additional values through the loops and branches around the ops that change them."""

from __future__ import annotations

from collections.abc import Collection

from tessera.ir import Block, Op, Value
from tessera.ops import Loop
from tessera.passes.neutral.loops import set_yields, with_carried


class Carrying:
    """Base class for what carries a state. `around`: the loops and branches that change it inside; `block` returns the
    state after a block, `at` after an op that is none of these."""

    around: Collection[Op] = ()

    def block(self, block: Block, state: list[Value]) -> list[Value]:
        for op in list(block):
            state = self.through(op, state) if op in self.around else self.at(op, state)
        return state

    def at(self, op: Op, state: list[Value]) -> list[Value]:
        del op
        return state

    def through(self, op: Op, state: list[Value]) -> list[Value]:
        """Return the state after a loop or a branch."""
        count, new = len(state), with_carried(op, state)
        for block in new.regions:
            args = block.args[-count:] if isinstance(new, Loop) else state
            set_yields(block, self.block(block, args))
        return new.results[-count:]
