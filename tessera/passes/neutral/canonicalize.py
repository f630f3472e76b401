"""Simplifies IR: folds constants, resolves uniform masks, trims control flow and loop-carried values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ir import Block, Module, Op, Rewriter, RuleSet, Value, pass_, rule
from tessera.ops import arith, control, gpu, memory
from tessera.passes.neutral.fold import FOLD, SHAPE, constant_of, known_results, make_const, zero_of
from tessera.passes.neutral.loops import trip_count

MEMORY = RuleSet()
CONTROL = RuleSet()


@rule(MEMORY, memory.LoadOp, memory.StoreOp, memory.AtomicRmwOp)
def mask_true(op: Any, rw: Rewriter) -> Op | None:
    """load p, true, other → load p   (stores and atomics likewise)"""
    if op.mask is None or not constant_of(op.mask):
        return None
    if isinstance(op, memory.LoadOp):
        rw.set_operands(op, op.ptr, None, None)
    else:
        rw.set_operands(op, op.ptr, op.value, None)
    return op


def _is_false(mask: Value | None) -> bool:
    return mask is not None and constant_of(mask) in (False, 0)


@rule(MEMORY, memory.LoadOp)
def load_nothing(op: memory.LoadOp, rw: Rewriter) -> Value | None:
    """load p, false, other → other (0 without one)"""
    if not _is_false(op.mask):
        return None
    if op.other is not None:
        return op.other
    return make_const(rw, zero_of(op.result.type), op.result.type)


@rule(MEMORY, memory.StoreOp)
def store_nothing(op: memory.StoreOp, rw: Rewriter) -> Sequence[Value] | None:
    """store p, x, false → nothing"""
    return () if _is_false(op.mask) else None


@rule(MEMORY, gpu.ConvertLayoutOp)
def convert_twice(op: gpu.ConvertLayoutOp, rw: Rewriter) -> Value | None:
    """convert_layout x to its own layout → x;  convert (convert x) → convert x;  convert const → const"""
    if op.x.type == op.result.type:
        return op.x
    inner = op.x.op
    if isinstance(inner, gpu.ConvertLayoutOp):
        return rw.emit(gpu.ConvertLayoutOp(inner.x, results=[op.result.type]))
    if isinstance(inner, arith.ConstOp):
        return make_const(rw, inner.value, op.result.type)
    return None


@rule(CONTROL, control.IfOp)
def known_branch(op: control.IfOp, rw: Rewriter) -> Sequence[Value] | None:
    """if true { A } else { B } → A"""
    c = constant_of(op.condition)
    if c is None:
        return None
    return _inline(op.then if c else op.orelse, op, rw)


def _inline(block: Block, op: Op, rw: Rewriter) -> Sequence[Value]:
    """Move a block's ops in front of the op around it. Return the values that the block yields."""
    for inner in block:
        if not inner.terminator:
            inner.move_before(op)
            rw.push(inner)
    return list(block.terminator.operands)


@rule(CONTROL, control.IfOp)
def unused_results_of_if(op: control.IfOp, rw: Rewriter) -> Sequence[Value] | None:
    """Remove results of an `if` that are unused, or the same value on both sides."""
    yields = [b.terminator for b in op.regions]
    same = [
        a if a is b else None for a, b in zip(yields[0].operands, yields[1].operands, strict=True)
    ]
    keep = [i for i, r in enumerate(op.results) if r.uses and same[i] is None]
    if len(keep) == len(op.results):
        return None
    for y in yields:
        rw.set_operands(y, [y.operands[i] for i in keep])
    new = control.IfOp(op.condition, results=[op.results[i].type for i in keep], regions=op.regions)
    op.regions = []
    for n, i in enumerate(keep):
        new.results[n].name = op.results[i].name
    rw.insert(new)
    fresh = iter(new.results)
    return [
        next(fresh) if i in keep else (same[i] or op.results[i]) for i in range(len(op.results))
    ]


@rule(CONTROL, control.ForOp)
def known_trips(op: control.ForOp, rw: Rewriter) -> Sequence[Value] | None:
    """Replace a loop that never runs by its initial values, and one that runs once by its body."""
    trips = trip_count(op)
    if trips == 0:
        return op.inits
    if trips != 1:
        return None
    for arg, value in zip(op.body.args, (op.lb, *op.inits), strict=True):
        rw.replace_uses(arg, value)
    return _inline(op.body, op, rw)


