"""Estimated times of matrix products on an H200: which tiles they choose, beside what was measured."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import Any

import pytest

from tessera.dtypes import bfloat16, dtype, float32
from tessera.graph.calls.executable import machine_of
from tessera.graph.emit import product_time
from tessera.graph.emit.matmul import blocks_of, variants
from tessera.graph.emit.product_time import TILES, Blocks, Shape, fastest, fitting, microseconds
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import function_of
from tessera.graph.ir.ops import MatmulOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.graph.planning.plan import Launch
from tessera.graph.planning.planner import Planner
from tessera.ir import Module, Value
from tests.unit.graph_kit import HOPPER
from tools.fit import products

ROWS = products.rows_of(products.MEASURED)


def mean(values: Any) -> float:
    found = list(values)
    return math.exp(sum(map(math.log, found)) / len(found))


def test_estimates_are_near_what_was_measured():
    slower, than_eager = zip(*products.taken(ROWS), strict=True)
    assert len(ROWS) == 40
    assert products.distance(ROWS) < 0.012  # 0.11 of the time, as a standard deviation
    assert mean(slower) < 1.035 and max(slower) < 1.15
    assert mean(than_eager) < 1.0
    smallest = mean(min(t, key=t.__getitem__).m for _, _, t in ROWS)
    assert 64 <= smallest < 128  # no one size is the best of all


def test_other_constants_are_farther(monkeypatch: pytest.MonkeyPatch):
    today = products.distance(ROWS)
    for name in products.CONSTANTS:
        for factor in (0.5, 2.0):
            with monkeypatch.context() as changed:
                changed.setattr(product_time, name, getattr(product_time, name) * factor)
                assert products.distance(ROWS) > today, name


def test_fitting_finds_the_constants_again(monkeypatch: pytest.MonkeyPatch):
    for name in products.CONSTANTS:
        monkeypatch.setattr(product_time, name, getattr(product_time, name))
    today = products.distance(ROWS)
    product_time.LATENCY *= 3
    assert products.fit(ROWS, 300) < 1.2 * today


def test_few_programs_have_small_tiles_and_many_of_them_on_their_way():
    few, many = fastest(Shape(1, 512, 2048, 512)), fastest(Shape(1, 8192, 4096, 4096))
    assert few.m * few.n < 64 * 128 and few.stages * few.k >= 6 * 64
    assert (many.m, many.n) in ((128, 256), (256, 128))
    assert fastest(Shape(16, 512, 2048, 512)).m > few.m  # of a batch there are many


def test_a_library_has_tiles_that_powers_of_two_have_not():
    shape = Shape(1, 2048, 3072, 768)  # 128 programs of 128 x 96
    ours = microseconds(shape, fastest(shape))
    assert 0.8 < product_time.of_library(shape) / ours < 0.9
    shape = Shape(1, 2048, 512, 2048)
    assert product_time.of_library(shape) == pytest.approx(microseconds(shape, fastest(shape)))


def test_more_than_registers_hold_is_not_asked_for():
    assert fitting(0, 50) == fitting(1, 4) == TILES
    busy, crowded = fitting(1, 50), fitting(3, 2)
    assert max(b.m * b.n // b.warps for b in busy) == 2048
    assert {b.warps for b in crowded} == {4} and max(b.m * b.n for b in crowded) == 8192


def product(m: int, k: int, n: int, reads: int = 0, elem: dtype = bfloat16) -> Module:
    """A product, and a sum of it with as many others, each squared."""
    g = GraphBuilder("product", device="cuda")
    matrix = lambda name, *shape: g.input(name, TensorType(shape, elem, device="cuda"))
    a, b = matrix("a", m, k), matrix("b", k, n)
    others = [matrix(f"c{i}", m, n) for i in range(reads)]
    p = g.matmul(a, b, float32, elem)

    def body(i: Value, j: Value) -> Value:
        found = g.cast(g.load(p, i, j), float32)
        for c in others:
            x = g.cast(g.load(c, i, j), float32)
            found = g.add(g.mul(found, x), g.mul(x, x))
        return g.cast(found, elem)

    g.output(g.loop([m, n], body))
    return optimize(g.finish())


def kernels(module: Module) -> list[Any]:
    steps = Planner(function_of(module), machine_of(HOPPER)).run().steps
    return [step.code for step in steps if isinstance(step, Launch)]


@pytest.mark.parametrize(("reads", "elements"), [(0, 128 * 256), (1, 128 * 256), (3, 64 * 128)])
def test_what_reads_a_product_takes_part_in_the_choice(reads: int, elements: int):
    (code,) = kernels(product(2048, 512, 2048, reads))
    assert math.prod(code.tiling.shape) == elements
    assert "num_stages=" in code.text


def test_a_large_product_is_apart_from_what_needs_many_registers():
    """With 64 x 128 elements a program its tensor cores would wait for memory."""
    assert len(kernels(product(4096, 4096, 4096, 4))) == 2
    assert len(kernels(product(4096, 4096, 4096, 1))) == 1


def test_products_that_nothing_is_known_of_have_tiles_all_the_same():
    (op,) = (x for x in product(512, 512, 512, 0, float32).walk() if isinstance(x, MatmulOp))
    assert blocks_of(op, machine_of(HOPPER)) == Blocks(128, 128, 32, 8, 8)
    assert len(variants(op, machine_of(HOPPER))) > 2
    (op,) = (x for x in product(512, 512, 512).walk() if isinstance(x, MatmulOp))
    assert {len(astuple(b)) for b in variants(op, machine_of(HOPPER))} == {6}
