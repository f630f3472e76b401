"""Checks of computed indices: kernels and their meaning in NumPy fail alike, and only where an index is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import int1, int64
from tessera.errors import DeviceAssertionError
from tessera.graph.index import Expr, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import CheckedOp
from tessera.graph.ir.scalars import Scalar
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.ir import Module, Value, parse_module, print_module, verify
from tests.unit.graph_kit import built_for_hopper, check, compiled, fp32, module_of

ROWS, MESSAGE = 5, "an index is out of range"


def taken(g: GraphBuilder, x: Value, places: Value, i: Value, j: Value, less: int = 1) -> Value:
    """x[places[i] - less, j], checked."""
    at = Scalar(g.load(places, i), g.b) - less
    at = at.checked((at >= 0) & (at < ROWS), MESSAGE)
    return g.load(x, at.value, j)


def operands(g: GraphBuilder) -> tuple[Value, Value, Expr]:
    n = sym("s0")
    return g.input("x", fp32(ROWS, 3)), g.input("i", TensorType((n,), int64)), n


def gather(g: GraphBuilder) -> Value:
    x, places, n = operands(g)
    return g.loop([n, 3], lambda i, j: taken(g, x, places, i, j))


def added(g: GraphBuilder) -> Value:
    """The sum of a row of what is gathered."""
    x, places, n = operands(g)
    rows = g.loop([n, 3], lambda i, j: taken(g, x, places, i, j))
    return g.loop([3], lambda j: g.reduce("sum", [n], lambda r: g.load(rows, r, j)))


def behind(g: GraphBuilder) -> Value:
    """Two rows of zeros, and what is gathered."""
    x, places, n = operands(g)
    rows = g.loop([n, 3], lambda i, j: taken(g, x, places, i, j))

    def element(i: Value, j: Value) -> Value:
        at = Scalar(i, g.b) - 2
        return g.load(rows, at.value, j, mask=(at >= 0).value)

    return g.loop([n + 2, 3], element)


def into(g: GraphBuilder) -> Value:
    """Ones added at places."""
    x, places, n = operands(g)

    def element(i: Value, j: Value) -> list[Value]:
        at = Scalar(g.load(places, i), g.b) - 1
        at = at.checked((at >= 0) & (at < ROWS), MESSAGE)
        return [at.value, j, Scalar(g.load(x, 0, j), g.b).const(1.0).value]

    return g.scatter(x, [n, 3], element, "add")


BUILT = (gather, added, behind, into)
X = np.arange(15, dtype=np.float32).reshape(ROWS, 3)


def given(places: Any) -> list[Any]:
    return [X.copy(), np.asarray(places, np.int64)]


@pytest.mark.parametrize("build", BUILT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("count", [1, 5, 130, 5000])
def test_places_in_range(build: Any, count: int):
    check(build, given(np.arange(count) % ROWS + 1))


@pytest.mark.parametrize("build", BUILT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("bad", [0, ROWS + 1, 1 << 40, -(1 << 40)])
def test_a_place_out_of_range_is_an_error(build: Any, bad: int):
    places = np.ones(300, np.int64)
    places[299] = bad
    module = module_of(build)
    with pytest.raises(DeviceAssertionError, match=MESSAGE):
        interpret(module, given(places))
    for optimized in (False, True):
        if optimized:
            optimize(module)
        run = compiled(module)
        with pytest.raises(DeviceAssertionError, match=MESSAGE):
            run(given(places))
        run(given(np.ones(300, np.int64)))  # a call that failed leaves nothing behind


def test_nothing_is_checked_where_a_mask_is_false():
    def build(g: GraphBuilder) -> Value:
        x, places, n = operands(g)
        used = g.input("used", TensorType((n,), int1))

        def element(i: Value) -> Value:
            at = Scalar(g.load(places, i), g.b)
            mask = g.load(used, i)
            op = CheckedOp(at.value, (at < ROWS).value, mask, message=MESSAGE)
            return g.load(x, g.emit(op), 0, mask=mask)

        return g.loop([n], element)

    used = np.arange(7) != 3
    check(build, [*given([0, 1, 2, 99, 4, 0, 1]), used])


def test_a_check_that_always_holds_is_gone():
    def build(g: GraphBuilder) -> Value:
        x = g.input("x", fp32(ROWS, 3))

        def element(i: Value, j: Value) -> Value:
            at = Scalar(i, g.b)
            return g.load(x, at.checked((at >= 0) & (at < ROWS), MESSAGE).value, j)

        return g.loop([ROWS, 3], element)

    module = module_of(build)
    assert "graph.checked" in print_module(module)
    optimize(module)
    assert "graph.checked" not in print_module(module)


def test_text_and_kernels_of_a_gpu():
    module: Module = module_of(gather)
    again = parse_module(print_module(module))
    verify(again)
    assert print_module(again) == print_module(module)
    optimize(again)
    built_for_hopper(again)
