"""Moments of rows that a program holds are two sums, and as exact as Welford's."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.calls.executable import machine_of
from tessera.graph.emit.tiling import Machine
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.combine import is_welford, region_of, simple, welford
from tessera.graph.ir.ops import ReduceOp
from tessera.graph.passes import optimize
from tessera.graph.planning.planner import Planner
from tessera.ir import Value
from tessera.ir.applications import Session
from tests.unit.graph_kit import HOPPER, check, compiled, fp32, module_of

RNG = np.random.default_rng(0)


def norm(g: GraphBuilder, *shape: int) -> Any:
    """(x - mean) / sqrt(var + eps) over the last dimension."""
    x = g.input("x", fp32(*shape))
    n = shape[-1]

    def row(*i: Value) -> Any:
        mean, m2, count = g.welford([n], lambda r: g.load(x, *i, r))
        root = g.unary("sqrt", g.add(g.div(m2, count), g.const(1e-5, float32)))
        return g.loop([n], lambda r: g.div(g.sub(g.load(x, *i, r), mean), root))

    return g.loop(shape[:-1], row)


def welfords(build: Any, machine: Machine) -> int:
    """How many reductions of a planned graph are still Welford's."""
    module = optimize(module_of(build))
    Planner(module.functions[0], machine)  # type: ignore[arg-type]
    ops = [x for op in module.functions[0].regions[0] for x in op.walk()]
    return sum(isinstance(x, ReduceOp) and is_welford(x.combine) for x in ops)


@pytest.mark.parametrize("n", [1, 7, 768, 5000])
def test_norms_of_rows(n: int):
    x = (RNG.standard_normal((5, n)) * 3 + 100).astype(np.float32)
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    with Session("graph") as session:
        check(lambda g: norm(g, 5, n), [x], [wanted], rtol=2e-3, atol=2e-4)
    assert sum(a.name == "graph-sum-moments" for a in session.applied) == 1


def test_rows_that_are_read_in_steps_keep_welfords_way(monkeypatch: pytest.MonkeyPatch):
    hopper = machine_of(HOPPER)
    assert welfords(lambda g: norm(g, 4, 768), hopper) == 0
    assert welfords(lambda g: norm(g, 4, 100000), hopper) == 1
    monkeypatch.setenv("TESSERA_DISABLE", "graph-sum-moments")
    assert welfords(lambda g: norm(g, 4, 768), hopper) == 1


def test_weights_and_other_functions_are_left_alone():
    def weighted(g: GraphBuilder) -> Any:
        x, w = g.input("x", fp32(4, 64)), g.input("w", fp32(64))

        def row(i: Value) -> Any:
            def body(r: Value) -> Any:
                return [g.load(x, i, r), g.const(0.0, float32), g.load(w, r)]

            return g.reduces([64], body, welford, (0.0, 0.0, 0.0))

        return g.loops([4], row)

    assert welfords(weighted, machine_of(HOPPER)) == 1
    assert not is_welford(region_of([float32], simple("sum", float32)[0]))


def random_moments(seed: int) -> None:
    """Moments over random dimensions of what a chain of operations makes, whole, in parts and in steps."""
    r = Random(seed)
    shape = [r.choice([1, 2, 3, 8, 13]) for _ in range(r.choice([1, 2, 3]))]
    gone = sorted(r.sample(range(len(shape)), r.randrange(1, len(shape) + 1)))
    kept = [k for k in range(len(shape)) if k not in gone]
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(*shape))

        def stat(*i: Value) -> Any:
            def element(*j: Value) -> Value:
                at = {**dict(zip(kept, i, strict=True)), **dict(zip(gone, j, strict=True))}
                v = g.load(x, *(at[k] for k in range(len(shape))))
                return g.mul(v, v) if seed % 2 else v

            return g.welford([shape[k] for k in gone], element)

        stats = g.loops([shape[k] for k in kept], stat)
        out = g.loop(
            shape, lambda *i: g.sub(g.load(x, *i), g.load(stats[0], *(i[k] for k in kept)))
        )
        return [*stats, out]

    machine = replace(
        machine_of(HOPPER), tile=8, row=r.choice([4, 16, 64]), step=4, part=2, lanes=r.choice([1, 8]),
        columns=r.choice([8, 64]), walk=r.choice([1, 8]), exact=r.random() < 0.3,
    )  # fmt: skip
    module = module_of(build)
    wide = data.astype(np.float64) ** (1 + seed % 2)
    axes = tuple(gone)
    count = np.prod([shape[k] for k in gone])
    wanted = [wide.mean(axes), wide.var(axes) * count, np.full(wide.mean(axes).shape, count)]
    found = compiled(optimize(module), machine)([data])
    for got, want in zip(found, wanted, strict=False):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    left = data - wide.mean(axes, keepdims=True)
    np.testing.assert_allclose(found[3], left, rtol=1e-4, atol=1e-5)


def test_random_moments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_STRICT", "1")
    with Session("graph") as session:
        for seed in range(20):
            random_moments(seed)
    assert sum(a.name == "graph-sum-moments" for a in session.applied) > 5
