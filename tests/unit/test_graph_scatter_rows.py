"""Scatters of one element of each row become loops; others stay, each with a base of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32, int64
from tessera.graph.index import dim
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import LoopOp, ScatterOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.ir import Module, Value
from tessera.ir.applications import Session

rng = np.random.default_rng(11)
ROWS, COLUMNS = 6, 10


def top(module: Module, kind: type) -> list[Any]:
    return [op for op in module.functions[0].regions[0] if isinstance(op, kind)]


def fill(g: GraphBuilder, number: float, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Value:
    return g.loop(shape, lambda *i: g.const(number, float32))


def optimized(g: GraphBuilder, *out: Value) -> Module:
    g.output(*out)
    module = g.finish()
    args = [
        rng.integers(0, 4, a.type.shape).astype(np.int64)
        if a.type.elem is int64
        else rng.standard_normal(a.type.shape).astype(np.float32)
        for a in module.functions[0].regions[0].args
    ]
    wanted = interpret(module, [a.copy() for a in args])
    with Session("graph", frozenset({"graph-reduce-scatters"})):  # as if they were large
        optimize(module, verify=True)
    for a, b in zip(wanted, interpret(module, [a.copy() for a in args]), strict=True):
        np.testing.assert_array_equal(a, b)
    return module


def inputs(g: GraphBuilder) -> tuple[Value, Value]:
    target = g.input("target", TensorType((ROWS,), int64))
    return target, g.input("x", TensorType((ROWS, COLUMNS), float32))


@pytest.mark.parametrize("mode", ["set", "add"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_one_element_of_each_row(mode: str, masked: bool, columns: bool):
    g = GraphBuilder("rows")
    target, x = inputs(g)
    shape = (COLUMNS, ROWS) if columns else (ROWS, COLUMNS)

    def body(i: Value, *one: Value) -> list[Value]:
        t = g.load(target, i)
        found = [t, i] if columns else [i, t]
        found.append(g.load(x, i, 2))
        return [*found, g.compare("lt", t, g.index(2))] if masked else found

    made = g.scatter(fill(g, 3.0, shape), (ROWS, 1), body, mode=mode)
    module = optimized(g, g.loop(shape, lambda i, j: g.exp(g.load(made, i, j))))
    assert not top(module, ScatterOp)
    assert len(top(module, LoopOp)) == 1


@pytest.mark.parametrize("why", ["contents", "several", "twice", "max"])
def test_other_scatters_stay(why: str):
    g = GraphBuilder("stays")
    target, x = inputs(g)
    base = x if why == "contents" else fill(g, 0.0)
    extents = (ROWS, 2) if why == "several" else (ROWS,)

    def body(i: Value, *k: Value) -> list[Value]:
        t = g.load(target, i)
        if k:
            t = g.add(t, k[0])
        row = g.index(dim(0) // 2, i) if why == "twice" else i
        return [row, t, g.load(x, i, 0)]

    mode = "max" if why == "max" else "add"
    module = optimized(g, g.scatter(base, extents, body, mode=mode))
    assert len(top(module, ScatterOp)) == 1


def test_each_scatter_has_a_base_of_its_own():
    """It would be copied else."""
    g = GraphBuilder("bases")
    target, x = inputs(g)
    zeros = fill(g, 0.0)

    def body(k: int) -> Any:
        return lambda i, j: [g.load(target, i), j, g.load(x, i, g.index(dim(0) * 0 + k, i))]

    made = [g.scatter(zeros, (ROWS, COLUMNS), body(k), mode="add") for k in range(3)]
    module = optimized(g, *made)
    bases = [op.base for op in top(module, ScatterOp)]
    assert len(set(bases)) == 3
    assert all(len(b.uses) == 1 for b in bases)
    assert len(top(module, LoopOp)) == 1  # which fills all of them
