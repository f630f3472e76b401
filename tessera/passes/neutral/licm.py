"""Moves pure ops whose operands come from outside a loop in front of it (loop-invariant code motion)."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.analysis.provenance import defined_inside
from tessera.dtypes import dtype
from tessera.ir import Block, Effect, Module, Op, elem_of, pass_
from tessera.ir.applications import apply
from tessera.ops import arith, control, memory
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.loops import trip_count
from tessera.passes.neutral.remarks import place_of, remark


def _may_trap(op: Op) -> bool:
    """Whether an op must not run where the loop would not have run at all: an integer division may divide by zero
    (or the smallest number by -1), and a `while` may not end."""
    if isinstance(op, control.WhileOp):
        return True
    if not isinstance(op, (arith.DivOp, arith.RemOp)):
        return False
    e = elem_of(op.lhs.type)
    return isinstance(e, dtype) and e.is_int() and constant_of(op.rhs) in (None, 0, -1)


def _movable(op: Op, loop: Op) -> bool:
    if op.terminator or op.all_effects() is not Effect.NONE:
        return False
    return not any(_may_trap(inner) for inner in op.walk()) and _invariant(op, loop)


def _invariant(op: Op, loop: Op) -> bool:
    """Whether an op has the same operands in each iteration."""
    used = [v for inner in op.walk() for v in inner.operands]
    return not any(defined_inside(v, loop) and not defined_inside(v, op) for v in used)


def _why_not(op: Op, loop: Op) -> str:
    """Return why an invariant op that an author can move stays in its loop; empty for any other op."""
    if isinstance(op, memory.LoadOp) and not op.volatile:
        writes = any(x.all_effects() & (Effect.WRITE | Effect.SYNC) for x in _all_inside(loop))
        if writes:
            return "the loop may write what it reads"
        return "it reads memory" if _runs(loop) else "the loop may not run at all"
    if not isinstance(op, (arith.DivOp, arith.RemOp)) or not _may_trap(op):
        return ""
    return "it may divide by zero" + ("" if _runs(loop) else ", and the loop may not run at all")


def _runs(loop: Op) -> bool:
    """Whether a loop is known to run at least once."""
    return isinstance(loop, control.ForOp) and bool(trip_count(loop))


def _all_inside(loop: Op) -> Iterator[Op]:
    return (op for block in loop.regions for op in block)


def _hoist(block: Block, told: Module | None) -> None:
    for op in block:
        for inner in op.regions:
            _hoist(inner, told)
        if isinstance(op, control.Loop) and not op.attrs.get("disable_licm"):
            for candidate in _all_inside(op):
                if _movable(candidate, op):
                    if apply("licm", candidate):
                        candidate.move_before(op)
                elif told and (why := _why_not(candidate, op)) and _invariant(candidate, op):
                    what = "load" if isinstance(candidate, memory.LoadOp) else "division"
                    where = f"{place_of(candidate)} stays in its loop{place_of(op)}"
                    remark(told, f"the {what}{where}: {why}")


@pass_("licm", optimization="licm", counts=True)
def licm(module: Module, tell: bool = False) -> None:
    """Move invariant pure ops out of loops, innermost loops first.

    Takes: valid IR of any level.
    Gives: the same ops, in front of the outermost loop that does not change them. What reads memory, or may trap where
        the loop would not run, stays, as does all of a loop with `disable_licm`. With `tell`, a remark for
        each invariant load, and each integer division by what may be zero, that stays.
    Needs: nothing of a target.
    Raises: nothing.
    Example: `moves` of tests/filecheck/licm.tir
        for (%i) { %a = mul %x, %x; … } → %a = mul %x, %x; for (%i) { … }
    Compare: LLVM LICM, MLIR `loop-invariant-code-motion`.
    """
    for f in module.body:
        for block in f.regions:
            _hoist(block, module if tell else None)
