"""Emits products in memory, which machines have no atomic operation for: by compare-and-swap until all have succeeded.

old = load p;  left = mask
while any(left):
    seen = cas(p, old, left ? old * v : old)      who is done, or masked, leaves what is there
    left = left and seen != old                   bit for bit
    old = seen
"""

from __future__ import annotations

from tessera.dtypes import dtype, int1, int32, int64
from tessera.graph.emit.tiles import Tiles, typed
from tessera.ir import Block, Value, elem_of, shape_of
from tessera.ops import YieldOp, arith, control, memory, tile


def multiply(t: Tiles, base: Value, pointer: Value, factor: Value, mask: Value | None) -> None:
    """Multiply the elements at `pointer`, of 32 or 64 bits, by `factor` where `mask` holds; the same element may be
    there several times. `base`: the address of an element that is there in any case."""
    elem: dtype = elem_of(factor.type)
    shape = shape_of(factor.type)
    bits = int64 if elem.bits == 64 else int32
    left = mask or t.spread(t.true(), shape)
    if mask is not None:
        pointer = t.select(mask, pointer, base)
    old = t.emit(memory.LoadOp(pointer, mask))
    types = [left.type, factor.type]
    before, after = Block(types), Block(types)
    with t.builder.at(before):
        t.builder.insert(control.ConditionOp(_any(t, before.args[0]), before.args))
    with t.builder.at(after):
        left_now, old_now = after.args
        new = t.select(left_now, t.binary(arith.MulOp, old_now, factor), old_now)
        seen = t.emit(memory.AtomicCasOp(pointer, old_now, new, sem="relaxed"))
        as_bits = [
            t.emit(arith.BitcastOp(v, results=[typed(shape, bits)])) for v in (seen, old_now)
        ]
        failed = t.compare(as_bits[0], "ne", as_bits[1])
        t.builder.insert(YieldOp([t.binary(arith.AndOp, left_now, failed), seen]))
    t.builder.insert(control.WhileOp([left, old], regions=[before, after]))


def _any(t: Tiles, v: Value) -> Value:
    """Whether one of the truth values of a tile holds."""
    while shape_of(v.type):
        body = Block([int1, int1])
        with t.builder.at(body):
            t.builder.insert(YieldOp([t.binary(arith.OrOp, *body.args)]))
        v = t.builder.insert(tile.ReduceOp([v], axis=0, regions=[body])).results[0]
    return v
