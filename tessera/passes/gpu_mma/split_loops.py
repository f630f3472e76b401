"""Splits loops with MMAs whose body has a branch that flips once: one loop before the flip and one from it on.

    for i in lb..ub by s:               %m = the first i with i + c > %w, %ub at most
      ...                               for i in lb..%m by s:
      if i + c > %w:            →         ...               (the branch not taken)
        mask                            for i in %m..ub by s:
      ...                                 ...; mask; ...

Values that are carried around go from the first loop into the second, MMAs that are an iteration late among them.
Without a branch the code of an iteration is one block, in which the assembler mixes the work on results with MMAs.
A comparison flips once if one side is the induction variable plus a constant, and the other one does not change."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.dtypes import int1, int64
from tessera.ir import Builder, Module, Value, pass_
from tessera.ir.applications import apply
from tessera.ops import (
    AddOp,
    CastOp,
    CmpOp,
    ConstOp,
    DivOp,
    ForOp,
    IfOp,
    MaxOp,
    MinOp,
    MulOp,
    SubOp,
    WgmmaOp,
)
from tessera.passes.neutral.fold import constant_of

MIRRORED = {"gt": "lt", "lt": "gt", "ge": "le", "le": "ge"}


@dataclass(frozen=True, slots=True)
class Flip:
    """`condition` is `first` as long as the induction variable is less than `limit` + `more`, and then not."""

    condition: Value
    first: bool
    limit: Value
    more: int


@pass_("split-loops", optimization="loop-split", counts=True)
def split_loops(module: Module) -> None:
    """Split loops at the flip of a branch. After pipelining: what an iteration hands on is then carried."""
    for op in list(module.walk()):
        if isinstance(op, ForOp) and any(isinstance(x, WgmmaOp) for x in op.body):
            running = any(isinstance(x, WgmmaOp) and x.pending for x in op.body)
            found = [flip for x in op.body if isinstance(x, IfOp) and (flip := flip_of(x, op))]
            if found and not running and apply("loop-split", op):
                _split(op, found[0])


def flip_of(branch: IfOp, loop: ForOp) -> Flip | None:
    """Where the branch's condition flips, if it does so once."""
    cmp, step = branch.condition.op, constant_of(loop.step)
    if not isinstance(cmp, CmpOp) or cmp.parent is not loop.body or step is None or step <= 0:
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
            and _is_fixed(fixed, loop)
            and predicate in MIRRORED
        ):
            # A sum that wrapped around would flip again; but then the loop's next step would, too.
            first = predicate in ("lt", "le")
            after = predicate in ("gt", "le")  # i + c > w or not i + c <= w: i >= w - c + 1
            return Flip(cmp.result, first, fixed, after - plus)
    return None


def _distance(v: Value, loop: ForOp) -> int | None:
    """How far `v` is from the induction variable."""
    if v is loop.induction:
        return 0
    if not isinstance(v.op, AddOp):
        return None
    for a, b in ((v.op.lhs, v.op.rhs), (v.op.rhs, v.op.lhs)):
        if a is loop.induction:
            return constant_of(b)
    return None


def _is_fixed(v: Value, loop: ForOp) -> bool:
    if v.op is None:
        return v.block is not loop.body
    return not v.op.is_inside(loop)


def _split(loop: ForOp, flip: Flip) -> None:
    b = Builder.before_op(loop)
    middle = _middle(b, loop, flip)
    later = loop.clone({})
    Builder.after_op(loop).insert(later)
    place = {op: i for i, op in enumerate(loop.body)}[flip.condition.op]  # type: ignore[index]
    copy = list(later.body)[place].result
    for old, new in zip(loop.results, later.results, strict=True):
        old.replace_all_uses(new)
    for i, v in enumerate(loop.results):
        later.set_operand(3 + i, v)
    later.set_operand(0, middle)
    loop.set_operand(1, middle)
    for condition, value in ((flip.condition, flip.first), (copy, not flip.first)):
        assert condition.op is not None
        known = Builder.before_op(condition.op).emit(ConstOp(value=value, results=[int1]))
        condition.replace_all_uses(known)


def _middle(b: Builder, loop: ForOp, flip: Flip) -> Value:
    """The first value of the induction variable from the flip on, or the loop's end if that comes first."""
    t = loop.lb.type

    def number(value: int) -> Value:
        return b.emit(ConstOp(value=value, results=[int64]))

    first, last, limit = (
        v if t == int64 else b.emit(CastOp(v, results=[int64]))
        for v in (loop.lb, loop.ub, flip.limit)
    )
    step = constant_of(loop.step)
    assert step is not None
    far = b.emit(SubOp(b.emit(AddOp(limit, number(flip.more + step - 1))), first))
    far = b.emit(MaxOp(far, number(0)))
    steps = b.emit(DivOp(far, number(step)))
    at = b.emit(AddOp(first, b.emit(MulOp(steps, number(step)))))
    at = b.emit(MinOp(at, last))
    return at if t == int64 else b.emit(CastOp(at, results=[t]))
