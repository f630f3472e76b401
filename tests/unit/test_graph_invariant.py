"""Reductions, scans and scatters of values that do not depend on all of their indices: each element counts, however
the nest is cut into tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.index import dim
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import TensorType
from tests.unit.graph_kit import check, fp32, module_of

Element = Callable[[Any, Any], Any]
ROWS, COLUMNS = 5, 37  # no multiples of tiles
RNG = np.random.default_rng(0)


def element(g: GraphBuilder, kind: str, rows: int, columns: int) -> tuple[Element, list[Any]]:
    """A scalar for each row and column, and the arguments that it needs."""
    if kind == "constant":
        return lambda i, j: g.const(2.0, float32), []
    if kind == "index":
        return lambda i, j: g.cast(g.index(dim(0) // 3, j), float32), []
    if kind == "row":
        y = g.input("y", fp32(rows))
        return lambda i, j: g.load(y, i), [whole(rows)]
    y = g.input("y", fp32(columns))
    return lambda i, j: g.load(y, j), [whole(columns)]


def whole(*shape: int) -> Any:
    """Numbers whose sums are exact in any order."""
    return RNG.integers(-3, 4, shape).astype(np.float32)


def sums(g: GraphBuilder, x: Element, n: int, m: int) -> Any:
    return g.loop([n], lambda i: g.reduce("sum", [m], lambda j: x(i, j)))


def sums_of_columns(g: GraphBuilder, x: Element, n: int, m: int) -> Any:
    return g.loop([m], lambda j: g.reduce("sum", [n], lambda i: x(i, j)))


def moments(g: GraphBuilder, x: Element, n: int, m: int) -> Any:
    return g.loops([n], lambda i: g.welford([m], lambda j: x(i, j)))


def places(g: GraphBuilder, x: Element, n: int, m: int) -> Any:
    return g.loops([n], lambda i: g.arg_reduce("max", m, lambda j: x(i, j)))


def scans(g: GraphBuilder, x: Element, n: int, m: int) -> Any:
    return g.loop([n], lambda i: g.scan("sum", m, lambda j: x(i, j), reverse=True))


def sums_of_scans(g: GraphBuilder, x: Element, n: int, m: int) -> Any:
    def row(i: Any) -> Any:
        running = g.scan("sum", m, lambda j: x(i, j))
        return g.reduce("max", [m], lambda j: g.load(running, j))

    return g.loop([n], row)


def rows_less_sums(g: GraphBuilder, x: Element, n: int, m: int) -> Any:
    def row(i: Any) -> Any:
        total = g.reduce("sum", [m], lambda j: x(i, j))
        return g.loop([m], lambda j: g.sub(x(i, j), total))

    return g.loop([n], row)


NESTS = [sums, sums_of_columns, moments, places, scans, sums_of_scans, rows_less_sums]
KINDS = ["constant", "index", "row", "column"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nest", NESTS, ids=lambda f: f.__name__)
def test_each_element_is_combined_once(nest: Any, kind: str):
    inputs: list[Any] = []

    def build(g: GraphBuilder) -> Any:
        x, inputs[:] = element(g, kind, ROWS, COLUMNS)
        return nest(g, x, ROWS, COLUMNS)

    compare(build, inputs)


@pytest.mark.parametrize("kind", ["constant", "column"])
def test_scans_in_steps_are_read_by_reductions(kind: str):
    """Across memory, a step is a tile of two dimensions, along one of which these values do not vary."""
    inputs: list[Any] = []

    def build(g: GraphBuilder) -> Any:
        x, inputs[:] = element(g, kind, 129, 1025)
        return sums_of_scans(g, x, 129, 1025)

    compare(build, inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["constant", "row", "column"])
@pytest.mark.parametrize("mode", ["add", "mul"])
def test_each_element_is_scattered(mode: str, place: str, kind: str):
    inputs: list[Any] = []

    def build(g: GraphBuilder) -> Any:
        base = g.input("base", fp32(9, 3))
        x, rest = element(g, kind, ROWS, COLUMNS)
        inputs[:] = [whole(9, 3), *rest]

        def body(i: Any, j: Any) -> list[Any]:
            at = {"constant": [4], "row": [dim(0) % 9, i], "column": [dim(0) % 9, j]}[place]
            value = x(i, j)
            if mode == "mul":  # an odd number of factors of -1 changes the sign
                negative = g.compare("ge", value, g.const(0.0, float32))
                value = g.select(negative, g.const(-1.0, float32), g.const(1.0, float32))
            return [g.index(*at), g.index(1), value]

        return g.scatter(base, [ROWS, COLUMNS], body, mode)

    compare(build, inputs)


def test_reductions_over_nothing():
    """Identities: of an extent of 0 behind others, too."""

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", TensorType((5, 0), float32))
        total = g.loop([], lambda: g.reduce("sum", [5, 0], lambda i, j: g.load(x, i, j)))
        return total, g.loop([3], lambda k: g.reduce("prod", [5, 0], lambda i, j: g.load(x, i, j)))

    compare(build, [whole(5, 0)])


def compare(build: Any, inputs: list[Any]) -> None:
    """`inputs` are there once the graph is built."""
    check(module_of(build), inputs)
