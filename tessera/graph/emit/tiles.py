"""Builds tile IR for tiles of one rank: operands of different extents are broadcast as they meet.

All tiles of a kernel have the rank of its tiling; along an axis that a value does not vary on its extent is 1, and what
varies on no axis is a scalar, which every program computes once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.dtypes import dtype, int1, int32, int64
from tessera.errors import CompilationError
from tessera.ir import Block, Builder, Op, TileType, Value, elem_of, shape_of
from tessera.ops import arith, control, tile

Shape = tuple[int, ...]


class CannotEmit(CompilationError):
    """A nest has a form that no kernel is made for."""


def joint_shape(shapes: Sequence[Shape]) -> Shape:
    """The extents that tiles of these shapes are broadcast to; () if all are scalars."""
    wide = [s for s in shapes if s]
    return tuple(map(max, zip(*wide, strict=True))) if wide else ()


def typed(shape: Shape, elem: Any) -> Any:
    return TileType(shape, elem) if shape else elem


class Tiles:
    """A builder of tile IR. `rank`: number of dimensions of every tile that it makes."""

    def __init__(self, builder: Builder, rank: int):
        self.builder, self.rank = builder, rank
        self._constants: dict[tuple[Block, Any, Any], Value] = {}

    # --- leaves ---------------------------------------------------------------------------------------
    def const(self, value: int | float | bool, elem: Any) -> Value:
        """A scalar constant; the same one if it was asked for before in this block."""
        assert self.builder.block is not None
        key = (self.builder.block, repr(value), elem)
        found = self._constants.get(key)
        if found is None:
            found = self.emit(arith.ConstOp(value=value, results=[elem]))
            self._constants[key] = found
        return found

    def arange(self, axis: int, extent: int) -> Value:
        """0 … extent-1 along `axis` (int32); a scalar 0 for an extent of 1."""
        if extent == 1:
            return self.const(0, int32)
        line = self.emit(tile.ArangeOp(start=0, end=extent))
        for position in range(self.rank):
            if position != axis:
                line = self.emit(tile.ExpandDimsOp(line, axis=position))
        return line

    def emit(self, op: Op) -> Value:
        return self.builder.emit(op)

    # --- shapes ---------------------------------------------------------------------------------------
    def spread(self, v: Value, shape: Shape) -> Value:
        """`v` repeated along the axes where it has extent 1."""
        have = shape_of(v.type)
        if have == shape:
            return v
        op = tile.BroadcastOp if have else tile.SplatOp
        return self.emit(op(v, results=[TileType(shape, elem_of(v.type))]))

    def together(self, values: Sequence[Value]) -> list[Value]:
        """The values, broadcast to one shape."""
        shape = joint_shape([shape_of(v.type) for v in values])
        return [self.spread(v, shape) for v in values]

    # --- arithmetic -----------------------------------------------------------------------------------
    def binary(self, kind: type[Op], a: Value, b: Value, **attrs: Any) -> Value:
        return self.emit(kind(*self.together((a, b)), **attrs))

    def add(self, a: Value, b: Value) -> Value:
        return self.binary(arith.AddOp, a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.binary(arith.MulOp, a, b)

    def compare(self, a: Value, predicate: str, b: Value) -> Value:
        return self.binary(arith.CmpOp, a, b, predicate=predicate)

    def both(self, a: Value | None, b: Value | None) -> Value | None:
        """The conjunction of two masks, of which None is always true."""
        if a is None or b is None:
            return b if a is None else a
        return a if a is b else self.binary(arith.AndOp, a, b)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.emit(arith.SelectOp(*self.together((condition, a, b))))

    def cast(self, v: Value, elem: dtype) -> Value:
        if elem_of(v.type) is elem:
            return v
        return self.emit(arith.CastOp(v, results=[typed(shape_of(v.type), elem)]))

    def wide(self, v: Value) -> Value:
        """An integer as int64."""
        return self.cast(v, int64)

    def pointer(self, base: Value, offsets: Sequence[Value]) -> Value:
        """The address of the element at the sum of `offsets`: those that are scalars move the scalar pointer."""
        p = base
        for v in offsets:
            p = self.emit(arith.AddPtrOp(*self.together((p, v))))
        return p

    # --- ops of a body, and combine regions --------------------------------------------------------------
    def elementwise(self, op: Op, operands: Sequence[Value]) -> Value:
        """The scalar op of a body on tiles."""
        if not operands:
            return self.const(op.attrs["value"], elem_of(op.result.type))
        spread = self.together(operands)
        shape = shape_of(spread[0].type)
        kind = typed(shape, elem_of(op.result.type))
        attrs = dict(op.attrs)
        if isinstance(op, arith.CastOp):
            attrs["contract"] = False  # for the passes of graphs: here every rounding is meant
        return self.emit(type(op)(*spread, results=[kind], loc=op.loc, **attrs))

    def inline(self, block: Block, arguments: Sequence[Value]) -> list[Value]:
        """The values that a block of element-wise ops yields for these arguments."""
        block = self.region(block)
        found: dict[Value, Value] = dict(zip(block.args, arguments, strict=True))
        for op in block:
            if isinstance(op, control.YieldOp):
                return [found[v] for v in op.operands]
            found[op.result] = self.elementwise(op, [found[v] for v in op.operands])
        raise AssertionError("a block of a combination ends in a yield")

    def region(self, block: Block) -> Block:
        """A copy of a combine region with the constants in it that passes have put in front of it."""
        made = block.clone({})
        inside: dict[Value, Value] = {}
        for op in list(made):
            for k, v in enumerate(op.operands):
                if v.block is made:
                    continue
                if not isinstance(v.op, arith.ConstOp):
                    raise CannotEmit("a reduction combines with a value from outside of it")
                if v not in inside:
                    inside[v] = Builder.at_start(made).insert(v.op.clone()).result
                op.set_operand(k, inside[v])
        return made

    def reduce(self, values: Sequence[Value], axis: int, combine: Block) -> list[Value]:
        """One value a row, by the region; the axis stays with extent 1. Scalars if nothing else varies."""
        op = tile.ReduceOp(list(values), axis=axis, regions=[self.region(combine)])
        self.builder.insert(op)
        return [self._kept(r, axis) for r in op.results]

    def _kept(self, v: Value, axis: int) -> Value:
        shape = shape_of(v.type)
        return self.emit(tile.ExpandDimsOp(v, axis=axis)) if shape else v

    def scan(
        self, values: Sequence[Value], axis: int, combine: Block, reverse: bool
    ) -> list[Value]:
        op = tile.ScanOp(list(values), axis=axis, reverse=reverse, regions=[self.region(combine)])
        return self.builder.insert(op).results

    def true(self) -> Value:
        return self.const(True, int1)


def attributes(alignment: Mapping[int, int], count: int) -> tuple[tuple[tuple[str, int], ...], ...]:
    """The facts of a kernel's `count` arguments: what addresses and sizes are multiples of."""
    return tuple((("divisibility", alignment[i]),) if i in alignment else () for i in range(count))
