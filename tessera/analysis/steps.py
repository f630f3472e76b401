"""Tells how many sectors of memory the lanes of a warp would access along each dimension of a tile of pointers.

Axis facts hold for all elements, and say only that there is no run where some do not continue it.
A convolution's `(x // width) * height_stride + x % width` is no run, as rows end at unknown places, but most neighbours
are 1 apart; along its channels they are `channel_stride` apart, of which a multiple may be known. This is for choices
of speed alone: it says where a tile's first elements lie in the first program, if unknown numbers are what is likely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tessera.analysis.axis import AxisAnalysis
from tessera.ir import Op, Value, elem_of, shape_of
from tessera.ops import FuncOp, arith, tile

SEVERAL = 2  # an unknown factor counts as the least one that changes anything
LARGE = 1 << 40  # an unknown divisor: most neighbours have the same quotient
LANES, SECTOR = 32, 32  # of a warp; bytes that memory moves at once

T = TypeVar("T")
Array = NDArray[np.float64]
Places = tuple[Array | None, ...]  # for each dimension, None where it is not known


class NeighbourPlaces:
    """For each dimension the numbers of a warp's lanes along it. What is unknown and shared is 0 in sums."""

    def __init__(self, func: FuncOp, axis: AxisAnalysis) -> None:
        self.func, self.axis = func, axis

    @cached_property
    def table(self) -> dict[Value, Places]:
        found = self.__dict__["table"] = dict[Value, Places]()
        for op in self.func.walk():
            if op.results and shape_of(op.results[0].type):
                found[op.results[0]] = self._shared(op.results[0], self._places(op))
        return found

    def of(self, v: Value) -> Places:
        return self.table.get(v) or self._shared(v, (None,) * len(shape_of(v.type)))

    def costs(self, pointers: Value) -> list[tuple[int, float]] | None:
        """Return how many sectors lanes along each dimension access, and how many elements are between them; None where
        this is not known of all, or lanes access the same."""
        size, places = elem_of(pointers.type).element_ty.storage_bytes, self.of(pointers)
        known = [at - at.min() for at in places if at is not None and np.ptp(at)]
        costs = [(len({*(at * size // SECTOR)}), float(at.max())) for at in known]
        return costs if len(costs) == len(places) else None

    def _shared(self, v: Value, places: Places) -> Places:
        facts = self.axis.facts(v)
        rows = zip(places, facts.constancy, shape_of(v.type), strict=True)
        number = float(facts.value or 0)
        return tuple(_row(number, n) if at is None and run >= n else at for at, run, n in rows)

    def _factors(self, v: Value) -> list[float | None]:
        """Return what the numbers along each dimension are when they multiply others; None where they differ."""
        facts, value = self.axis.facts(v), self.axis.facts(v).value
        rows = zip(self.of(v), facts.divisibility, strict=True)
        least = [(at, max(SEVERAL, n) if value is None else value) for at, n in rows]
        return [None if at is None or np.ptp(at) else n for at, n in least]

    def _places(self, op: Op) -> Places:
        match op:
            case tile.ArangeOp():
                return (np.arange(op.start, min(op.end, op.start + LANES), dtype=float),)
            case arith.AddOp() | arith.SubOp() | arith.AddPtrOp():
                sign = -1 if isinstance(op, arith.SubOp) else 1
                return _each(lambda a, b: a + sign * b, *map(self.of, op.operands))
            case arith.MulOp():
                first = _each(np.multiply, self.of(op.lhs), self._factors(op.rhs))
                second = _each(np.multiply, self.of(op.rhs), self._factors(op.lhs))
                return tuple(b if a is None else a for a, b in zip(first, second, strict=True))
            case arith.DivOp() | arith.RemOp():
                by, remains = self.axis.facts(op.rhs).value or LARGE, isinstance(op, arith.RemOp)
                cut = np.remainder if remains else np.floor_divide
                return _each(lambda a, _: cut(a, by), self.of(op.lhs), self._factors(op.rhs))
            case tile.BroadcastOp():
                return _each(_row, self.of(op.x), shape_of(op.result.type))
            case arith.CastOp() | arith.HintOp():
                return self.of(op.x)
            case tile.ExpandDimsOp():
                at = self.of(op.x)
                return (*at[: op.axis], *_each(lambda a, _: a[:1], at[:1], (1,)), *at[op.axis :])
            case _:
                return (None,) * len(shape_of(op.results[0].type))


def _row(numbers: Array | float, size: int) -> Array:
    return np.resize(numbers, min(size, LANES))


def _each(
    function: Callable[[Array, T], Array], first: Places, second: Iterable[T | None]
) -> Places:
    """Apply a function to what is known of both sides along each dimension."""
    pairs = zip(first, second, strict=True)
    return tuple(None if a is None or b is None else function(a, b) for a, b in pairs)
