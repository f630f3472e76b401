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
        users = {user for r in op.results for user in r.users()}
        roles = {user: _role_of(user, split) for user in users}
        by_block = {
            block: x for block in split.regions if (x := [u for u in users if roles[u] is block])
        }
        if isinstance(op, MakeDescriptorOp) or sum(map(len, by_block.values())) < len(users):
            continue
        for block, inside in by_block.items():
            new = Builder.at_start(block).insert(op.clone({}))
            for old, fresh in zip(op.results, new.results, strict=True):
                for user in inside:
                    for i, v in enumerate(user.operands):
                        if v is old:
                            user.set_operand(i, fresh)
        op.erase()


def _role_of(op: Op, split: WarpSpecializeOp) -> Block | None:
    """Return the role's block that contains an op, at any depth."""
    blocks = (x.parent for x in (op, *op.ancestors()))
    return next((block for block in blocks if block in split.regions), None)
