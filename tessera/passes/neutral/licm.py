"""Moves pure ops whose operands come from outside a loop in front of it (loop-invariant code motion)."""

from __future__ import annotations

from tessera.analysis.provenance import defined_inside
from tessera.dtypes import dtype
from tessera.ir import Block, Effect, Module, Op, elem_of, pass_
from tessera.ir.applications import apply
from tessera.ops import arith, control
from tessera.passes.neutral.fold import constant_of


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
    if any(_may_trap(inner) for inner in op.walk()):
        return False
    used = [v for inner in op.walk() for v in inner.operands]
    return not any(defined_inside(v, loop) and not defined_inside(v, op) for v in used)


def _hoist(block: Block) -> None:
    for op in block:
        for inner in op.regions:
            _hoist(inner)
        if isinstance(op, control.Loop) and not op.attrs.get("disable_licm"):
            for inner in op.regions:
                for candidate in inner:
                    if _movable(candidate, op) and apply("licm", candidate):
                        candidate.move_before(op)


@pass_("licm", optimization="licm", counts=True)
def licm(module: Module) -> None:
    """Move invariant pure ops out of loops, innermost loops first.

    Takes: valid IR of any level.
    Gives: the same ops, in front of the outermost loop that does not change them. What reads memory, or may trap where
        the loop would not run, stays, as does all of a loop with `disable_licm`.
    Needs: nothing of a target.
    Raises: nothing.
    Example: `moves` of tests/filecheck/licm.tir
        for (%i) { %a = mul %x, %x; … } → %a = mul %x, %x; for (%i) { … }
    Compare: LLVM LICM, MLIR `loop-invariant-code-motion`.
    """
    for f in module.body:
        for block in f.regions:
            _hoist(block)
