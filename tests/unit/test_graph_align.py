"""Walks through long rows of odd length begin at a multiple of 16 bytes, and come to what they came to before."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import bfloat16, dtype, float16, float32
from tessera.graph.calls.executable import machine_of
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.types import TensorType
from tessera.graph.planning.planner import Planner
from tessera.ir import Value
from tessera.ir.applications import Session
from tests.unit.graph_kit import HOPPER, built_for_hopper, compiled, fp32, module_of, softmax

GPU = machine_of(HOPPER)
SMALL = replace(GPU, row=8, step=32, walk=1)
ALIGN = "graph-align-rows"
NUMPY = {float32: np.float32, float16: np.float16}


def applied(build: Any, machine: Any = SMALL) -> int:
    with Session("graph") as session:
        Planner(module_of(build).functions[0], machine).run()  # type: ignore[arg-type]
    return sum(a.name == ALIGN for a in session.applied)


def wanted(x: Any, b: Any = 0) -> Any:
    y = x.astype(np.float64) + b
    e = np.exp(y - y.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("width", [65, 67, 97, 127, 129, 190, 333])
@pytest.mark.parametrize("rows", [1, 5, (2, 3)], ids=str)
@pytest.mark.parametrize("elem", [float32, float16], ids=lambda e: e.short)
def test_rows_of_every_length(width: int, rows: Any, elem: dtype):
    build = softmax(rows, width, elem, bias=True)
    shape = (rows, width) if isinstance(rows, int) else (*rows, width)
    rng = np.random.default_rng(width)
    x, b = rng.standard_normal(shape).astype(NUMPY[elem]), rng.standard_normal(width)
    exe = compiled(module_of(build), SMALL)
    (found,) = exe([x, b.astype(np.float32)])
    near = 1e-5 if elem is float32 else 2e-3
    np.testing.assert_allclose(found.astype(np.float64), wanted(x, b), rtol=near, atol=near / 100)


@pytest.mark.parametrize("width", [5, 7, 9, 13])
def test_rows_shorter_than_two_vectors(width: int):
    """A vector has 8 elements: rows of 5 and 7 hold the start of none, or of one."""
    x = np.random.default_rng(width).standard_normal((9, width)).astype(np.float16)
    build = softmax(9, width, float16)
    short = replace(GPU, row=2, step=2, walk=1)
    assert bool(applied(build, short)) == (width > 8)
    (found,) = compiled(module_of(build), short)([x])
    np.testing.assert_allclose(found.astype(np.float64), wanted(x), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("width", [65, 190, 333])
def test_several_sums_of_a_row(width: int):
    """Sums and extrema that share a walk, and sums that need the first ones, as those of a norm."""
    x = np.random.default_rng(0).standard_normal((7, width)).astype(np.float32)

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(7, width))

        def row(i: Value) -> Any:
            total = g.reduce("sum", [width], lambda r: g.load(a, i, r))
            least = g.reduce("min", [width], lambda r: g.load(a, i, r))
            mean = g.mul(total, g.const(1 / width, float32))

            def far(r: Value) -> Value:
                d = g.sub(g.load(a, i, r), mean)
                return g.mul(d, d)

            squares = g.reduce("sum", [width], far)
            return total, least, squares

        return g.loops([7], row)

    assert applied(build)
    found = compiled(module_of(build), SMALL)([x])
    want = x.sum(1), x.min(1), ((x - x.mean(1, keepdims=True)) ** 2).sum(1)
    for f, w in zip(found, want, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)


def random_rows(random: Random, width: int, elem: dtype) -> Any:
    """A few reductions of random kinds, each of elements that may need the ones before it, and one or two results."""
    rows = [random.randint(1, 9)] if random.random() < 0.6 else [random.randint(1, 3), 3]
    kinds = [random.choice(("sum", "max", "min")) for _ in range(random.randint(1, 3))]
    chained, squared = ([random.random() < 0.5 for _ in kinds] for _ in range(2))
    made = random.randint(0, 2)

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", TensorType((*rows, width), elem))
        b = g.input("b", fp32(width))

        def row(*i: Value) -> Any:
            found: list[Value] = []

            def given(r: Value, k: int) -> Value:
                v = g.mul(g.cast(g.load(x, *i, r), float32), g.load(b, r))
                v = g.sub(v, found[-1]) if found and chained[k] else v
                return g.mul(v, v) if squared[k] else v

            for k, kind in enumerate(kinds):
                found.append(g.reduce(kind, [width], lambda r, k=k: given(r, k)))
            rest = [
                g.loop(
                    [width], lambda r, k=k: g.cast(g.add(given(r, 0), found[k % len(found)]), elem)
                )
                for k in range(made)
            ]
            return (*rest, *found) if random.random() < 0.5 or not rest else tuple(rest)

        state = random.getstate()

        def again(*i: Value) -> Any:
            random.setstate(state)
            return row(*i)

        return g.loops(rows, again)

    return build


def check_random(seed: int, off: str) -> int:
    """How often it was applied to a graph of random rows, which comes to what the graph says."""
    random = Random(seed)
    elem, width = random.choice((float32, float16)), 65 + random.randint(0, 300)
    module = module_of(random_rows(random, width, elem))
    rng = np.random.default_rng(seed)
    inputs = [
        rng.integers(-4, 5, x.type.shape).astype(NUMPY[x.type.elem])
        for x in module.functions[0].body.args  # type: ignore[attr-defined]
    ]
    wanted = interpret(module, [x.copy() for x in inputs])
    with Session("graph", frozenset({off} - {""})) as session:
        exe = compiled(module, SMALL)
    for f, w in zip(exe([x.copy() for x in inputs]), wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=2e-3, atol=1e-3)
    return sum(a.name == ALIGN for a in session.applied)


@pytest.mark.parametrize("off", ["", ALIGN])
def test_random_rows(off: str):
    """On the CPU, with the tilings of a GPU."""
    times = sum(check_random(seed, off) for seed in range(24))
    assert times == 0 if off else times > 12


def test_threads_read_and_write_vectors():
    """Without it, each of 50257 elements is read by itself in each of three walks, and written by itself."""
    module = module_of(softmax(2048, 50257))
    (kernel,) = built_for_hopper(module).compiled.values()
    text: str = kernel.asm["ptx"]
    assert re.search(r"cp\.async\.cg\S* \[.*, 16", text) and "st.global.v4.b32" in text
    assert not kernel.metadata.spills


@pytest.mark.parametrize("elem", [float32, bfloat16], ids=lambda e: e.short)
@pytest.mark.parametrize(
    ("width", "expected"), [(50257, 1), (50256, 0), (50258, 1), (8191, 0)], ids=str
)
def test_only_rows_that_do_not_begin_at_vectors(width: int, expected: int, elem: dtype):
    even = width % (16 // elem.storage_bytes) == 0
    assert applied(softmax(64, width, elem), GPU) == (0 if even else expected)


def test_what_needs_its_order_is_walked_from_the_start():
    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(300, 20001))
        return g.loops([300], lambda i: g.arg_reduce("max", 20001, lambda r: g.load(a, i, r)))

    assert not applied(build, GPU)
