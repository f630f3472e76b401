"""Gives loops that stream a version for one iteration, which loads to registers.

    for i in lb..ub by s: A(i)        if lb < ub <= lb + s: A(lb); R
    R                             →   else: for i in lb..ub by s: A(i)
                                            R

Blocks that hold a whole row are the rule, and loops over them are for longer rows. In one iteration copies to shared
memory hide nothing: they cost the way there and back, and the copies of an iteration that never comes."""

from __future__ import annotations

from tessera.ir import Builder, Op, Value
from tessera.ir.applications import apply
from tessera.ops import AddOp, AndOp, CmpOp, ForOp, Loop, YieldOp
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.loops import branch_around, iteration, runs_at_all, trip_count

SMALL = 100  # ops of an iteration, and of what follows the loop, that are copied


def may_be_short(loop: ForOp) -> bool:
    """Whether a loop whose number of iterations is not known has few operations."""
    return trip_count(loop) is None and len(list(loop.walk())) <= SMALL


def version_short(loop: ForOp) -> None:
    """Branch around a loop that may be short. What follows it goes into both branches if it is small, so that no tile
    leaves them."""
    if not may_be_short(loop) or not apply("short-loops", loop):
        return
    moved = [loop, *_rest(loop)]
    branch, passed = branch_around(_one_iteration(loop), moved)
    b = Builder(branch.then, None, loop.loc)
    mapping = iteration(b, loop, loop.lb, loop.inits)
    results = [mapping.get(v, v) for v in loop.body.terminator.operands]
    mapping.update(zip(loop.results, results, strict=True))
    for op in moved[1:]:
        b.insert(op.clone(mapping))
    b.insert(YieldOp([mapping[v] for v in passed]))


def _rest(loop: ForOp) -> list[Op]:
    """Return what follows a loop in its block if that may be copied."""
    found: list[Op] = []
    op = loop.next
    while op is not None and not op.terminator:
        found.append(op)
        op = op.next
    inner = [x for op in found for x in op.walk()]
    if len(inner) > SMALL or any(isinstance(x, Loop) for x in inner):
        return []
    return found


def _one_iteration(loop: ForOp) -> Value:
    b = Builder.before_op(loop)
    first = runs_at_all(b, loop.lb, loop.ub, loop.step)
    down = (constant_of(loop.step) or 0) < 0
    second = b.emit(AddOp(loop.lb, loop.step))
    last = b.emit(CmpOp(second, loop.ub, predicate="le" if down else "ge"))
    return b.emit(AndOp(first, last))
