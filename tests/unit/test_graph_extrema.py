"""Extrema and their places: windows that each element walks through, in order, and places that nobody reads."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32, int32, int64
from tessera.graph.calls.executable import machine_of
from tessera.graph.index import IndexMap, dim
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.combine import arg_extremum, extremum_of, region_of, simple
from tessera.graph.ir.ops import ReduceOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.graph.planning.planner import Planner
from tessera.ir.applications import Session
from tests.unit.graph_kit import HOPPER, check, module_of

KINDS = ("max", "min")
MAP = IndexMap(
    3, [dim(0), dim(1) * 3 + dim(2)]
)  # windows of nine elements, each three behind the one before


def windows(kind: str, last_nan: bool, place: bool, elem: Any = float32) -> Any:
    """The largest or smallest element of each window of rows of 36, and perhaps its place."""

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", TensorType((2, 36), elem))

        def window(n: Any, i: Any) -> Any:
            load = lambda r: g.load_at(x, MAP, [n, i, r])
            return g.arg_reduce(kind, 9, load, last_nan)

        found = g.loops([2, 10], window)
        return found if place else found[0]

    return build


def ops_of(build: Any) -> Counter[str]:
    """The ops of a graph's one kernel for a GPU."""
    module = module_of(build)
    optimize(module)
    plan = Planner(module.functions[0], machine_of(HOPPER)).run()  # type: ignore[arg-type]
    (step,) = plan.steps
    text: str = step.code.text  # type: ignore[union-attr]
    return Counter(re.findall(r" = (\w+)", text))


def special() -> np.ndarray[Any, Any]:
    """Equal elements, infinite ones, and windows with one, several and nothing but NaN."""
    x = np.random.default_rng(3).integers(-2, 3, (2, 36)).astype(np.float32)
    x[0, 13] = x[0, 20] = x[0, 23] = x[1, 25:] = np.nan
    x[1, :9], x[1, 12:21] = -np.inf, np.inf
    return x


def wanted(x: np.ndarray[Any, Any], kind: str, last_nan: bool) -> list[np.ndarray[Any, Any]]:
    rows = np.stack([x[:, 3 * i : 3 * i + 9] for i in range(10)], 1)
    nan, best = np.isnan(rows), getattr(rows, kind)(2)
    at = getattr(rows, f"arg{kind}")(2)
    if last_nan:
        at = np.where(nan.any(2), 8 - nan[:, :, ::-1].argmax(2), at)
    return [best, at]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last_nan", [False, True])
@pytest.mark.parametrize("off", ["", "graph-order-extrema"])
def test_extrema_of_windows(monkeypatch: pytest.MonkeyPatch, kind: str, last_nan: bool, off: str):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    x = special()
    check(windows(kind, last_nan, True), [x], wanted(x, kind, last_nan))
    check(windows(kind, last_nan, False), [x], wanted(x, kind, last_nan)[:1])
    whole = np.random.default_rng(5).integers(-3, 3, x.shape).astype(np.int32)
    check(windows(kind, last_nan, True, int32), [whole], wanted(whole, kind, False))


@pytest.mark.parametrize("kind", KINDS)
def test_a_region_is_known_by_what_it_computes(kind: str):
    elem = float32
    for last_nan in (False, True):
        region = region_of([elem, int64], arg_extremum(kind, last_nan))
        assert extremum_of(region) == (kind, last_nan)
    assert extremum_of(region_of([elem], simple(kind, elem)[0])) is None
    other = lambda b, x, y: [*arg_extremum(kind)(b, x, y)[:1], x[1]]
    assert extremum_of(region_of([elem, int64], other)) is None


def test_a_place_that_nobody_reads_is_not_computed():
    module = module_of(windows("max", True, False))
    optimize(module)
    (reduce,) = (op for op in module.walk() if isinstance(op, ReduceOp))
    assert len(reduce.results) == 1
    found = ops_of(windows("max", True, False))
    assert found["max"] == 8 and not found["isnan"]


def test_elements_that_come_in_order_are_compared_once():
    """Whether the later one is larger, or a NaN; places are numbers of 32 bits until they are stored."""
    found = ops_of(windows("max", True, True))
    assert (found["isnan"], found["reduce"]) == (8, 0)
    assert found["cmp"] <= 2 * 8
    with Session("graph", frozenset({"graph-order-extrema"})):
        assert ops_of(windows("max", True, True))["cmp"] > 2 * 8


def pooled(size: int) -> Any:
    def build(g: GraphBuilder) -> Any:
        n = 2 * size
        x = g.input("x", TensorType((8, n, n), float32))
        at = IndexMap(4, [dim(0), dim(1) * 2 + dim(3) // 2, dim(2) * 2 + dim(3) % 2])
        element = lambda *i: g.reduce("max", [4], lambda r: g.load_at(x, at, [*i, r]))
        return g.loop([8, size, size], element)

    return build


@pytest.mark.parametrize(("size", "rank"), [(24, 1), (32, 2), (7, 1), (100, 1)], ids=str)
def test_windows_are_counted_through_where_rows_are_no_powers_of_two(size: int, rank: int):
    plan = Planner(module_of(pooled(size)).functions[0], machine_of(HOPPER)).run()  # type: ignore[arg-type]
    (step,) = plan.steps
    assert len(step.code.tiling.shape) == rank  # type: ignore[union-attr]


def test_counted_through_windows_are_right():
    x = np.random.default_rng(7).normal(size=(8, 14, 14)).astype(np.float32)
    check(pooled(7), [x], [x.reshape(8, 7, 2, 7, 2).max((2, 4))])
