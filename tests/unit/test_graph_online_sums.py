"""The largest element of a long row and the sum of its softmax come from one walk through it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tessera.graph.calls.executable import machine_of
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import ReduceOp
from tessera.graph.passes import optimize
from tessera.graph.planning.planner import Planner
from tessera.ir import Value
from tests.unit.graph_kit import HOPPER, built_for_hopper, check, compiled, fp32, module_of

RNG = np.random.default_rng(0)
STEPS = replace(machine_of(HOPPER), row=64, step=32, part=128)  # rows are read in steps early


def softmax(g: GraphBuilder, *shape: int, other: bool = False) -> Any:
    """Softmax and what its sums come to, over the last dimension; `other`: the sum is that of another row."""
    x, n = g.input("x", fp32(*shape)), shape[-1]

    def scaled(*i: Value) -> Value:
        return g.mul(g.load(x, *i), g.const(1.5, x.type.elem))

    def row(*i: Value) -> Any:
        most = g.reduce("max", [n], lambda r: scaled(*i, r))

        def power(r: Value) -> Value:
            at = g.load(x, *i, r) if other else scaled(*i, r)
            return g.exp(g.sub(at, most))

        total = g.reduce("sum", [n], power)
        return g.loop([n], lambda r: g.div(power(r), total)), most, total

    return g.loops(shape[:-1], row)


def reductions(build: Any, machine: Any = STEPS) -> int:
    module = optimize(module_of(build))
    Planner(module.functions[0], machine)  # type: ignore[arg-type]
    return sum(isinstance(x, ReduceOp) for op in module.functions[0].regions[0] for x in op.walk())


def test_one_walk_where_rows_are_read_in_steps(monkeypatch: pytest.MonkeyPatch):
    build = lambda g: softmax(g, 600, 1000)
    assert reductions(build) == 1
    assert reductions(build, machine_of(HOPPER)) == 2  # a program holds the row
    assert reductions(lambda g: softmax(g, 600, 1000, other=True)) == 2
    monkeypatch.setenv("TESSERA_DISABLE", "graph-online-softmax")
    assert reductions(build) == 2


def test_not_where_an_exponential_costs_more_than_a_load():
    build = lambda g: softmax(g, 6, 100000)
    assert reductions(build, replace(STEPS, exact=True)) == 2


@pytest.mark.parametrize("shape", [(600, 100), (7, 129), (3, 1000), (2, 2, 4097), (200, 65)])
def test_softmax_of_long_rows(shape: tuple[int, ...]):
    x = (RNG.standard_normal(shape) * 5).astype(np.float32)
    wide = x.astype(np.float64) * 1.5
    most = wide.max(-1)
    powers = np.exp(wide - most[..., None])
    wanted = [powers / powers.sum(-1, keepdims=True), most, powers.sum(-1)]
    module = optimize(module_of(lambda g: softmax(g, *shape)))
    for found, want in zip(compiled(module, STEPS)([x]), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "row",
    [
        [np.inf, 1.0],
        [-np.inf, 1.0],
        [-np.inf, -np.inf],
        [np.nan, 1.0],
        [np.nan, np.inf],
        [np.inf, -np.inf],
        [60.0, -60.0],
        [-1000.0, -1100.0],
    ],
)
def test_infinities_and_nan(row: list[float]):
    """What x - max makes of them is in the sum, too."""
    x = np.full((40, 130), row[1], np.float32)
    x[np.arange(40), RNG.integers(0, 130, 40)] = row[0]
    module = optimize(module_of(lambda g: softmax(g, 40, 130)))
    exact = compiled(module)([x.copy()])
    for found, want in zip(compiled(module, STEPS)([x]), exact, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5)


def test_on_real_tilings():
    x = RNG.standard_normal((3, 20000)).astype(np.float32)
    check(lambda g: softmax(g, 3, 20000), [x], rtol=1e-4, atol=1e-7)


def test_compiles_for_a_gpu():
    kernels = built_for_hopper(optimize(module_of(lambda g: softmax(g, 600, 20000))))
    assert len(kernels.compiled) == 1
