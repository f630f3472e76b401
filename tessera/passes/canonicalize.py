"""Canonical form: constants folded, uniform masks resolved, control flow and loop-carried values trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ir import Module, Op, Rewriter, RuleSet, Value, pass_, rule
from tessera.ops import arith, control, gpu, memory
from tessera.passes.fold import FOLD, SHAPE, constant_of, make_const

MEMORY = RuleSet()
CONTROL = RuleSet()


@rule(MEMORY, memory.LoadOp, memory.StoreOp, memory.AtomicRmwOp)
def mask_true(op: Any, rw: Rewriter) -> Op | None:
    """load p, true, other → load p   (stores and atomics likewise)"""
    if op.mask is None or constant_of(op.mask) is None or not constant_of(op.mask):
        return None
    if isinstance(op, memory.LoadOp):
        op.set_operands(op.ptr, None, None)
    else:
        op.set_operands(op.ptr, op.value, None)
    return op


@rule(MEMORY, memory.LoadOp)
def load_nothing(op: memory.LoadOp, rw: Rewriter) -> Value | None:
    """load p, false, other → other (0 without one)"""
    if op.mask is None or constant_of(op.mask) is None:
        return None
    return (
        op.other if op.other is not None else make_const(rw, _zero(op.result.type), op.result.type)
    )


def _zero(t: Any) -> int | float:
    return 0.0 if getattr(t, "elem", t).is_floating() else 0


@rule(MEMORY, memory.StoreOp)
def store_nothing(op: memory.StoreOp, rw: Rewriter) -> Sequence[Value] | None:
    """store p, x, false → nothing"""
    return () if op.mask is not None and constant_of(op.mask) is not None else None


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
    block = op.then if c else op.orelse
    out = list(block.terminator.operands)
    for inner in block:
        if not inner.terminator:
            inner.move_before(op)
            rw.push(inner)
    return out


@rule(CONTROL, control.IfOp)
def unused_results_of_if(op: control.IfOp, rw: Rewriter) -> Sequence[Value] | None:
    """Results that nobody reads, or that are the same value on both sides, leave the `if`."""
    yields = [b.terminator for b in op.regions]
    same = [
        a if a is b else None for a, b in zip(yields[0].operands, yields[1].operands, strict=True)
    ]
    keep = [i for i, r in enumerate(op.results) if r.uses and same[i] is None]
    if len(keep) == len(op.results):
        return None
    for y in yields:
        y.set_operands([y.operands[i] for i in keep])
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
def trim_loop(op: control.ForOp, rw: Rewriter) -> Sequence[Value] | None:
    """Carried values that never change become the initial value; those that nobody needs are dropped."""
    term = op.body.terminator
    invariant = {
        i
        for i, (a, y, init) in enumerate(zip(op.carried, term.operands, op.inits, strict=True))
        if y is a or y is init
    }
    dead = {i for i in range(len(op.inits)) if i not in invariant and _only_feeds_itself(op, i)}
    if not invariant and not dead:
        return None
    inits, args, yields = list(op.inits), list(op.carried), list(term.operands)
    for i in invariant:
        args[i].replace_all_uses(inits[i])
    keep = [i for i in range(len(inits)) if i not in invariant and i not in dead]
    for i in sorted(dead):
        # What still reads a dead argument only computes its own next value: cut it loose through the initial one.
        args[i].replace_all_uses(inits[i])
    term.set_operands([yields[i] for i in keep])
    for i in reversed(range(len(inits))):
        if i not in keep:
            op.body.erase_arg(i + 1)
    new = control.ForOp(
        op.lb, op.ub, op.step, [inits[i] for i in keep], regions=op.regions, **dict(op.attrs)
    )
    op.regions = []
    rw.insert(new)
    for n, i in enumerate(keep):
        new.results[n].name = op.results[i].name
    for inner in new.body:
        rw.push(inner)
    fresh = iter(new.results)
    return [next(fresh) if i in keep else inits[i] for i in range(len(inits))]


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


@pass_("canonicalize")
def canonicalize(module: Module) -> None:
    """Apply all rules to a fixpoint. Assumes and keeps valid IR at any level; drops unused pure ops."""
    Rewriter(RULES).run(module)
