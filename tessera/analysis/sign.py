"""Finds integers that are known to be non-negative, such as indices made of program ids, ranges and loop variables.

Quotients truncate toward 0: the run -4, -3, -2, -1 divided by 4 gives -1, 0, 0, 0, but 4, 5, 6, 7 gives 1, 1, 1, 1.
Facts about the quotients and remainders of runs therefore need the sign of the dividend. A loop-carried value is
non-negative if its initial value is, and if each next value is whenever the value itself is.

Two assumptions are made, as wherever offsets are computed: sums and products of non-negative numbers do not wrap, and
a divisor that is no constant is positive (with a negative number of columns, or of programs in a group, no launch
makes sense). Loads, arguments and masks prove nothing, but `tl.assume(x >= 0)` does. A difference `x - y` is
non-negative where a branch or a `while` has tested `x >= y`, and `x - x / y * y` where x is: a remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tessera.analysis.provenance import incoming
from tessera.dtypes import dtype
from tessera.ir import Block, Op, Value, elem_of
from tessera.ops import arith, control, gpu, memory, tile

# (all or any, values): a value is non-negative if all, or any, of these values are.
Rule = tuple[Callable[[Iterable[bool]], bool], Sequence[Value]]
YES: Rule = (all, ())
NO: Rule = (any, ())

_ALL_OPERANDS = (
    arith.AddOp, arith.MulOp, arith.MinOp, arith.OrOp, arith.XorOp, arith.MulHiOp, tile.JoinOp,
)  # fmt: skip
_FIRST_OPERAND = (
    arith.RemOp, arith.ShrOp, arith.ShlOp, arith.HintOp, tile.GatherOp, tile.Rearrangement,
)  # fmt: skip
_NEVER = (
    tile.ProgramIdOp, tile.NumProgramsOp, tile.CtaRankOp, gpu.CtaIdOp, gpu.NumCtasOp, arith.AbsOp,
    arith.PopcOp, arith.ClzOp, tile.HistogramOp,
)  # fmt: skip


class Signs:
    """Signs of the values of one module. Results are kept, so the module must not change meanwhile."""

    def __init__(self) -> None:
        self.known: dict[Value, bool] = {}

    def nonnegative(self, v: Value) -> bool:
        """Whether every element of `v` is known to be non-negative."""
        if v not in self.known:
            self._settle(v)
        return self.known[v]

    def _settle(self, v: Value) -> None:
        """Assume that all values that `v` depends on are non-negative, then retract until no rule is violated."""
        rules: dict[Value, Rule] = {}
        pending = [v]
        while pending:
            x = pending.pop()
            if x not in rules and x not in self.known:
                rules[x] = YES if _promised(x) else _rule(x)
                pending += rules[x][1]
        held = dict.fromkeys(rules, True)
        changed = True
        while changed:
            changed = False
            for x, (which, values) in rules.items():
                if held[x] and not which(self.known.get(y, held.get(y, False)) for y in values):
                    held[x], changed = False, True
        self.known.update(held)


def _rule(v: Value) -> Rule:
    t: object = elem_of(v.type)
    if not isinstance(t, dtype) or not t.is_int():
        return NO
    if not t.signed:
        return YES
    if flowing := incoming(v):
        return all, flowing
    if v.op is not None:
        return _of_result(v.op)
    loop = v.owner.parent if isinstance(v.owner, Block) else None
    return (all, [loop.lb, loop.step]) if isinstance(loop, control.ForOp) else NO


def _of_result(op: Op) -> Rule:
    if isinstance(op, (arith.ConstOp, tile.ArangeOp)):
        return YES if (op.value if isinstance(op, arith.ConstOp) else op.start) >= 0 else NO
    if isinstance(op, _NEVER):
        return YES
    if isinstance(op, _ALL_OPERANDS):
        return all, op.operands
    if isinstance(op, _FIRST_OPERAND):
        return all, op.operands[:1]
    if isinstance(op, (arith.MaxOp, arith.AndOp)):
        return any, op.operands
    if isinstance(op, arith.SelectOp):
        return all, op.operands[1:]
    if isinstance(op, arith.SubOp):
        if _is_remainder(op):
            return all, [op.lhs]
        return YES if _ordered(op, op.lhs, op.rhs) else NO
    if isinstance(op, arith.CastOp):
        return _of_cast(op)
    if isinstance(op, arith.DivOp):
        divisor = op.rhs.op.x if isinstance(op.rhs.op, tile.SplatOp) else op.rhs
        by = divisor.op.value if isinstance(divisor.op, arith.ConstOp) else 1
        return (all, [op.lhs]) if by > 0 else NO
    return NO


def _is_remainder(op: arith.SubOp) -> bool:
    """Whether a difference is `x - x / y * y`, which has the sign of x."""
    product = op.rhs.op
    if not isinstance(product, arith.MulOp):
        return False
    for whole, by in (product.operands, reversed(product.operands)):
        found = whole.op
        if isinstance(found, arith.DivOp) and found.lhs is op.lhs and found.rhs is by:
            return True
    return False


def _of_cast(op: arith.CastOp) -> Rule:
    """Integers that widen keep their value; an unsigned one of the same width may become negative."""
    source, target = elem_of(op.x.type), elem_of(op.result.type)
    if not isinstance(source, dtype) or not source.is_int():
        return NO
    if source.signed:
        return (all, [op.x]) if target.bits >= source.bits else NO
    return YES if target.bits > source.bits else NO


# --- conditions -----------------------------------------------------------------------------------------------
def _ordered(op: Op, high: Value, low: Value) -> bool:
    """Whether `op` runs only where high >= low was tested: in a branch or in the body of a `while`."""
    block = op.parent
    while block is not None and block.parent is not None:
        outer = block.parent
        if isinstance(outer, control.IfOp) and block is outer.regions[0]:
            if _implies(outer.operands[0], high, low):
                return True
        elif isinstance(outer, control.WhileOp) and block is outer.after:
            condition, *passed = outer.before.terminator.operands
            tested = [passed[x.index] if x.owner is block else x for x in (high, low)]
            if _implies(condition, *tested):
                return True
        block = outer.parent
    return False


def _implies(condition: Value, high: Value, low: Value) -> bool:
    op = condition.op
    if isinstance(op, arith.AndOp):
        return any(_implies(x, high, low) for x in op.operands)
    if not isinstance(op, arith.CmpOp):
        return False
    sides = (op.lhs, op.rhs) if op.predicate in ("ge", "gt") else (op.rhs, op.lhs)
    return op.predicate in ("ge", "gt", "le", "lt", "eq") and sides == (high, low)


# --- promises -------------------------------------------------------------------------------------------------
def _promised(v: Value) -> bool:
    """Whether the block that computes `v` assumes that `v` is at least some non-negative number."""
    return any(isinstance(op, arith.CmpOp) and _says(op, v) and _assumed(op) for op in v.users())


def _says(op: arith.CmpOp, v: Value) -> bool:
    low, high, strict = {
        "ge": (op.rhs, op.lhs, 0), "gt": (op.rhs, op.lhs, 1), "le": (op.lhs, op.rhs, 0), "lt": (op.lhs, op.rhs, 1),
    }.get(op.predicate, (v, op.lhs, 0))  # fmt: skip
    bound = low.op.value if isinstance(low.op, arith.ConstOp) else -2
    return high is v and bound + strict >= 0


def _assumed(op: Op) -> bool:
    """Whether a condition is assumed in its own block, alone or as part of a conjunction."""
    for user in op.result.users():
        if user.parent is op.parent and (
            isinstance(user, memory.AssumeOp) or (isinstance(user, arith.AndOp) and _assumed(user))
        ):
            return True
    return False
