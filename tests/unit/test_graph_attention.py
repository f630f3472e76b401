"""Attention is one kernel, which computes what attention means: causal, with a bias, with shared heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import bfloat16, dtype, float16, float32, float64
from tessera.graph.index import parse_map, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.types import TensorType
from tessera.graph.planning.plan import Launch
from tessera.interp.numerics import from_storage, to_storage
from tessera.ir import Module, parse_module, print_module, verify
from tests.unit.graph_kit import built_for_hopper, check, compiled, fp32, module_of, values_of

RNG = np.random.default_rng(0)
Sizes = tuple[
    Any, Any, Any, Any, Any, int, int
]  # batch, heads, heads of keys, queries, keys, dimensions of both


def attention(sizes: Sizes, causal: bool, bias: bool, elem: dtype = float32) -> Module:
    b, h, g_, m, n, d, e = sizes
    acc = float64 if elem is float64 else float32

    def build(g: GraphBuilder) -> Any:
        q = g.input("q", TensorType((b, h, m, d), elem))
        k = g.input("k", TensorType((b, g_, n, d), elem))
        v = g.input("v", TensorType((b, g_, n, e), elem))
        c = g.input("c", fp32(1, h, m, n)) if bias else None
        return g.attention(q, k, v, d**-0.5, c, causal, acc)

    return module_of(build)


def arrays(sizes: Sizes, bias: bool, elem: dtype = float32) -> list[Any]:
    """Some elements of the bias are -inf: all those of one query."""
    b, h, g, m, n, d, e = sizes
    made = [RNG.standard_normal(s) for s in ((b, h, m, d), (b, g, n, d), (b, g, n, e))]
    made = [to_storage(x.astype(np.float32) if elem is bfloat16 else x, elem) for x in made]
    if bias:
        c = RNG.standard_normal((1, h, m, n)).astype(np.float32)
        c[RNG.random(c.shape) < 0.2] = -np.inf
        c[:, :, m // 2] = -np.inf
        made.append(c)
    return made


CASES: list[tuple[Sizes, bool, bool]] = [
    ((2, 4, 4, 16, 16, 8, 8), False, False),
    ((1, 4, 2, 70, 200, 16, 24), False, False),
    ((2, 2, 1, 100, 100, 16, 16), True, False),
    ((1, 2, 2, 33, 50, 20, 16), True, True),
    ((2, 2, 2, 150, 33, 16, 16), True, False),
    ((1, 1, 1, 1, 1, 1, 1), False, False),
]


@pytest.mark.parametrize(("sizes", "causal", "bias"), CASES)
def test_attention_of_any_sizes(sizes: Sizes, causal: bool, bias: bool):
    exe = check(attention(sizes, causal, bias), arrays(sizes, bias), atol=1e-4)
    assert [type(step) for step in exe.plan.steps] == [Launch]


@pytest.mark.parametrize("bias", [False, True])
def test_attention_of_sizes_that_calls_tell(bias: bool):
    module = attention((sym("s0"), 2, 2, sym("s1"), sym("s2"), 20, 16), not bias, bias)
    for m, n in ((50, 300), (130, 70), (1, 1)):
        check(module, arrays((2, 2, 2, m, n, 20, 16), bias), atol=1e-4)


@pytest.mark.parametrize("elem", [float64, float16, bfloat16], ids=lambda e: e.short)
def test_attention_of_any_type(elem: dtype):
    sizes: Sizes = (1, 2, 2, 40, 40, 16, 16)
    given = arrays(sizes, False, elem)
    module = attention(sizes, True, False, elem)
    meant = interpret(module, [from_storage(x, elem) for x in given])
    found = values_of(compiled(module)(list(given)), module)
    near = 1e-9 if elem is float64 else 0.02
    for got, want in zip(found, meant, strict=True):
        np.testing.assert_allclose(got, want, rtol=near, atol=near)


def test_operands_of_attention_are_read_through_views():
    def build(g: GraphBuilder) -> Any:
        x = g.input(
            "x", fp32(2, 40, 3, 4, 16)
        )  # queries, keys and values of all heads side by side
        part = TensorType((2, 4, 40, 16), float32)
        q, k, v = (
            g.view(x, parse_map(f"(d0, d1, d2, d3) -> (d0, d2, {i}, d1, d3)"), part)
            for i in range(3)
        )
        return g.attention(q, k, v, 0.25, None, True)

    x = RNG.standard_normal((2, 40, 3, 4, 16)).astype(np.float32)
    exe = check(build, [x], atol=1e-4)
    assert [type(step) for step in exe.plan.steps] == [Launch]


@pytest.mark.parametrize("same", ["keys", "dimensions"])
def test_operands_of_attention_that_are_the_same_along_an_index(same: str):
    """Nothing masks a load that does not go along an index: what lies beyond 33 keys or 20 dimensions is not summed."""
    at = {
        "keys": "(d0, d1, d2, d3) -> (d0, d1, 0, d3)",
        "dimensions": "(d0, d1, d2, d3) -> (d0, d1, d2, 0)",
    }

    def build(g: GraphBuilder) -> Any:
        t = fp32(2, 2, 33, 20)
        q, k, v = (g.view(g.input(n, t), parse_map(at[same]), t) for n in "qkv")
        return g.attention(q, k, v, 0.25, None, False)

    exe = check(build, [RNG.standard_normal((2, 2, 33, 20)).astype(np.float32) for _ in range(3)])
    assert [type(step) for step in exe.plan.steps] == [Launch]


def test_attention_prints_and_parses():
    module = attention((2, 4, 2, sym("s1"), 8, 16, 16), True, True)
    again = parse_module(print_module(module))
    verify(again)
    assert print_module(again) == print_module(module)


@pytest.mark.parametrize("elem", [float32, bfloat16], ids=lambda e: e.short)
def test_attention_is_built_for_hopper(elem: dtype):
    module = attention((2, 4, 2, sym("s1"), sym("s1"), 64, 64), True, False, elem)
    (kernel,) = built_for_hopper(module).compiled.values()
    assert kernel.asm["cubin"]
