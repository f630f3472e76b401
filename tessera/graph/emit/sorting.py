"""Emits the sort of rows that are tiles: a network of comparisons, which are the same whatever the elements are.

for stage in 1 … log2(n), for bit in stage - 1 … 0:
    each pair of elements whose places differ in this bit alone is put in order: upwards in runs of 2**stage elements
    of even number, downwards in those of odd number, which make a run that rises and then falls, for the next stage

Source: K. E. Batcher, "Sorting networks and their applications", AFIPS 1968 (bitonic sort).
"""

from __future__ import annotations

from math import prod

from tessera.dtypes import int32
from tessera.graph.emit.tiles import Tiles
from tessera.graph.ir.combine import region_of, simple
from tessera.ir import TileType, Value, elem_of, shape_of
from tessera.ops import arith, tile


def sorted_rows(t: Tiles, v: Value) -> Value:
    """A tile of integers with each row along its last dimension, whose extent is a power of two, in order."""
    shape = shape_of(v.type)
    stages = shape[-1].bit_length() - 1
    for stage in range(1, stages + 1):
        for bit in reversed(range(stage)):
            v = _in_order(t, v, bit, stage if stage < stages else None)
    return v


def _in_order(t: Tiles, v: Value, bit: int, stage: int | None) -> Value:
    """Each pair of elements whose places differ in `bit` in order, downwards where bit `stage` of their places is 1."""
    shape, elem = shape_of(v.type), elem_of(v.type)
    pairs = prod(shape) >> (bit + 1)
    here = t.emit(tile.ReshapeOp(v, results=[TileType((pairs, 2, 1 << bit), elem)]))
    there = t.binary(arith.XorOp, here, _of_both(t, here))
    upper = _is_one(t, 2, 0, 1)
    if stage is not None:
        upper = t.binary(arith.XorOp, upper, _is_one(t, pairs, stage - 1 - bit, 0))
    low, high = (t.binary(kind, here, there) for kind in (arith.MinOp, arith.MaxOp))
    return t.emit(tile.ReshapeOp(t.select(upper, high, low), results=[TileType(shape, elem)]))


def _of_both(t: Tiles, pair: Value) -> Value:
    """The exclusive or of each pair, which makes of one element the other: `exchange-partners` reads that one."""
    elem = elem_of(pair.type)
    combine, _ = simple("xor", elem)
    op = tile.ReduceOp([pair], axis=1, regions=[region_of([elem], combine)])
    t.builder.insert(op)
    return t.emit(tile.ExpandDimsOp(op.results[0], axis=1))


def _is_one(t: Tiles, extent: int, bit: int, axis: int) -> Value:
    """Whether a bit of the place along an axis of three is 1."""
    line = t.emit(tile.ArangeOp(start=0, end=extent))
    for position in range(3):
        if position != axis:
            line = t.emit(tile.ExpandDimsOp(line, axis=position))
    masked = t.binary(arith.AndOp, line, t.const(1 << bit, int32))
    return t.compare(masked, "ne", t.const(0, int32))
