"""Small scatters into equal elements become loops of reductions, and give what scatters give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import bfloat16, dtype, float16, float32, float64, int32, int64
from tessera.graph.calls.executable import compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.index import sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import LoopOp, ReduceOp, ScatterOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import cost, optimize
from tessera.ir import Module, Value, verify
from tessera.ir.applications import Session
from tests.unit.graph_kit import built_for_hopper

ROWS, COLUMNS, GIVEN = 5, 6, 9
KINDS = (float32, float64, float16, bfloat16, int32, int64)


def graph(elem: dtype, mode: str, fill: float, masked: bool = False, rows: Any = ROWS) -> Module:
    """`GIVEN` rows combined into a tensor of equal elements, and twice what comes of it."""
    g = GraphBuilder("scatter")
    at = g.input("at", TensorType((GIVEN,), int64))
    x = g.input("x", TensorType((GIVEN, COLUMNS), float32))
    shape = (rows, COLUMNS)

    def body(i: Value, j: Value) -> list[Value]:
        found = [g.load(at, i), j, g.cast(g.load(x, i, j), elem)]
        return [*found, g.compare("gt", g.load(x, i, j), g.const(0.0, float32))][: 3 + masked]

    value = fill if elem.is_floating() else int(fill)
    base = g.loop(shape, lambda *i: g.const(value, elem))
    made = g.scatter(base, (GIVEN, COLUMNS), body, mode)
    g.output(g.loop(shape, lambda *i: g.cast(g.load(made, *i), float32)))
    return g.finish()


def inputs(seed: int = 0, special: Sequence[float] = ()) -> list[np.ndarray]:
    """Places, one of which nothing goes to, and small whole numbers: sums are exact in any order."""
    data = np.random.default_rng(seed)
    x = data.integers(-4, 5, (GIVEN, COLUMNS)).astype(np.float32)
    x.flat[: len(special)] = special
    return [data.integers(0, ROWS - 1, GIVEN), x]


@pytest.mark.parametrize(
    ("elem", "mode", "fill", "masked"),
    [
        *((elem, "add", 2.0 * (n % 2), n % 3 == 0) for n, elem in enumerate(KINDS)),
        *((elem, "max", 1.0 - 1e4 * (n % 2), n % 3 == 1) for n, elem in enumerate(KINDS)),
        *((elem, "min", 1e4, n % 3 == 2) for n, elem in enumerate(KINDS)),
        (float32, "mul", 1.0, True),
        (bfloat16, "mul", 2.0, False),
    ],
    ids=str,
)
def test_it_is_what_the_scatter_gives(elem: dtype, mode: str, fill: float, masked: bool):
    wanted = interpret(graph(elem, mode, fill, masked), inputs())
    module = graph(elem, mode, fill, masked)
    optimize(module, verify=True)
    verify(module)
    assert not any(isinstance(op, ScatterOp) for op in module.walk())
    (loop,) = (op for op in module.functions[0].regions[0] if isinstance(op, LoopOp))
    assert [op for op in loop.body if isinstance(op, ReduceOp)]
    np.testing.assert_array_equal(interpret(module, inputs())[0], wanted[0])
    found = compile_graph(module, NumpyHost())(inputs())
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize("mode", ["add", "max", "min"])
def test_special_values_win_as_in_a_scatter(mode: str):
    given = inputs(1, [np.nan, np.inf, -np.inf])
    wanted = interpret(graph(float32, mode, 0.0), given)
    module = optimize(graph(float32, mode, 0.0))
    np.testing.assert_array_equal(compile_graph(module, NumpyHost())(list(given))[0], wanted[0])


@pytest.mark.parametrize("elem", [float32, bfloat16], ids=str)
def test_it_is_built_for_a_gpu(elem: dtype):
    built_for_hopper(optimize(graph(elem, "max", 1.0, masked=True)))


def test_a_set_and_unknown_sizes_stay_scatters():
    for module in (graph(float32, "set", 0.0), graph(float32, "add", 0.0, rows=sym("s0"))):
        with Session("graph") as session:
            optimize(module)
        assert "graph-reduce-scatters" not in {a.name for a in session.applied}
        assert any(isinstance(op, ScatterOp) for op in module.walk())


def test_another_base_stays():
    g = GraphBuilder("into")
    at, x = g.input("at", TensorType((4,), int64)), g.input("x", TensorType((8,), float32))
    made = g.scatter(x, (4,), lambda i: [g.load(at, i), g.const(1.0, float32)], "add")
    g.output(made)
    module = optimize(g.finish())
    assert any(isinstance(op, ScatterOp) for op in module.walk())


@pytest.mark.parametrize(("count", "stays"), [(16, False), (4096, True)])
def test_only_what_takes_less_than_a_launch(
    count: int, stays: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cost, "machine_of", lambda device: cost.GPU)
    g = GraphBuilder("table")
    at = g.input("at", TensorType((count,), int64))
    x = g.input("x", TensorType((count, 64), float32))
    base = g.loop((4096, 64), lambda *i: g.const(0.0, float32))
    g.output(g.scatter(base, (count, 64), lambda i, j: [g.load(at, i), j, g.load(x, i, j)], "add"))
    module = optimize(g.finish())
    assert any(isinstance(op, ScatterOp) for op in module.walk()) is stays


@pytest.mark.parametrize(("places", "stays"), [(32, False), (4096, True)])
def test_many_additions_to_few_places_wait_for_each_other(
    places: int, stays: bool, monkeypatch: pytest.MonkeyPatch
):
    """A bias by relative position, of 256 tokens in 8 heads; not one of as many places as tokens."""
    monkeypatch.setattr(cost, "machine_of", lambda device: cost.GPU)
    g = GraphBuilder("buckets")
    at = g.input("at", TensorType((65536,), int64))
    x = g.input("x", TensorType((8, 65536), float32))
    base = g.loop((places, 8), lambda *i: g.const(0.0, float32))
    g.output(g.scatter(base, (8, 65536), lambda h, i: [g.load(at, i), h, g.load(x, h, i)], "add"))
    module = optimize(g.finish())
    assert any(isinstance(op, ScatterOp) for op in module.walk()) is stays
