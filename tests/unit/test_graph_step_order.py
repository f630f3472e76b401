"""The order of a graph's steps: less is held in it than in the graph's, and nothing passes what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.calls.executable import Executable, compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.emit.tiling import Machine
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import optimize
from tessera.graph.planning.order import LEAST, Steps, better_order
from tessera.graph.planning.plan import Extern, Plan
from tessera.graph.planning.planner import Planner
from tessera.graph.planning.settle import PAGE
from tessera.ir import Value
from tests.fuzz.graphs_kit import RandomGraph

Make = Callable[..., tuple[Value, ...]]
N = 64
SIZE = N * N * 4
GPU = Machine("cuda", exact=False, tile=64, row=64, step=64, lanes=8, columns=64, walk=16)


class Doubling(NumpyHost):
    def extern(self, op: Any, arrays: Any, symbols: Any) -> tuple[Any, ...]:
        return (arrays[0] * 2,)


def doubled(g: GraphBuilder, x: Value) -> Value:
    return g.extern("double", [x], [Place(0)], [x.type])[0]


def transposed(g: GraphBuilder, x: Value) -> Value:
    return g.loop([N, N], lambda i, j: g.mul(g.load(x, j, i), g.const(3.0, float32)))


def arguments(count: int = 1) -> list[np.ndarray]:
    draw = np.random.default_rng(count)
    return [draw.standard_normal((N, N)).astype(np.float32) for _ in range(count)]


def graph(make: Make, donated: Sequence[bool], name: str = "order") -> Any:
    g = GraphBuilder(name)
    t = TensorType((N, N), float32)
    g.output(*make(g, *(g.input(f"x{k}", t, donated=d) for k, d in enumerate(donated))))
    return g.finish()


def compiled(make: Make, *donated: bool) -> Executable:
    return compile_graph(graph(make, donated), Doubling(), machine=GPU)


def called(exe: Executable) -> list[int]:
    """By calls of the library in the order of the plan: how many operands each has."""
    return [len(step.reads) for step in exe.plan.steps if isinstance(step, Extern)]


def gradients(g: GraphBuilder, x: Value, y: Value, pure: bool = True) -> tuple[Value, ...]:
    """Two calls that read the same; behind the second one an argument goes."""
    dy = transposed(g, y)
    dx = doubled(g, dy)
    dw = g.extern("double", [x, dy], [Place(0)], [x.type], pure=pure)[0]
    return dx, dw


@pytest.mark.parametrize("off", ["", "graph-order-steps"])
def test_what_lets_go_runs_before_what_takes(monkeypatch: pytest.MonkeyPatch, off: str):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    exe = compiled(gradients, True, False)
    x, y = arguments(2)
    dx, dw = exe([x.copy(), y])
    np.testing.assert_allclose(dx, 6 * y.T, rtol=1e-6)
    np.testing.assert_allclose(dw, 2 * x, rtol=1e-6)
    assert called(exe) == ([1, 2] if off else [2, 1])
    assert exe.peak_bytes() == (3 if off else 2) * SIZE


def test_nothing_passes_a_step_with_an_effect():
    exe = compiled(lambda g, x, y: gradients(g, x, y, pure=False), True, False)
    assert called(exe) == [1, 2] and exe.peak_bytes() == 3 * SIZE


@pytest.mark.parametrize("name", ["double", "_c10d_functional.all_reduce.default"])
def test_a_collective_stays_where_it_is(name: str):
    """It runs beside the kernels between it and the one that waits for its result."""

    def make(g: GraphBuilder, x: Value, y: Value) -> tuple[Value, ...]:
        begun = g.extern(name, [x], [Place(0)], [x.type])[0]
        most = g.loop([N, N, 4], lambda i, j, k: g.load(y, j, i))
        least = g.loop([N], lambda i: g.reduce("max", [N, 4], lambda j, k: g.load(most, j, i, k)))
        doubles = g.extern("double", [least], [Place(0)], [least.type])[0]
        return begun, doubles

    exe = compiled(make, False, False)
    first = next(n for n, step in enumerate(exe.plan.steps) if isinstance(step, Extern))
    assert (first == 0) == (name != "double")


def late(g: GraphBuilder, x: Value) -> tuple[Value, ...]:
    """A large result that nothing else needs is made first, and a large tensor is summed at the end."""
    large = g.extern("double", [x], [Place(0)], [x.type])[0]
    wide = g.loop([N, N, 3], lambda i, j, k: g.load(x, j, i))
    passed = g.extern("double", [wide], [Place(0)], [wide.type])[0]
    some = g.loop([N], lambda i: g.reduce("max", [N, 3], lambda j, k: g.load(passed, j, i, k)))
    other = g.extern("double", [some], [Place(0)], [some.type])[0]
    return large, other


@pytest.mark.parametrize("off", ["", "graph-order-steps"])
def test_a_result_is_made_when_others_have_gone(monkeypatch: pytest.MonkeyPatch, off: str):
    monkeypatch.setenv("TESSERA_DISABLE", off)
    exe = compiled(late, False)
    (x,) = arguments()
    large, other = exe([x])
    np.testing.assert_allclose(large, 2 * x, rtol=1e-6)
    np.testing.assert_allclose(other, 4 * x.max(1), rtol=1e-6)
    assert exe.peak_bytes() // SIZE == (7 if off else 6)


def test_an_argument_is_written_when_nobody_reads_it_any_more():
    def make(g: GraphBuilder, x: Value, y: Value) -> tuple[Value, ...]:
        before = doubled(g, x)
        g.write(x, transposed(g, y))
        return gradients(g, y, before)

    exe = compiled(make, False, True)
    x, y = arguments(2)
    given, old = x.copy(), y.copy()
    dx, dw = exe([given, y])
    np.testing.assert_allclose(dx, 12 * x.T, rtol=1e-6)
    np.testing.assert_allclose(dw, 2 * old, rtol=1e-6)
    np.testing.assert_allclose(given, 3 * old.T, rtol=1e-6)


def planned(seed: int) -> Plan:
    made = RandomGraph(seed, 14, seed % 2 == 0, seed % 3 == 0, sized=seed % 4 == 0)
    (function,) = optimize(made.module).functions
    if seed % 2:
        function.arg_attrs = ((("donated", True),),) * len(made.args)  # type: ignore[attr-defined]
    return Planner(function, GPU).run()  # type: ignore[arg-type]


def test_orders_of_random_graphs():
    found = 0
    for seed in range(32):
        steps = Steps(planned(seed), PAGE)
        order = better_order(steps)
        if order is None:
            continue
        found += 1
        assert sorted(order) == list(range(steps.count))
        place = {k: p for p, k in enumerate(order)}
        assert all(place[a] < place[b] for b in order for a in steps.needs[b])
        before, after = (max(steps.held(o).at) for o in (range(steps.count), order))
        assert after < before - LEAST * steps.before(before)
    assert found > 2
