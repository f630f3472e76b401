"""Says which expression of loop indices and sizes an integer is, in which range it lies, and what an op captures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tessera.dtypes import int64
from tessera.graph.index import (
    Dim,
    Expr,
    IndexMap,
    Ranges,
    Sym,
    dim,
    expr,
    is_less,
    is_nonnegative,
    maximum,
    minimum,
    simplify,
)
from tessera.graph.ir.ops import CombiningOp, IndexOp, LoopOp, ScatterOp, SortOp
from tessera.graph.ir.types import TensorType
from tessera.ir import Block, Module, Op, Value
from tessera.ops import AddOp, ConstOp, MaxOp, MinOp, MulOp, NegOp, SubOp

SymbolRanges = Mapping[str, tuple[int, int | None]]
NESTS = (LoopOp, CombiningOp, SortOp, ScatterOp)  # their body has an index for each extent


def captured(op: Op) -> list[Value]:
    """The values from outside that an op and its regions use, each once."""
    inside = set[Block | None]()
    found: dict[Value, None] = {}
    for x in op.walk():  # outer ops first
        for v in x.operands:
            if v.block not in inside:
                found[v] = None
        inside.update(x.regions)
    return list(found)


def captured_tensors(op: Op) -> list[Value]:
    """The tensors among the values that an op captures."""
    return [v for v in captured(op) if isinstance(v.type, TensorType)]


def is_inside(v: Value, op: Op) -> bool:
    """Whether a value is made inside of an op: by an op or as an argument of a block."""
    around = v.block.parent if v.block is not None else None
    return around is op or (around is not None and around.is_inside(op))


def symbol_ranges(module: Module) -> dict[str, tuple[int, int | None]]:
    """The ranges of symbols that a module states."""
    return {name: (low, high) for name, low, high in module.attrs.get("ranges", ())}


def extent_of(v: Value) -> int | Expr | None:
    """The extent that an index counts to; None for a value that is no loop's index."""
    owner = v.owner
    if not isinstance(owner, Block) or not isinstance(owner.parent, NESTS):
        return None
    nest = owner.parent
    return nest.extents[v.index] if owner is nest.regions[0] else None


def is_index(v: Value) -> bool:
    return extent_of(v) is not None


@lru_cache(maxsize=1024)
def shared_ranges(
    extents: tuple[int | Expr | None, ...],
    symbols: tuple[tuple[str, tuple[int, int | None]], ...],
) -> Ranges:
    """Ranges of dimensions below extents, where None is one about which nothing is known. They are shared, and with
    them what was proved: the loops of a graph are mostly over the same extents."""
    found: dict[Any, Any] = {Sym(name): r for name, r in symbols}
    for k, extent in enumerate(extents):
        found[Dim(k)] = (None, None) if extent is None else (0, extent - 1)
    return Ranges(found)


class Leaves:
    """Values that expressions are made of: `Dim(k)` stands for `values[k]`."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.number: dict[Value, int] = {}

    def of(self, v: Value) -> Expr:
        """The dimension that stands for a value."""
        if v not in self.number:
            self.number[v] = len(self.values)
            self.values.append(v)
        return dim(self.number[v])

    def follow(self, v: Value) -> Expr:
        """An int64 value as an expression of leaves, loop indices in particular. Arithmetic on data is not followed:
        it may wrap."""
        op = v.op
        if isinstance(op, ConstOp):
            return expr(int(op.value))
        if isinstance(op, IndexOp):
            (result,) = self.through(op.map, op.indices).results
            return result
        if v.type is int64 and _is_arithmetic(op):
            assert op is not None
            if all(_is_known(x) for x in op.operands):
                return _computed(op, [self.follow(x) for x in op.operands])
        return self.of(v)

    def through(self, map: IndexMap, operands: Sequence[Value]) -> IndexMap:
        """A map of values as a map of leaves; its number of dimensions grows with the leaves."""
        followed = [self.follow(v) for v in operands]
        return map.at(followed, len(self.values))

    def ranges(self, symbols: SymbolRanges) -> Ranges:
        """The ranges of the dimensions: indices are below their extents, nothing is known about data."""
        return shared_ranges(tuple(map(extent_of, self.values)), tuple(sorted(symbols.items())))

    def units(self) -> dict[Any, int]:
        """Dimensions that are 0, because their extent is 1."""
        return {Dim(k): 0 for k, v in enumerate(self.values) if extent_of(v) == 1}


def decided(predicate: str, a: Expr, b: Expr, ranges: Ranges) -> bool | None:
    """Whether a comparison holds for all values in range (True), for none (False), or neither is known."""
    a, b = simplify(a, ranges), simplify(b, ranges)
    if predicate in ("gt", "ge"):
        a, b = b, a
    if predicate in ("eq", "ne"):
        apart = is_less(a, b, ranges) or is_less(b, a, ranges)
        return (predicate == "ne") if apart else (predicate == "eq") if a == b else None
    if predicate in ("lt", "gt"):
        return True if is_less(a, b, ranges) else False if is_nonnegative(a - b, ranges) else None
    return True if is_nonnegative(b - a, ranges) else False if is_less(b, a, ranges) else None


def _is_arithmetic(op: Op | None) -> bool:
    return isinstance(op, AddOp | SubOp | MulOp | NegOp | MinOp | MaxOp)


def _is_known(v: Value) -> bool:
    """Whether an integer is made of loop indices, sizes and numbers alone."""
    if is_index(v) or isinstance(v.op, ConstOp):
        return True
    if isinstance(v.op, IndexOp):
        return all(map(_is_known, v.op.indices))
    return v.op is not None and _is_arithmetic(v.op) and all(map(_is_known, v.op.operands))


def _computed(op: Op, args: list[Expr]) -> Expr:
    if isinstance(op, NegOp):
        return -args[0]
    a, b = args
    if isinstance(op, AddOp):
        return a + b
    if isinstance(op, SubOp):
        return a - b
    if isinstance(op, MulOp):
        return a * b
    return minimum(a, b) if isinstance(op, MinOp) else maximum(a, b)
