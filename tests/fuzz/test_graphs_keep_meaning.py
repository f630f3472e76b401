"""Random graphs compute the same before and after canonicalisation and fusion, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.graph.interp import interpret
from tessera.graph.ops import LoopOp
from tessera.graph.passes import cost, optimize
from tessera.graph.passes.facts import symbol_ranges
from tessera.ir import Module, parse_module, print_module, verify
from tests.fuzz.graphs_kit import RandomGraph, copy


def loops(module: Module) -> int:
    return sum(isinstance(op, LoopOp) for op in module.functions[0].regions[0])


def peak(module: Module) -> int:
    body = module.functions[0].regions[0]
    return cost.peak_bytes([[op] for op in body], body, cost.sizes(symbol_ranges(module)))


def check(seed: int, steps: int) -> None:
    graph = RandomGraph(seed, steps)
    module = graph.module
    verify(module)
    wanted = interpret(module, [x.copy() for x in graph.args], copy)
    before, most = loops(module), peak(module)
    optimize(module, verify=True)
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert print_module(again) == text
    assert loops(module) <= before
    assert peak(module) <= most
    for a, b in zip(wanted, interpret(again, [x.copy() for x in graph.args], copy), strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 14))
def test_random_graphs(seed: int, steps: int):
    check(seed, steps)


@pytest.mark.parametrize(
    "off",
    [
        "graph-canonicalize",
        "graph-cse",
        "graph-inline-loops",
        "graph-fuse-rows",
        "graph-fuse-equal",
    ],
)
def test_each_optimisation_can_be_left_out(off: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    for seed in range(3):
        check(seed, 8)
