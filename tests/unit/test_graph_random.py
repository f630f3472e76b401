"""Kernels of random graphs, fused and not, compute what the graphs mean."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.graph.calls.executable import compile_graph, machine_of
from tessera.graph.calls.host import NumpyHost
from tessera.graph.ir.interp import interpret
from tessera.graph.passes import optimize
from tests.fuzz.graphs_kit import RandomGraph, copy
from tests.unit.graph_kit import HOPPER

SEEDS = [1, 3, 8, 250, 503, 536]  # the last three were wrong


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(seed: int, fused: bool):
    graph = RandomGraph(seed, 2 + seed % 12)
    wanted = interpret(graph.module, [x.copy() for x in graph.args], copy)
    if fused:
        optimize(graph.module)
    machine = machine_of(HOPPER) if seed % 2 else None
    exe = compile_graph(graph.module, NumpyHost({"copy": np.array}), machine=machine)
    for got, want in zip(exe([x.copy() for x in graph.args]), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
