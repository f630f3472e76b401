"""Ends loops where a mask leaves out all elements that follow: rows of 3000 elements in tiles of 4096.

A store writes nothing there. A reduction reads the same value at each of these elements: what a load gives where it
reads no memory, and what is computed from that. Once another of them changes no accumulator, no later one will, since
it would combine the same operands. So a loop compares its accumulators with those before an iteration and stops when
they are equal, whatever is combined: sums, maxima, products or a function of the user's. A scan ends so, too, when
what it carries from vector to vector stays equal, and fills the rest of its results with its last ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.backends.cpu.bounds import Prefix, last_end, prefix_masks
from tessera.backends.cpu.llvm_text import lane_type, scalar_type
from tessera.backends.cpu.lowering import Buffer, Lowering
from tessera.backends.cpu.values import Coord, Point, Val, point
from tessera.dtypes import dtype
from tessera.ir import Effect, TileType, Value, shape_of
from tessera.ir.applications import apply
from tessera.ops import CombineOp, arith, memory, tile

_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}


def alike_beyond(lo: Lowering, v: Value, dim: int, masks: dict[Value, Prefix]) -> bool:
    """Whether `v` is the same at all indices along `dim` that none of `masks` reaches. Masks on which this depends are
    added to them."""
    t, op = v.type, v.op
    if (
        not isinstance(t, TileType)
        or t.shape[dim] == 1
        or isinstance(op, (arith.ConstOp, tile.SplatOp))
    ):
        return True
    if isinstance(op, tile.ExpandDimsOp):
        return dim != op.axis and alike_beyond(lo, op.x, dim - (dim > op.axis), masks)
    if isinstance(op, tile.BroadcastOp):
        return alike_beyond(lo, op.x, dim, masks)
    if isinstance(op, memory.LoadOp):
        left_out = op.mask is not None and _add(lo, op.mask, dim, masks)
        return left_out and (op.other is None or alike_beyond(lo, op.other, dim, masks))
    if isinstance(op, arith.SelectOp) and _add(lo, op.condition, dim, masks):
        return alike_beyond(lo, op.on_false, dim, masks)
    return isinstance(op, arith.Elementwise) and all(
        alike_beyond(lo, x, dim, masks) for x in op.operands
    )


def _add(lo: Lowering, mask: Value, dim: int, masks: dict[Value, Prefix]) -> bool:
    """Add one part of a mask that is false beyond some index; return whether there is one."""
    parts = prefix_masks(lo, mask, dim)
    if parts and not any(p.mask in masks for p in parts):
        masks[parts[0].mask] = parts[0]
    return bool(parts)


class Settling:
    """Whether a reduction or scan has settled: the loop over its axis is beyond all `masks`, and accumulators stay as
    they are."""

    def __init__(
        self,
        lo: Lowering,
        op: CombineOp,
        coords: Sequence[Coord],
        masks: Iterable[Prefix],
        step: int,
    ):
        self.lo, self.op, self.coords, self.step = lo, op, list(coords), step
        self.last = last_end(lo, coords, masks, op.axis, self._length)
        self.reached = lo.em.alloca("i64", align=8)
        lo.em.stmt(f"store i64 {self._length}, ptr {self.reached}, align 8")

    @property
    def _length(self) -> int:
        return shape_of(self.op.inputs[0].type)[self.op.axis]

    def check(self, i: str, before: list[Val], after: list[Val]) -> None:
        """End the loop after the iteration at `i` if it is beyond the masks and has changed nothing."""
        em = self.lo.em
        em.stmt(f"store i64 {i}, ptr {self.reached}, align 8")
        settled = em.op(f"icmp sge i64 {i}, {self.last}")
        for a, b in zip(before, after, strict=True):
            settled = em.op(f"and i1 {settled}, {_equal(self.lo, a, b)}")
        em.stop(settled)

    def fill(self, buffers: Iterable[Buffer], lanes: int) -> None:
        """Write what the loop would have written into the buffers of memoised values behind its end. `lanes`: of a
        vector along the axis."""
        lo, em, axis = self.lo, self.lo.em, self.op.axis
        kept = list(buffers)
        if not kept:
            return
        reached = em.here(f"load i64, ptr {self.reached}, align 8")
        first = em.op(f"add nsw i64 {reached}, {self.step}")

        def at(text: str, multiple: int) -> Point:
            c = lo.index(text, multiple, self._length)
            wide = Coord(c.base, c.terms, tuple(range(lanes)) if lanes > 1 else None, self._length)
            coords = (*self.coords[:axis], wide, *self.coords[axis + 1 :])
            return point(coords, max(len(x.pattern or (0,)) for x in coords))

        with em.counted(first, str(self._length), str(lanes), always=False) as i:
            lo.memo = {}
            for buffer in kept:
                buffer.version = lo.new_version()
                lo.to_buffer(buffer, at(i, lanes), lo.from_buffer(buffer, at(reached, self.step)))
        lo.memo = {}


def settling(lo: Lowering, op: CombineOp, coords: Sequence[Coord], step: int) -> Settling | None:
    """Return how the loop over a reduction's axis, `step` elements a trip, may end early; None if it must not.
    `coords`: where the other dimensions are."""
    masks: dict[Value, Prefix] = {}
    types = [v.type for v in op.inputs]
    plain = all(isinstance(t.elem, dtype) for t in types if isinstance(t, TileType))
    values = [*op.inputs, *(v for v in lo.memo_buffers)]
    same_shape = all(shape_of(v.type) == shape_of(types[0]) for v in values)
    if not plain or not same_shape or op.all_effects() is not Effect.NONE:
        return None
    if not all(alike_beyond(lo, v, op.axis, masks) for v in values) or not masks:
        return None
    if any(coords[d].pattern is not None for p in masks.values() for d in p.others(op.axis)):
        return None  # another end for each lane
    return Settling(lo, op, coords, masks.values(), step) if apply("mask-ends", op) else None


def _equal(lo: Lowering, a: Val, b: Val) -> str:
    """Return an i1: whether all lanes have the same bits."""
    x, n = lo.lanes(a.lanes), a.lanes
    ty, bits = lane_type(a.type, n), f"i{_BITS.get(scalar_type(a.type)) or scalar_type(a.type)[1:]}"
    whole = f"<{n} x {bits}>" if n > 1 else bits
    texts = [lo.text(v, n) for v in (a, b)]
    if ty != whole:
        texts = [lo.em.op(f"bitcast {ty} {text} to {whole}") for text in texts]
    same = x.cmp("icmp eq", bits, *texts)
    return (
        same if n == 1 else lo.em.call("i1", f"llvm.vector.reduce.and.v{n}i1", f"<{n} x i1> {same}")
    )
