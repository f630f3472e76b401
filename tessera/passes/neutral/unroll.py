"""Unrolls loops with `tl.range(loop_unroll_factor=n)`: n iterations in one body, and a loop for the remainder.

    for i in lb..ub by s (%x = %x0)         %m = lb + (trips // n) * n * s
      ... i, %x ...                     →   %y = for i in lb..%m by n * s (%x = %x0)
      yield %x'                                 ... i, %x ...;  ... i + s, %x' ...;  ...;  yield
                                            for i in %m..ub by s (%x = %y)
                                                ... i, %x ...

The copies follow one another, so that the loads of all of them can be in flight together."""

from __future__ import annotations

from tessera.ir import Module, pass_
from tessera.ir.applications import apply
from tessera.ops import ForOp
from tessera.passes.neutral.fold import constant_of
from tessera.passes.neutral.loops import can_unroll, unroll_loop
from tessera.passes.neutral.remarks import place_of, remark

LARGEST = 32  # copies of one body


@pass_("unroll", optimization="unroll", counts=True)
def unroll(module: Module) -> None:
    """Unroll every `for` that asks for it by `tl.range(loop_unroll_factor=n)`.

    Takes: tile IR whose loops may have the attribute `unroll`; only loops that count up by a constant are changed.
    Gives: a loop with `n` iterations in its body (LARGEST at most), one for what is left; both lose the attribute. Or a
        remark.
    Needs: nothing of a target; GPU pipelines run it.
    Raises: nothing.
    Example: `pairs` of tests/filecheck/unroll.tir
        for %0, %n, %one {unroll=2} { mul; yield } → for %0, %end, %two { mul; add; mul; yield }; for { mul; yield }
    Compare: LLVM LoopUnroll, Triton `triton-loop-unroll`.
    """
    for op in list(module.walk()):
        if isinstance(op, ForOp) and op.unroll:
            count, op.unroll = min(op.unroll, LARGEST), None
            upwards = (constant_of(op.step) or 0) > 0
            if not upwards or not can_unroll(op, count):
                why = (
                    "its step is no positive constant"
                    if not upwards
                    else "its index would overflow"
                )
                remark(module, f"the loop{place_of(op)} is not unrolled: {why}")
            elif apply("unroll", op):
                unroll_loop(op, count)
                op.num_stages = 1  # a few iterations at most
