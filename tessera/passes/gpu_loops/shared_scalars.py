"""Finds the scalars that all roles of a split program can use, and computes them in each role that needs them."""

from __future__ import annotations

from tessera.ir import Block, Builder, Effect, Op, SharedType, TileType
from tessera.ops import FuncOp, MakeDescriptorOp, WarpSpecializeOp


def shared_scalars(func: FuncOp) -> set[Op]:
    """Return the scalars at the top of the function, which all roles can use."""
    kept: set[Op] = set()
    for op in func.body:
        scalar = all(not isinstance(r.type, TileType | SharedType) for r in op.results)
        if op.regions or op.terminator or op.effects is not Effect.NONE or not scalar:
            continue
        if all(v.op is None or v.op in kept for v in op.operands):
            kept.add(op)
    return kept


def repeat_in_roles(split: WarpSpecializeOp, scalars: list[Op]) -> None:
    """Compute scalars separately in the roles that need them: the producer can begin once it has initialised the
    barriers, and the others have time while they wait for tiles."""
    for op in reversed(scalars):
        uses = [(_role_of(user, split), r, user, i) for r in op.results for user, i in r.uses]
        roles = {role for role, *_ in uses}
        if isinstance(op, MakeDescriptorOp) or None in roles:
            continue
        for block in split.regions:
            if block in roles:
                new = Builder.at_start(block).insert(op.clone({}))
                for role, old, user, i in uses:
                    if role is block:
                        user.set_operand(i, new.results[old.index])
        op.erase()


def _role_of(op: Op, split: WarpSpecializeOp) -> Block | None:
    """Return the role's block that contains an op, at any depth."""
    blocks = (x.parent for x in (op, *op.ancestors()))
    return next((block for block in blocks if block in split.regions), None)
