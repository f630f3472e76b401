"""Unrolls loops over k whose dots only add to carried accumulators, so that accumulators go through memory less often.

    for k in 0, n, 1:  acc = dot(a_k, b_k, acc)
      →  for k in 0, n / 4 * 4, 4:  acc = dot(a_k, b_k, acc); … dot(a_k+3, b_k+3, acc)
         for k in n / 4 * 4, n, 1:  acc = dot(a_k, b_k, acc)

The lowering runs such a chain of dots as one: an accumulator is loaded and stored once for 256 elements along k (512 of
16-bit operands) instead of once a step, which is what limits loops with small steps.
"""

from __future__ import annotations

from typing import Any

from tessera.backends.cpu.k_loops import accumulated_dots, prepacks_k
from tessera.dtypes import float16
from tessera.ir import Builder, Module, Value, elem_of, pass_, shape_of
from tessera.ir.applications import apply
from tessera.ops import AddOp, ConstOp, DivOp, DotOp, ForOp, MaxOp, MulOp, SubOp

DEPTH = 1024  # bytes of a row of A between two accesses to the accumulator in memory
MOST = 8


@pass_("unroll-k", optimization="k-unroll", counts=True)
def unroll_k(module: Module) -> None:
    """Assumes scalar inductions; establishes chains of dots in innermost loops."""
    for op in list(module.walk()):
        if isinstance(op, ForOp) and not prepacks_k(op):
            times = _times(op)
            if times > 1 and apply("k-unroll", op):
                _unroll(op, times)


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


def _unroll(loop: ForOp, times: int) -> None:
    b = Builder.before_op(loop)
    t = loop.lb.type

    def number(value: int) -> Value:
        return b.emit(ConstOp(value=value, results=[t]))

    room = b.emit(SubOp(loop.ub, loop.lb))
    trips = b.emit(DivOp(b.emit(AddOp(room, b.emit(SubOp(loop.step, number(1))))), loop.step))
    trips = b.emit(MaxOp(trips, number(0)))
    multiple = b.emit(MulOp(b.emit(DivOp(trips, number(times))), number(times)))
    middle = b.emit(AddOp(loop.lb, b.emit(MulOp(multiple, loop.step))))
    stride = b.emit(MulOp(loop.step, number(times)))
    attrs: dict[str, Any] = dict(loop.attrs)
    main = b.insert(ForOp(loop.lb, middle, stride, loop.inits, loc=loop.loc, **attrs))
    for a in loop.body.args:
        main.body.add_arg(a.type, a.name)
    inside = Builder(main.body)
    carried = list(main.carried)
    for copy in range(times):
        index = main.induction
        if copy:
            far = inside.emit(MulOp(loop.step, inside.emit(ConstOp(value=copy, results=[t]))))
            index = inside.emit(AddOp(main.induction, far))
        mapping: dict[Value, Value] = dict(zip(loop.body.args, [index, *carried], strict=True))
        for op in loop.body:
            if op.terminator:
                carried = [mapping.get(v, v) for v in op.operands]
                break
            inside.insert(op.clone(mapping))
    inside.insert(type(loop.body.terminator)(carried))
    loop.set_operands(middle, loop.ub, loop.step, main.results)