@rule(CONTROL, control.ForOp)
def trim_loop(op: control.ForOp, rw: Rewriter) -> Sequence[Value] | None:
    """Replace carried values that never change by the initial value, and drop unused ones."""
    term = op.body.terminator
    values = zip(op.carried, term.operands, op.inits, strict=True)
    invariant = {i for i, (arg, y, init) in enumerate(values) if y is arg or y is init}
    dead = {i for i in range(len(op.inits)) if i not in invariant and _only_feeds_itself(op, i)}
    drop = invariant | dead
    if not drop:
        return None
    for i in drop:
        # An op that still reads a dead argument only computes that argument's next value, so any value will do.
        rw.replace_uses(op.carried[i], op.inits[i])
    rw.set_operands(term, _without(drop, term.operands))
    for i in sorted(drop, reverse=True):
        op.body.erase_arg(i + 1)
    kept = _without(drop, op.inits)
    return _rebuild(
        op, control.ForOp(op.lb, op.ub, op.step, kept, regions=op.regions, **op.attrs), drop, rw
    )


@rule(CONTROL, control.WhileOp)
def trim_while(op: control.WhileOp, rw: Rewriter) -> Sequence[Value] | None:
    """Replace carried values that neither block changes by the initial value."""
    condition, term = op.before.terminator, op.after.terminator
    drop = {
        i
        for i, (init, passed, y) in enumerate(
            zip(op.inits, condition.operands[1:], term.operands, strict=True)
        )
        if passed in (op.before.args[i], init) and y in (op.after.args[i], init)
    }
    if not drop:
        return None
    for i in drop:
        rw.replace_uses(op.before.args[i], op.inits[i])
        rw.replace_uses(op.after.args[i], op.inits[i])
    rw.set_operands(condition, condition.operands[0], _without(drop, condition.operands[1:]))
    rw.set_operands(term, _without(drop, term.operands))
    for i in sorted(drop, reverse=True):
        op.before.erase_arg(i)
        op.after.erase_arg(i)
    kept = _without(drop, op.inits)
    return _rebuild(op, control.WhileOp(kept, regions=op.regions, **op.attrs), drop, rw)


@rule(CONTROL, control.WhileOp)
def while_not_entered(op: control.WhileOp, rw: Rewriter) -> Sequence[Value] | None:
    """Replace a `while` whose condition fails for the initial values by what its first block passes on. ptxas (12.8,
    13.0) finds such loops too, but if one holds a wgmma it drops the accumulator's initial values with the loop."""
    condition = op.before.terminator.operands[0]
    entered = known_results(op.before, op.inits).get(condition, constant_of(condition))
    if entered is None or entered:
        return None
    for arg, value in zip(op.before.args, op.inits, strict=True):
        rw.replace_uses(arg, value)
    return _inline(op.before, op, rw)[1:]


def _without(drop: set[int], values: Sequence[Value]) -> list[Value]:
    return [v for i, v in enumerate(values) if i not in drop]


def _rebuild(
    op: control.ForOp | control.WhileOp, new: Op, drop: set[int], rw: Rewriter
) -> Sequence[Value]:
    """Put `new`, which took over the blocks, in place of loop `op`. Return the replacements of the results."""
    op.regions = []
    rw.insert(new)
    kept = [r for i, r in enumerate(op.results) if i not in drop]
    for old, fresh in zip(kept, new.results, strict=True):
        fresh.name = old.name
    rest = iter(new.results)
    return [init if i in drop else next(rest) for i, init in enumerate(op.inits)]


def _only_feeds_itself(op: control.ForOp, index: int) -> bool:
    """Whether carried value `index` is unused after the loop and inside only reaches its own yield."""
    if op.results[index].uses:
        return False
    seen: set[Op] = set()
    work = [op.carried[index]]
    while work:
        for user, position in work.pop().uses:
            if user is op.body.terminator:
                if position != index:
                    return False
            elif (
                user.regions or user.terminator or user.all_effects() or user.parent is not op.body
            ):
                return False
            elif user not in seen:
                seen.add(user)
                work += user.results
    return True


RULES = FOLD + SHAPE + MEMORY + CONTROL


@pass_("canonicalize", optimization="canonicalize", counts=True)
def canonicalize(module: Module) -> None:
    """Simplify ops by all rules of this module and of `fold.py`, until no rule applies.

    Takes: valid IR of any level.
    Gives: IR of that level: constants folded and on the right, no unused pure ops, loops that carry only what changes.
    Needs: nothing of a target.
    Raises: nothing.
    Example: `trim` of tests/filecheck/canonicalize/loops.tir
        for [%x, %y, %x, %zero] { add; add; add; yield } → for [%x] {num_stages=3} { add; add; yield }; print; return
    Compare: MLIR `canonicalize`, LLVM InstCombine.
    """
    Rewriter(RULES, optimization="canonicalize").run(module)
