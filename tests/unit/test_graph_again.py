"""What costs little beside what it fills is computed again by each reader, and not stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.dtypes import float32, int64
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import function_of
from tessera.graph.ir.ops import LoopOp
from tessera.graph.ir.scalars import Scalar, where
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.ir import Module, Value
from tests.unit.graph_kit import Build, check, fp32, module_of

RNG = np.random.default_rng(5)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def stored(build: Build) -> tuple[Module, list[int]]:
    """The graph, optimised, and the elements of each tensor that a loop of it makes beside its results."""
    module = optimize(module_of(build), verify=True)
    body = function_of(module).body
    made = [r for op in body if isinstance(op, LoopOp) for r in op.results]
    inner = [r for r in made if r not in body.terminator.operands]
    return module, [int(np.prod(r.type.shape)) for r in inner]


def picked(g: GraphBuilder) -> Any:
    """Rows of a gradient for each edge of a graph, of which a sum and a scatter need each element."""
    x, y, places = g.input("x", fp32(9, 64)), g.input("y", fp32(200, 64)), g.input("i", EDGES)
    zeros = g.loop([9, 64], lambda i, j: g.const(0.0, float32))

    def place(i: Value) -> Scalar:
        at = Scalar(g.load(places, i), g.b)
        at = where(at < 0, at + 9, at)
        return at.checked((at >= 0) & (at < 9), "an index is out of range")

    rows = g.loop([200, 64], lambda i, j: g.load(x, place(i).value, j))
    sums = g.loop(
        [200],
        lambda i: g.reduce("sum", [64], lambda r: g.mul(g.load(rows, i, r), g.load(y, i, r))),
    )
    into = g.scatter(
        zeros,
        [200, 64],
        lambda i, j: [place(i).value, j, g.mul(g.load(rows, i, j), g.load(sums, i))],
        "add",
    )
    return sums, into


EDGES = TensorType((200,), int64)


def test_rows_are_picked_again_by_each_reader():
    """The place of a row is computed once for all of its elements, whatever that takes."""
    module, found = stored(picked)
    assert 200 * 64 not in found
    x, y = (RNG.integers(-4, 5, (n, 64)).astype(np.float32) for n in (9, 200))  # sums are exact
    check(module, [x, y, RNG.integers(-9, 9, 200)])


def smoothed(g: GraphBuilder) -> Any:
    """The logarithms of a softmax, which are added up, and of which a loss picks one in each row."""
    x, labels = g.input("x", fp32(96, 40)), g.input("l", TensorType((96,), int64))
    most = g.loop([96], lambda i: g.reduce("max", [40], lambda r: g.load(x, i, r)))
    less = g.loop([96, 40], lambda i, j: g.sub(g.load(x, i, j), g.load(most, i)))
    total = g.loop([96], lambda i: g.reduce("sum", [40], lambda r: g.exp(g.load(less, i, r))))
    log = g.loop([96], lambda i: g.unary("log", g.load(total, i)))
    found = g.loop([96, 40], lambda i, j: g.sub(g.load(less, i, j), g.load(log, i)))
    sums = g.loop([96], lambda i: g.reduce("sum", [40], lambda r: g.load(found, i, r)))
    one = g.loop([], lambda: g.reduce("sum", [96], lambda r: g.load(found, r, g.load(labels, r))))
    return sums, one


def test_what_a_loss_picks_of_each_row_is_computed_again():
    module, found = stored(smoothed)
    assert 96 * 40 not in found
    check(module, [numbers(96, 40), RNG.integers(0, 40, 96)], rtol=1e-3)
