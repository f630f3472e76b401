"""Turns `while` loops that count into `for` loops, which other passes know how to pipeline, unroll and split into
roles.

    while [%n0, %x] (%n, %a) {                 for %k in %n0..%end by 64, [%n0, %x] (%n, %a) {
      condition (%n < %end), [%n, %a]
    } (%n, %a) {                      →
      %b = … %n, %a …                            %b = … %k, %a …
      yield [%n + 64, %b]                        yield [%n + 64, %b]
    }                                          }

The count is carried, too, as long as it is used after the loop. A count that overflows its type is undefined in
either kind of loop."""

from __future__ import annotations

from dataclasses import dataclass

from tessera import ops
from tessera.analysis.provenance import defined_inside
from tessera.dtypes import int32, int64
from tessera.ir import Builder, Effect, Module, Value, pass_
from tessera.ir.applications import apply
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.loops import const
from tessera.passes.neutral.remarks import place_of, remark

MIRRORED = {"gt": "lt", "lt": "gt"}


@dataclass(frozen=True, slots=True)
class Count:
    """The index of the carried value that counts, the bound that it stays below (or above), and the constant step."""

    number: int
    bound: Value
    step: int


@pass_("while-to-for", optimization="while-to-for", counts=True)
def while_to_for(module: Module) -> None:
    """Turn `while` loops that count into `for` loops.

    Takes: tile IR after `licm`, so that bounds stand in front of loops.
    Gives: `for` loops where the condition compares a carried int32 or int64 with an invariant bound, and the body adds
        a constant to it. The count stays a carried value for those who read it after the loop. A remark for each other
        `while` loop that loads tiles or multiplies them.
    Needs: nothing of a target.
    Raises: nothing.
    Example: `up` of tests/filecheck/while-to-for.tir
        while [%lb, %x] { cmp; condition } { add; add; yield } → const; for %lb, %ub, %step, [%x] { add; yield }
    Compare: MLIR's uplifting of `scf.while` to `scf.for`, LLVM IndVarSimplify.
    """
    for op in list(module.walk()):
        if not isinstance(op, ops.WhileOp):
            continue
        if (count := _count(op)) is None:
            if not any(
                isinstance(x, ops.LoadOp | ops.DotOp | ops.DescriptorLoadOp) for x in op.walk()
            ):
                continue
            why = "its condition is no comparison of a number that grows by a constant with a fixed bound"
            remark(module, f"the loop{place_of(op)} does not count: {why}")
        elif apply("while-to-for", op):
            _replace(op, count)


def _count(op: ops.WhileOp) -> Count | None:
    """Return what the loop counts, if that alone decides how long it runs."""
    condition, *handed = op.before.terminator.operands
    test = condition.op
    pure = all(x is op.before.terminator or x.effects is Effect.NONE for x in op.before)
    if handed != op.before.args or not pure or not isinstance(test, ops.CmpOp):
        return None
    for v, bound, predicate in (
        (test.lhs, test.rhs, test.predicate),
        (test.rhs, test.lhs, MIRRORED.get(test.predicate, "")),
    ):
        fixed = not defined_inside(bound, op)
        if v.owner is op.before and fixed and v.type in (int32, int64) and predicate in MIRRORED:
            step = _step(op, v.index)
            if step is not None and (step > 0) == (predicate == "lt") and step != 0:
                return Count(v.index, bound, step)
    return None


def _step(op: ops.WhileOp, number: int) -> int | None:
    """Return by how much a carried value changes in each iteration, if always by the same amount."""
    following, v = op.after.terminator.operands[number].op, op.after.args[number]
    if isinstance(following, ops.AddOp):
        others = [x for x in following.operands if x is not v]
        return constant_of(others[0]) if len(others) == 1 else None
    if isinstance(following, ops.SubOp) and following.lhs is v:
        by = constant_of(following.rhs)
        return -by if by is not None else None
    return None


def _replace(op: ops.WhileOp, count: Count) -> None:
    body, first = op.after, op.inits[count.number]
    counted = body.args[count.number]
    b = Builder.before_op(op)
    step = const(b, count.step, first.type)
    following = body.terminator.operands[count.number].op
    induction = body.insert_arg(0, first.type, counted.name)
    for user, index in list(counted.uses):
        if user is not following:
            user.set_operand(index, induction)
    op.regions = [op.before]  # the other block goes to the new loop
    loop = ops.ForOp(
        first, count.bound, step, list(op.inits),
        regions=[body], loc=op.loc, names=[r.name for r in op.results], disable_licm=op.disable_licm,
    )  # fmt: skip
    b.insert(loop)
    op.replace_by(loop.results)
