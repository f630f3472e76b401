"""Random graphs compute the same before and after canonicalisation and fusion, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera.config.optimizations import OPTIMIZATIONS
from tessera.graph.executable import compile_graph
from tessera.graph.host import NumpyHost
from tessera.graph.interp import interpret
from tessera.graph.ops import ExternOp, LoopOp
from tessera.graph.passes import cost, optimize
from tessera.graph.passes.facts import symbol_ranges
from tessera.ir import Module, parse_module, print_module, verify
from tessera.ir.applications import Session
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


# What changes bits has tests of its own: tests/unit/test_graph_roundings.py.
EXACT = [n for n in OPTIMIZATIONS if n.startswith("graph-") and n != "graph-drop-roundings"]


@pytest.mark.parametrize("name", EXACT)
def test_without_one(name: str):
    """Each seed's graph once more without the optimisation, which at least one of them has."""
    applied = 0
    for seed in range(12):
        with Session("graph", frozenset({name})) as session:
            check(seed, 8)
        assert name not in {a.name for a in session.applied}
        with Session("graph") as session:
            check(seed, 8)
        applied += sum(a.name == name for a in session.applied)
    assert applied


class CopyingHost(NumpyHost):
    def extern(
        self, op: ExternOp, arrays: Sequence[Any], symbols: Mapping[str, int]
    ) -> tuple[Any, ...]:
        return tuple(np.ascontiguousarray(x) for x in copy(op, list(arrays), symbols))


@pytest.mark.parametrize(
    ("seed", "norms"),
    [*((n, False) for n in (17, 250, 503, 536, 601, 702)), *((n, True) for n in (3, 11))],
)
def test_kernels_of_fused_graphs(seed: int, norms: bool):
    """What was wrong once, and a few others, compiled for the CPU."""
    graph = RandomGraph(seed, 2 + seed % 12, norms)
    wanted = interpret(graph.module, [x.copy() for x in graph.args], copy)
    run = compile_graph(optimize(graph.module), CopyingHost())
    for a, b in zip(wanted, run([x.copy() for x in graph.args]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("off", EXACT)
def test_each_optimisation_can_be_left_out(off: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    for seed in range(3):
        check(seed, 8)
