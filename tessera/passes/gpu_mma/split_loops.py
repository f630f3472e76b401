"""Splits loops with MMAs whose body has a branch that flips once: one loop before the flip and one from it on.

    for i in lb..ub by s:               %m = the first i with i + c > %w, %ub at most
      ...                               for i in lb..%m by s:
      if i + c > %w:            →         ...               (the branch not taken)
        mask                            for i in %m..ub by s:
      ...                                 ...; mask; ...

Carried values, those of shifted MMAs among them, go from the first loop into the second. Without a branch the code of
an iteration is one basic block, in which the assembler can interleave work on results with MMAs.
A comparison flips once if one side is the induction variable plus a constant, and the other side is invariant."""

from __future__ import annotations

from dataclasses import dataclass

from tessera import ops
from tessera.analysis.host_code import MIRRORED
from tessera.analysis.provenance import defined_inside
from tessera.dtypes import int1, int64
from tessera.ir import Builder, Module, Value, pass_
from tessera.ir.applications import apply
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.loops import cast, const, split_at
from tessera.passes.neutral.remarks import place_of, remark


@dataclass(frozen=True, slots=True)
class Flip:
    """`condition` is `first` as long as the induction variable is less than `limit` + `more`, and `not first` after."""

    condition: Value
    first: bool
    limit: Value
    more: int


@pass_("split-loops", optimization="loop-split", counts=True)
def split_loops(module: Module) -> None:
    """Split loops with MMAs at the flip of a branch.

    Takes: GPU IR after pipelining, so that what an iteration hands on is carried.
    Gives: two loops for one whose branch flips once: all iterations of one take the branch, none of the other; a
        remark for a loop with a branch that is not known to do so.
    Needs: a GPU with `wgmma`: other loops are left alone.
    Raises: nothing.
    Example: `flips_once` of tests/filecheck/split-loops.gir
        for { wgmma; cmp; if { … } } → for %first, %m { yield }; for %m, %n { wgmma; print; yield }; return
    Compare: LLVM LoopBoundSplit and IRCE (index-set splitting).
    """
    for op in list(module.walk()):
        if isinstance(op, ops.ForOp) and any(isinstance(x, ops.WgmmaOp) for x in op.body):
            running = any(isinstance(x, ops.WgmmaOp) and x.pending for x in op.body)
            branches = [x for x in op.body if isinstance(x, ops.IfOp)]
            found = [flip for x in branches if (flip := flip_of(x, op))]
            if found and not running and apply("loop-split", op):
                _split(op, found[0])
            elif branches and not found:
                why = (
                    "its condition compares no sum of the loop's index and a constant with a bound"
                )
                remark(
                    module,
                    f"the loop{place_of(op)} is not split at the branch{place_of(branches[0])}: {why}",
                )


def flip_of(branch: ops.IfOp, loop: ops.ForOp) -> Flip | None:
    """Return where the branch's condition flips, if it does so once."""
    cmp, step = branch.condition.op, constant_of(loop.step)
    if not isinstance(cmp, ops.CmpOp) or cmp.parent is not loop.body or step is None or step <= 0:
        return None
    t = loop.induction.type
    if cmp.lhs.type != t or not t.signed:
        return None
    for moving, fixed, predicate in (
        (cmp.lhs, cmp.rhs, cmp.predicate),
        (cmp.rhs, cmp.lhs, MIRRORED.get(cmp.predicate, "")),
    ):
        plus = _distance(moving, loop)
        if (
            plus is not None
            and 0 <= plus <= step
            and not defined_inside(fixed, loop)
            and predicate in MIRRORED
        ):
            # A sum that wrapped around would flip again, but then the loop's next step would wrap, too.
            first = predicate in ("lt", "le")
            after = predicate in ("gt", "le")  # i + c > w or not i + c <= w: i >= w - c + 1
            return Flip(cmp.result, first, fixed, after - plus)
    return None


def _distance(v: Value, loop: ops.ForOp) -> int | None:
    """Return the constant difference of `v` and the induction variable."""
    if v is loop.induction:
        return 0
    if not isinstance(v.op, ops.AddOp):
        return None
    for a, b in ((v.op.lhs, v.op.rhs), (v.op.rhs, v.op.lhs)):
        if a is loop.induction:
            return constant_of(b)
    return None


def _split(loop: ops.ForOp, flip: Flip) -> None:
    b = Builder.before_op(loop)
    middle = _middle(b, loop, flip)
    place = list(loop.body).index(flip.condition.op)  # type: ignore[arg-type]
    copy = list(split_at(loop, middle).body)[place].result
    for condition, value in ((flip.condition, flip.first), (copy, not flip.first)):
        assert condition.op is not None
        known = const(Builder.before_op(condition.op), value, int1)
        condition.replace_all_uses(known)


def _middle(b: Builder, loop: ops.ForOp, flip: Flip) -> Value:
    """Return the induction variable's first value from the flip on, or the loop's end if that comes first."""
    first, last, limit = (cast(b, v, int64) for v in (loop.lb, loop.ub, flip.limit))
    step = constant_of(loop.step)
    assert step is not None
    far = b.emit(ops.SubOp(b.emit(ops.AddOp(limit, const(b, flip.more + step - 1, int64))), first))
    far = b.emit(ops.MaxOp(far, const(b, 0, int64)))
    steps = b.emit(ops.DivOp(far, const(b, step, int64)))
    at = b.emit(ops.AddOp(first, b.emit(ops.MulOp(steps, const(b, step, int64)))))
    at = b.emit(ops.MinOp(at, last))
    return cast(b, at, loop.lb.type)
