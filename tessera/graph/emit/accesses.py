"""Collects how a nest reads and writes memory: what a tiling is chosen by.

An access is the offset of an element as an expression of the nest's indices: `Dim(k)` is its k-th index, those of inner
loops follow from INNER on, and what comes from memory is a symbol that nothing is known of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tessera.dtypes import int64
from tessera.graph.index import Dim, Expr, Ranges, dim, expr, simplify, sym
from tessera.graph.ir.ops import (
    CombiningOp,
    IndexOp,
    LoadOp,
    LoopOp,
    ScatterOp,
    SortOp,
    ViewOp,
    yielded,
)
from tessera.graph.ir.types import TensorType
from tessera.ir import Block, Op, Value
from tessera.ops import arith

INNER = 100  # the number of the first index that is not of the nest itself
SOME = 16  # values of an index whose mean counts
PLACES = {LoadOp, IndexOp}  # what uses an index to say where an element lies
Size = int | Expr


@dataclass(frozen=True, slots=True)
class Access:
    """One load, store or use of an index as a number (`width` 0). `offset`: in elements; `width`: bytes of one; `of`:
    the tensor."""

    offset: Expr
    width: int
    store: bool = False
    of: Value | None = None

    def stride(self, index: int) -> Expr | None:
        """Elements from one value of an index to the next; None where it is not the same everywhere."""
        return self.offset.coefficient(Dim(index))

    def pace(self, index: int) -> float:
        """Elements from one value of an index to the next; the mean of some where they differ, as in windows that
        overlap. 0 where that depends on other indices."""
        found = self.stride(index)
        if found is not None:
            return found.value or 0
        first, last = (self.offset.subs({Dim(index): n}) for n in (0, SOME))
        return ((last - first).value or 0) / SOME


def index_expr(
    v: Value, bound: Callable[[Value], Expr | None], opaque: Callable[[Value], Expr]
) -> Expr:
    """An integer scalar as an expression. `bound`: that of an index argument; `opaque`: of what is none."""
    found = bound(v)
    if found is not None:
        return found
    op = v.op
    if isinstance(op, IndexOp):
        return op.map.at([index_expr(x, bound, opaque) for x in op.indices], 0).results[0]
    if isinstance(op, arith.ConstOp):
        return expr(int(op.value))
    if isinstance(op, arith.AddOp | arith.SubOp | arith.MulOp) and v.type == int64:
        a, b = (index_expr(x, bound, opaque) for x in op.operands)
        if isinstance(op, arith.MulOp):
            return a * b
        return a + b if isinstance(op, arith.AddOp) else a - b
    return opaque(v)


def through_views(tensor: Value, coordinates: Sequence[Expr]) -> tuple[Value, list[Expr]]:
    """The tensor that has memory, and the coordinates in it, of an element of a tensor that may be a view."""
    found = list(coordinates)
    while isinstance(tensor.op, ViewOp):
        found = list(tensor.op.index_map.at(found, 0).results)
        tensor = tensor.op.x
    return tensor, found


def offset_of(t: TensorType, coordinates: Sequence[Expr]) -> Expr:
    """Where an element lies, in elements from the first one."""
    total = expr(0)
    for c, stride in zip(coordinates, t.all_strides, strict=True):
        total = total + c * stride
    return total


def place_of(op: Op, k: int, outer: Sequence[Expr], inner: Sequence[Expr]) -> list[Expr]:
    """The coordinates in result k of a loop of what its body yields at `inner` for the indices `outer`."""
    if not isinstance(op, LoopOp) or not op.is_joined(k):
        return [*outer, *inner]
    length = yielded(op.body)[k].type.shape[0]
    return [*outer[:-1], outer[-1] * length + inner[0], *inner[1:]]


class Accesses:
    """The accesses of a nest, found by a walk over its blocks. `ranges`: those of all indices."""

    def __init__(self, op: Op, extents: Sequence[Size]):
        self.found: list[Access] = []
        self.ranges = Ranges.of_extents(extents)
        self._bound: dict[Value, Expr] = {}
        self._opaque: dict[Value, Expr] = {}
        self._next = INNER
        self._blocks: set[Block] = set()
        body: Block = op.regions[0]
        for k, a in enumerate(body.args):
            self._bound[a] = dim(k)
        self._walk(body)
        self._outputs(op, body, [dim(k) for k in range(len(extents))])

    def _walk(self, block: Block) -> None:
        self._blocks.add(block)
        for op in block:
            if isinstance(op, LoadOp):
                self._load(op)
            elif isinstance(op, IndexOp) and {type(u) for u in op.result.users()} - PLACES:
                self._add(index_expr(op.result, self._bound.get, self._unknown), 0)
            elif isinstance(op, LoopOp | CombiningOp | SortOp):
                self._enter(op)

    def _enter(self, op: LoopOp | CombiningOp | SortOp) -> None:
        for a, n in zip(op.body.args, op.extents, strict=True):
            self._bound[a] = dim(self._next)
            self.ranges.of[Dim(self._next)] = (0, n - 1)
            self._next += 1
        self._walk(op.body)

    def _load(self, op: LoadOp) -> None:
        if op.tensor.block in self._blocks:  # made by a loop of the nest: in no memory
            return
        given = [index_expr(v, self._bound.get, self._unknown) for v in op.indices]
        tensor, coordinates = through_views(op.tensor, op.map.at(given, 0).results)
        offset = offset_of(tensor.type, coordinates)
        self._add(offset, tensor.type.elem.storage_bytes, of=tensor)

    def _unknown(self, v: Value) -> Expr:
        return self._opaque.setdefault(v, sym(f"%{len(self._opaque)}"))

    def _add(self, offset: Expr, width: int, store: bool = False, of: Value | None = None) -> None:
        self.found.append(Access(simplify(offset, self.ranges), width, store, of))

    def _outputs(self, op: Op, body: Block, outer: Sequence[Expr]) -> None:
        values = body.terminator.operands
        if isinstance(op, ScatterOp):
            n = op.base.type.rank
            at = [index_expr(v, self._bound.get, self._unknown) for v in values[:n]]
            self._add(offset_of(op.base.type, at), op.base.type.elem.storage_bytes, True)
            return
        for k, (v, result) in enumerate(zip(values, op.results, strict=True)):
            t: TensorType = result.type
            shape = v.type.shape if isinstance(v.type, TensorType) else ()
            inner = [self._index_of(n) for n in shape]
            at = place_of(op, k, outer, inner)
            self._add(offset_of(t, at), t.elem.storage_bytes, True, result)

    def _index_of(self, extent: Size) -> Expr:
        self.ranges.of[Dim(self._next)] = (0, extent - 1)
        self._next += 1
        return dim(self._next - 1)


def inner_ops(block: Block) -> Iterator[LoopOp | CombiningOp | SortOp]:
    """The loops and reductions that stand directly in a block."""
    for op in block:
        if isinstance(op, LoopOp | CombiningOp | SortOp):
            yield op
