"""Dots without a matrix instruction: outer products by FMAs, in steps along K that fit into registers.

A thread needs whole rows of A and columns of B. When these are too many words, both operands go to shared memory as
K / step parts, and a chain of dots takes one part after the other:

    %as = local_alloc %a as [K/4, M, 4]
    %d0 = dot (local_load %as[0]), (local_load %bs[0]), %c
    %d1 = dot (local_load %as[1]), (local_load %bs[1]), %d0 ...
"""

from __future__ import annotations

from typing import Any

from tessera.dtypes import int32
from tessera.ir import Builder, SharedType, TileType, Value, elem_of, shape_of, with_elem
from tessera.layout import LinearLayout, shared_linear
from tessera.ops import (
    CastOp, ConstOp, ConvertLayoutOp, DotOp, LocalAllocOp, LocalIndexOp, LocalLoadOp, ReshapeOp, TransOp,
)  # fmt: skip
from tessera.passes.layout_rules import fma_acc, fma_operand

OPERAND_WORDS = 64  # registers for both operands of one step


def prepare_fma(op: DotOp, num_warps: int, lanes: int) -> None:
    """Cast the operands to the accumulator's type, which is the one that the products are computed in, and take the dot
    apart along K if its operands are too large."""
    builder = Builder.before_op(op)
    for i, v in enumerate((op.a, op.b)):
        if elem_of(v.type) != elem_of(op.acc.type):
            op.set_operand(i, builder.emit(CastOp(v, results=[with_elem(v.type, elem_of(op.acc.type))])))
    depth = shape_of(op.a.type)[-1]
    acc = fma_acc(shape_of(op.acc.type), num_warps, lanes)
    step = depth
    while step > 1 and _words(op, acc, step) > OPERAND_WORDS:
        step //= 2
    if step < depth:
        _split(builder, op, acc, depth // step)


def _words(op: DotOp, acc: LinearLayout, step: int) -> int:
    registers = sum(fma_operand(acc, step, i).size("register") for i in (0, 1))
    return registers * elem_of(op.acc.type).storage_bits // 32


def _split(b: Builder, op: DotOp, layout: LinearLayout, count: int) -> None:
    rings = [_parts(b, v, axis, count) for v, axis in ((op.a, -1), (op.b, -2))]
    acc = b.emit(ConvertLayoutOp(op.acc, results=[op.acc.type.with_layout(layout)]))
    for part in range(count):
        index = b.emit(ConstOp(value=part, results=[int32]))
        operands: list[Value] = []
        for i, ring in enumerate(rings):
            view = b.emit(LocalIndexOp(ring, index))
            t: Any = view.type
            depth = t.shape[-1 if i == 0 else -2]
            tile = TileType(t.shape, t.elem, fma_operand(layout, depth, i))
            operands.append(b.emit(LocalLoadOp(view, results=[tile])))
        acc = b.emit(DotOp(*operands, acc, results=[acc.type], precision=op.precision))
    op.replace_by([b.emit(ConvertLayoutOp(acc, results=[acc.type.with_layout(None)]))])


def _parts(b: Builder, v: Value, axis: int, count: int) -> Value:
    """Shared memory with `v` cut in `count` parts along `axis` (counted from the end), the part's number first."""
    shape = shape_of(v.type)
    axis += len(shape)
    cut = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
    x = b.emit(ReshapeOp(v, results=[TileType(cut, v.type.elem)]))
    order = (axis, *[d for d in range(len(cut)) if d != axis])
    x = b.emit(TransOp(x, order=order))
    t: TileType = x.type
    slowest_first = tuple(reversed(range(len(t.shape))))
    shared = SharedType(t.shape, t.elem, shared_linear(t.shape, slowest_first))
    return b.emit(LocalAllocOp(x, results=[shared], names=[v.name]))
