"""Random graphs compute the same before and after canonicalisation and fusion, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tessera.config.optimizations import OPTIMIZATIONS
from tessera.graph.calls.executable import compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import ExternOp, LoopOp
from tessera.graph.passes import cost, optimize
from tessera.graph.passes.alive import Uses, peak_bytes
from tessera.graph.passes.facts import symbol_ranges
from tessera.ir import Module, parse_module, print_module, verify
from tessera.ir.applications import Session
from tessera.ops import FuncOp
from tests.fuzz.graphs_kit import SMALL, RandomGraph, copy


def loops(module: Module) -> int:
    return sum(isinstance(op, LoopOp) for op in module.functions[0].regions[0])


def peak(module: Module, reused: bool = False) -> int:
    """`reused`: with results of loops in the memory of what they read last, as they are planned."""
    body = module.functions[0].regions[0]
    merged = [[op] for op in body if reused and isinstance(op, LoopOp)]
    uses = Uses(body, cost.sizes(symbol_ranges(module)))
    return peak_bytes([[op] for op in body], uses, merged=merged)


def meaning(graph: RandomGraph, module: Module) -> list[np.ndarray]:
    """The results, and what is left in the arguments."""
    args = [x.copy() for x in graph.args]
    return [*interpret(module, args, copy), *args]


def check(seed: int, steps: int, writes: bool = False) -> None:
    graph = RandomGraph(seed, steps, writes=writes)
    module = graph.module
    verify(module)
    wanted = meaning(graph, module)
    before, most = loops(module), peak(module)
    optimize(module, verify=True)
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert print_module(again) == text
    if not writes:  # sorts and scatters are taken apart, into loops
        assert loops(module) <= before
        assert peak(module, reused=True) <= most
    for a, b in zip(wanted, meaning(graph, again), strict=True):
        np.testing.assert_array_equal(a, b)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 14))
@example(807754, 6)  # a loop was split that wrote its part of a concatenation, which took memory
@example(
    64030419, 9
)  # two loops were merged, whose results are in the memory of what both read last
def test_random_graphs(seed: int, steps: int):
    check(seed, steps)
    check(seed, steps, writes=True)


# What changes bits has tests of its own: tests/unit/test_graph_roundings.py, tests/unit/test_graph_attention_grads.py,
# and below what the planner does.
PLANNED = (
    "graph-split-reductions", "graph-split-scans", "graph-walk-rows", "graph-sum-moments", "graph-reuse-memory",
    "graph-cut-arena", "graph-break-launches", "graph-order-steps", "graph-own-products", "graph-fuse-products",
    "graph-place-parts", "graph-align-rows", "graph-order-extrema", "graph-stream-scans",
)  # fmt: skip
# Of torch's graphs, in tests/graph.
OF_TORCH = (
    "graph-drop-copies", "graph-narrow-places", "graph-split-addmm", "graph-drop-masks", "graph-share-pages",
    "graph-point-convolutions", "graph-sum-windows", "graph-recompute-biases", "graph-share-heads",
    "graph-select-largest", "graph-recompute-rows",
)  # fmt: skip
# (tests/unit/test_graph_align.py has random rows, test_graph_extrema.py windows, tests/fuzz/test_convolution_layouts.py
# graphs with convolutions, test_graph_halves.py those of halves, test_graph_expanded.py rows that others read.)
OTHERS = (
    "graph-split-index-sets", "graph-drop-roundings", "graph-join-gradients", "graph-reduce-scatters",
    "graph-channels-last", "graph-add-biases", "graph-narrow-results", "graph-recompute-expanded", *OF_TORCH, *PLANNED,
)  # fmt: skip
EXACT = [n for n in OPTIMIZATIONS if n.startswith("graph-") and n not in OTHERS]


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
    ("seed", "norms", "writes"),
    [
        *((n, False, False) for n in (17, 250, 503, 536, 601, 702)),
        *((n, True, False) for n in (3, 11)),
        *((n, n % 2 == 0, True) for n in (0, 1, 483, 486)),
    ],
)
def test_kernels_of_fused_graphs(seed: int, norms: bool, writes: bool):
    """What was wrong once, and a few others, compiled for the CPU."""
    graph = RandomGraph(seed, 2 + seed % 12, norms, writes)
    wanted = meaning(graph, graph.module)
    run = compile_graph(optimize(graph.module), CopyingHost())
    args = [x.copy() for x in graph.args]
    for a, b in zip(wanted, [*run(list(args)), *args], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "off",
    [
        "",
        "graph-split-reductions,graph-split-scans",
        "graph-reuse-memory",
        "graph-cut-arena",
        "graph-break-launches",
        "graph-order-steps",
        "graph-fuse-products",
    ],
)
@pytest.mark.parametrize("seed", range(6))
def test_kernels_of_small_tilings(seed: int, off: str, monkeypatch: pytest.MonkeyPatch):
    """Compiled for the CPU, which runs tilings and the memory plan of GPUs, too. In some seeds the caller needs no
    argument any more."""
    monkeypatch.setenv("TESSERA_DISABLE", off)
    graph = RandomGraph(seed, 10, seed % 2 == 0, seed % 3 == 0, sized=seed != 5)
    wanted = meaning(graph, graph.module)
    (function,) = graph.module.functions
    assert isinstance(function, FuncOp)
    if seed % 2:
        function.arg_attrs = ((("donated", True),),) * len(graph.args)
    run = compile_graph(optimize(graph.module), CopyingHost(), machine=SMALL)
    for _ in range(2):  # the second call has the arenas of the first one
        args = [x.copy() for x in graph.args]
        found = [*run(list(args)), *args]
        count = len(found) - (len(args) if seed % 2 else 0)
        for a, b in zip(wanted[:count], found, strict=False):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def check_scatters(seed: int) -> int:
    """Small scatters of whole numbers as reductions, in graphs and in kernels of small tilings; how many there were."""
    graph = RandomGraph(seed, 8, sized=True, fills=True)
    wanted = meaning(graph, graph.module)
    with Session("graph") as session:
        optimize(graph.module, verify=True)
    for a, b in zip(wanted, meaning(graph, graph.module), strict=True):
        np.testing.assert_array_equal(a, b)
    run = compile_graph(graph.module, CopyingHost(), machine=SMALL)
    for a, b in zip(wanted, run([x.copy() for x in graph.args]), strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    return sum(a.name == "graph-reduce-scatters" for a in session.applied)


def test_small_scatters():
    assert sum(map(check_scatters, range(6))) > 2


def test_memory_is_planned_in_each_way():
    """What the fuzz above should meet, it does."""
    applied: set[str] = set()
    for seed in range(12):
        graph = RandomGraph(seed, 10, seed % 2 == 0, seed % 3 == 0, sized=seed < 4)
        with Session("graph") as session:
            compile_graph(optimize(graph.module), CopyingHost(), machine=SMALL)
        applied |= {a.name for a in session.applied}
    wanted = {"graph-reuse-memory", "graph-cut-arena", "graph-break-launches", "graph-order-steps"}
    assert applied >= wanted


@pytest.mark.parametrize("off", EXACT)
def test_each_optimisation_can_be_left_out(off: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    for seed in range(3):
        check(seed, 8)


# A machine on which launches cost nothing, so that loops of this size are split wherever that saves a byte.
EAGER = cost.Machine(bandwidth=1e6, launch=0.0, rate=1e9, lanes=16, cache=1 << 20, gather=5e-10)


@pytest.mark.parametrize("off", ["", "graph-place-parts"])
@pytest.mark.parametrize("seed", [2, 4])
def test_joined_tensors(seed: int, off: str, monkeypatch: pytest.MonkeyPatch):
    """Concatenations, stacks and padding, in parts that kernels write where they lie."""
    monkeypatch.setattr(cost, "machine_of", lambda device: EAGER)
    graph = RandomGraph(seed, 3 + seed, False, False, sized=True, joins=True)
    wanted = meaning(graph, graph.module)
    with Session("graph", frozenset({off} - {""})) as session:
        optimize(graph.module, verify=True)
        for a, b in zip(wanted, meaning(graph, graph.module), strict=True):
            np.testing.assert_array_equal(a, b)
        run = compile_graph(graph.module, CopyingHost(), machine=SMALL)
    names = {a.name for a in session.applied}
    assert "graph-split-index-sets" in names and ("graph-place-parts" in names) == (not off)
    for _ in range(2):
        args = [x.copy() for x in graph.args]
        for a, b in zip(wanted, [*run(list(args)), *args], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
