"""Defines ops that make tiles, change their shape, reduce and multiply them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tessera.dtypes import int1, int32
from tessera.ir import (
    Block,
    ElementType,
    Op,
    TileType,
    Type,
    Value,
    attr,
    elem_of,
    operand,
    region,
    require,
    shape_of,
    with_elem,
)

__all__ = [
    "ArangeOp", "BroadcastOp", "CombineOp", "CtaRankOp", "DotOp", "ExpandDimsOp", "GatherOp", "HistogramOp",
    "JoinOp", "Matmul", "NumProgramsOp", "ProgramIdOp", "Rearrangement", "ReduceOp", "ReshapeOp", "ScanOp",
    "SplatOp", "SplitOp", "TileOp", "TransOp", "result_tile",
]  # fmt: skip


def result_tile(shape: Sequence[int], elem: ElementType) -> Any:
    """Return the type of a tile, or the scalar type for rank 0."""
    return TileType(tuple(shape), elem) if shape else elem


def _with_layout_of(t: Any, given: Any) -> Any:
    both = isinstance(t, TileType) and isinstance(given, TileType)
    return t.with_layout(given.layout) if both else t


class TileOp(Op):
    """Base of the ops here: `tile_types()` returns shapes and element types; layouts are those of the result as built.

    On the GPU level results carry layouts that no rule can know; only shape and element type are checked then.
    """

    def tile_types(self) -> Sequence[Type]:
        raise NotImplementedError

    def infer(self) -> Sequence[Type]:
        types = self.tile_types()
        built: Sequence[Value] = getattr(self, "results", ())  # none while the op is being made
        return [_with_layout_of(t, built[i].type) if built else t for i, t in enumerate(types)]


def _same_elements(op: Op) -> None:
    """Require that all operands and results have one element type."""
    kinds = {elem_of(v.type) for v in (*op.operands, *op.results)}
    require(len(kinds) == 1, op, lambda: f"element types differ: {[k.short for k in kinds]}")


class ProgramIdOp(Op, opcode="program_id"):
    """Index of this program instance along grid axis 0, 1 or 2 (int32)."""

    axis: int = attr()

    def infer(self) -> Sequence[Type]:
        return (int32,)

    def verify(self) -> None:
        require(self.axis in (0, 1, 2), self, "axis is not 0, 1 or 2")


class NumProgramsOp(Op, opcode="num_programs"):
    """Extent of the grid along axis 0, 1 or 2 (int32)."""

    axis: int = attr()

    def infer(self) -> Sequence[Type]:
        return (int32,)

    def verify(self) -> None:
        require(self.axis in (0, 1, 2), self, "axis is not 0, 1 or 2")


class CtaRankOp(Op, opcode="cta_rank"):
    """Number of this CTA among the `ctas` of the cluster that runs the program (int32)."""

    ctas: int = attr()

    def infer(self) -> Sequence[Type]:
        return (int32,)


class ArangeOp(TileOp, opcode="arange"):
    """start, start+1, …, end-1 as int32. The language has lengths that are powers of two only."""

    start: int = attr()
    end: int = attr()

    def tile_types(self) -> Sequence[Type]:
        return (TileType((self.end - self.start,), int32),)

    def verify(self) -> None:
        require(self.end > self.start, self, "the range is empty")


class Rearrangement(Op):
    """Base of ops whose results hold elements of `x`, which are moved, repeated or omitted, but not changed."""

    x: Value = operand()


class SplatOp(Rearrangement, opcode="splat"):
    """A tile filled with a scalar; the result type is given."""

    def verify(self) -> None:
        require(shape_of(self.x.type) == (), self, "the operand is not a scalar")
        require(
            elem_of(self.result.type) == self.x.type, self, "the element type is not the scalar's"
        )


class BroadcastOp(Rearrangement, opcode="broadcast"):
    """Repeat along dimensions of extent 1; ranks are equal; the result type is given."""

    def verify(self) -> None:
        a, b = shape_of(self.x.type), shape_of(self.result.type)
        ok = len(a) == len(b) and all(m in (n, 1) for m, n in zip(a, b, strict=True))
        require(ok, self, lambda: f"{a} does not broadcast to {b}")
        _same_elements(self)


class ExpandDimsOp(Rearrangement, TileOp, opcode="expand_dims"):
    """Insert a dimension of extent 1 at `axis`."""

    axis: int = attr()

    def tile_types(self) -> Sequence[Type]:
        s = shape_of(self.x.type)
        return (TileType((*s[: self.axis], 1, *s[self.axis :]), elem_of(self.x.type)),)

    def verify(self) -> None:
        require(0 <= self.axis <= len(shape_of(self.x.type)), self, "axis out of range")


class ReshapeOp(Rearrangement, opcode="reshape"):
    """The same elements in row-major order in another shape (`reorder`: in any order); the result type is given."""

    reorder: bool = attr(default=False)

    def verify(self) -> None:
        n, m = (prod(shape_of(v.type)) for v in (self.x, self.result))
        require(n == m, self, "the number of elements changes")
        _same_elements(self)


class TransOp(Rearrangement, TileOp, opcode="trans"):
    """Permute dimensions: result dimension i is operand dimension `order[i]`."""

    order: tuple[int, ...] = attr()

    def tile_types(self) -> Sequence[Type]:
        s = shape_of(self.x.type)
        return (TileType(tuple(s[i] for i in self.order), elem_of(self.x.type)),)

    def verify(self) -> None:
        require(
            sorted(self.order) == list(range(len(shape_of(self.x.type)))),
            self,
            "order is no permutation",
        )


class JoinOp(TileOp, opcode="join"):
    """Stack two tiles (or scalars) along a new last dimension of extent 2."""

    lhs: Value = operand()
    rhs: Value = operand()

    def tile_types(self) -> Sequence[Type]:
        return (TileType((*shape_of(self.lhs.type), 2), elem_of(self.lhs.type)),)

    def verify(self) -> None:
        require(self.lhs.type == self.rhs.type, self, "operands differ in type")


class SplitOp(Rearrangement, TileOp, opcode="split"):
    """The two halves along a last dimension of extent 2."""

    def tile_types(self) -> Sequence[Type]:
        half = result_tile(shape_of(self.x.type)[:-1], elem_of(self.x.type))
        return (half, half)

    def verify(self) -> None:
        shape = shape_of(self.x.type)
        require(bool(shape) and shape[-1] == 2, self, "the last dimension has not extent 2")


class GatherOp(TileOp, opcode="gather"):
    """result[..i..] = x with the coordinate on `axis` replaced by index[..i..]; out of range is undefined."""

    x: Value = operand()
    index: Value = operand()
    axis: int = attr()

    def tile_types(self) -> Sequence[Type]:
        return (TileType(shape_of(self.index.type), elem_of(self.x.type)),)

    def verify(self) -> None:
        x, index = shape_of(self.x.type), shape_of(self.index.type)
        require(0 <= self.axis < len(x), self, "axis out of range")
        require(elem_of(self.index.type).is_int(), self, "the index is not an integer")
        ok = len(x) == len(index) and all(
            m == n for i, (m, n) in enumerate(zip(x, index, strict=True)) if i != self.axis
        )
        require(ok, self, lambda: f"shapes {x} and {index} differ beside axis {self.axis}")


class HistogramOp(TileOp, opcode="histogram"):
    """Count of each value 0 … bins-1 in a 1-D integer tile (int32); masked and other values do not count."""

    x: Value = operand()
    mask: Value | None = operand(optional=True)
    bins: int = attr()

    def tile_types(self) -> Sequence[Type]:
        return (TileType((self.bins,), int32),)

    def verify(self) -> None:
        ok = len(shape_of(self.x.type)) == 1 and elem_of(self.x.type).is_int()
        require(ok, self, "the operand is no 1-D integer tile")
        if self.mask is not None:
            require(self.mask.type == with_elem(self.x.type, int1), self, "bad type of the mask")


class Matmul(Op):
    """Base of ops that compute a @ b + acc, by any instruction."""

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()


class DotOp(Matmul, TileOp, opcode="dot"):
    """a[M,K] @ b[K,N] + acc[M,N] (leading batch dimension allowed), accumulated in the type of `acc`.

    `precision` says how fp32 operands are multiplied: "tf32", "tf32x3", "ieee", "bf16x3", "bf16x6". `in_place`: a GPU
    reads the operands of FMAs from the buffers that their loads fill, and writes them to none of its own.
    """

    precision: str = attr(default="ieee")
    max_imprecise: int = attr(default=0)
    in_place: bool = attr(default=False)

    def tile_types(self) -> Sequence[Type]:
        return (TileType(shape_of(self.acc.type), elem_of(self.acc.type)),)

    def verify(self) -> None:
        a, b, c = (shape_of(v.type) for v in self.operands)
        ok = (
            len(a) == len(b) == len(c) >= 2
            and a[:-2] == b[:-2] == c[:-2]
            and a[-1] == b[-2]
            and c[-2:] == (a[-2], b[-1])
        )
        require(ok, self, lambda: f"shapes {a} @ {b} + {c} do not fit")


class CombineOp(TileOp):
    """Base of reduce and scan: n tiles of one shape, and a region (a0…an-1, b0…bn-1) → yield of n scalars."""

    inputs: tuple[Value, ...] = operand(variadic=True)
    axis: int = attr()
    combine: Block = region()

    def verify(self) -> None:
        n = len(self.inputs)
        require(n > 0, self, "no input")
        require(len({shape_of(v.type) for v in self.inputs}) == 1, self, "inputs differ in shape")
        require(0 <= self.axis < len(shape_of(self.inputs[0].type)), self, "axis out of range")
        want = [elem_of(v.type) for v in self.inputs]
        require(
            [a.type for a in self.combine.args] == want * 2, self, "combine has the wrong arguments"
        )
        require(
            [v.type for v in self.combine.terminator.operands] == want,
            self,
            "combine yields wrong types",
        )


class ReduceOp(CombineOp, opcode="reduce"):
    """Combine all elements along `axis`, in any order, by an associative and commutative region; drops the axis."""

    def tile_types(self) -> Sequence[Type]:
        s = shape_of(self.inputs[0].type)
        rest = (*s[: self.axis], *s[self.axis + 1 :])
        return [result_tile(rest, elem_of(v.type)) for v in self.inputs]


class ScanOp(CombineOp, opcode="scan"):
    """Inclusive prefix combination along `axis`, from the end if `reverse`, by an associative region."""

    reverse: bool = attr(default=False)

    def tile_types(self) -> Sequence[Type]:
        s = shape_of(self.inputs[0].type)
        return [TileType(s, elem_of(v.type)) for v in self.inputs]
