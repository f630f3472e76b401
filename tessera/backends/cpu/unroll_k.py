"""Unrolls loops over k whose dots only add to carried accumulators, so that accumulators go through memory less often.

    for k in 0, n, 1:  acc = dot(a_k, b_k, acc)
      →  for k in 0, n / 4 * 4, 4:  acc = dot(a_k, b_k, acc); … dot(a_k+3, b_k+3, acc)
         for k in n / 4 * 4, n, 1:  acc = dot(a_k, b_k, acc)

The lowering runs such a chain of dots as one: an accumulator is loaded and stored once for 256 elements along k (512 of
16-bit operands) instead of once a step, which is what limits loops with small steps.
"""

from __future__ import annotations

from tessera.backends.cpu.k_loops import accumulated_dots, prepacks_k
from tessera.dtypes import float16
from tessera.ir import Module, elem_of, pass_, shape_of
from tessera.ir.applications import apply
from tessera.ops import DotOp, ForOp
from tessera.passes.neutral.loops import can_unroll, unroll_loop

DEPTH = 1024  # bytes of a row of A between two accesses to the accumulator in memory
MOST = 8


@pass_("unroll-k", optimization="k-unroll", counts=True)
def unroll_k(module: Module) -> None:
    """Assumes scalar inductions; establishes chains of dots in innermost loops."""
    for op in list(module.walk()):
        if isinstance(op, ForOp) and not prepacks_k(op):
            times = _times(op)
            if times > 1 and can_unroll(op, times) and apply("k-unroll", op):
                unroll_loop(op, times)


def _times(loop: ForOp) -> int:
    """The unroll factor; 1 where unrolling does not help or is not allowed."""
    dots = accumulated_dots(loop)
    if not dots:
        return 1
    depth = min(shape_of(d.a.type)[-1] * _bytes(d) for d in dots)
    return max(1, min(MOST, DEPTH // depth))


def _bytes(dot: DotOp) -> int:
    """Bytes of an element in the type that is multiplied: fp16 becomes fp32."""
    t = elem_of(dot.a.type)
    return 4 if t is float16 else t.storage_bytes
