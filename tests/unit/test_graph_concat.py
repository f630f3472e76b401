"""Concatenations: which loops are split for them, and which tensors are written where they lie in the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.calls.executable import Executable, compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.index import IndexMap, dim, expr, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.concat import ConcatOp, place_parts
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import LoopOp
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import cost, optimize
from tessera.graph.passes.alive import Uses, peak_bytes
from tessera.graph.passes.index_sets import split_index_sets
from tessera.graph.planning.plan import INPUT, Interpret, Launch
from tessera.graph.planning.planner import Planner
from tessera.ir import Module, Value, verify

S0 = sym("s0")


def exp(g: GraphBuilder, x: Value) -> Value:
    return g.loop(x.type.shape, lambda *i: g.exp(g.load(x, *i)))


def joined(g: GraphBuilder, parts: Sequence[Value], along: int) -> Value:
    """Tensors one behind the other as elements of one loop, as a front end makes them."""
    shape = parts[0].type.shape

    def body(*i: Value) -> Value:
        start, found = expr(0), None
        for x in parts:
            map = IndexMap(len(shape), [dim(k) - start * (k == along) for k in range(len(shape))])
            inside = g.compare("ge", i[along], g.index(start))
            part = g.load_at(x, map, i, mask=inside)
            if x is not parts[-1]:
                below = g.compare("lt", i[along], g.index(start + x.type.shape[along]))
                part = g.load_at(x, map, i, mask=g.binary("and", inside, below))
            found = part if found is None else g.select(inside, part, found)
            start = start + x.type.shape[along]
        assert found is not None
        return found

    total = sum((expr(x.type.shape[along]) for x in parts), expr(0))
    return g.loop((*shape[:along], total, *shape[along + 1 :]), body)


def concats(module: Module) -> list[ConcatOp]:
    return [op for op in module.functions[0].regions[0] if isinstance(op, ConcatOp)]


def compiled(module: Module, args: Sequence[np.ndarray]) -> Executable:
    """Compiled, and seen to compute what the graph means; twice, since the second call finds memory in use."""
    verify(module)
    wanted = interpret(module, [x.copy() for x in args])
    run = compile_graph(module, NumpyHost({"copy": np.array}))
    for _ in range(2):
        for a, b in zip(wanted, run([x.copy() for x in args]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return run


def in_place(run: Executable) -> int:
    """The results of kernels that lie in another tensor."""
    steps = [s for s in run.plan.steps if isinstance(s, Launch)]
    return sum(run.plan.root(v) is not v for s in steps for v in s.writes)


def launches(run: Executable) -> int:
    return sum(isinstance(s, Launch) for s in run.plan.steps)


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_meaning():
    g = GraphBuilder("two")
    x, y = (g.input(n, TensorType((3, k), float32)) for n, k in (("x", 2), ("y", 5)))
    g.output(g.concat([x, y], 1))
    a, b = data(3, 2), data(3, 5)
    (found,) = interpret(g.finish(), [a, b])
    np.testing.assert_array_equal(found, np.concatenate([a, b], 1))


@pytest.mark.parametrize("along", [0, 1, 2])
def test_parts_are_written_where_they_lie(along: int):
    g = GraphBuilder("parts", ranges={"s0": (2, None)})
    x = g.input("x", TensorType((S0, 8, 4), float32))
    a, b = exp(g, x), exp(g, exp(g, x))
    g.output(g.concat([a, b, b], along))
    run = compiled(g.finish(), [data(3, 8, 4)])
    assert in_place(run) == 3  # the second b is a copy, which lies there, too
    assert launches(run) == 4


def test_arguments_and_what_is_handed_out_are_copied():
    g = GraphBuilder("copied")
    x = g.input("x", TensorType((4, 4), float32))
    a = exp(g, x)
    g.output(g.concat([x, a], 0), a)
    module = g.finish()
    assert not place_parts(module.functions[0].regions[0])
    run = compiled(module, [data(4, 4)])
    assert launches(run) == 3


def test_what_a_library_reads_is_by_itself():
    g = GraphBuilder("extern")
    x = g.input("x", TensorType((4, 4), float32))
    a = exp(g, x)
    (e,) = g.extern("copy", [a], [Place(0)], [a.type])
    g.output(g.concat([a, e], 0))
    assert not place_parts(g.finish().functions[0].regions[0])


def test_nested_concatenations_lie_in_the_outermost():
    g = GraphBuilder("nested")
    x = g.input("x", TensorType((4, 4), float32))
    inner = g.concat([exp(g, x), exp(g, exp(g, x))], 1)
    g.output(g.concat([exp(g, inner), inner], 0))
    run = compiled(g.finish(), [data(4, 4)])
    assert in_place(run) == 3
    owned = [v for v, place in run.plan.place.items() if place != INPUT]
    assert [v.type.shape for v in owned if isinstance(v.op, ConcatOp)] == [(8, 8)]


def test_a_part_that_no_kernel_computes_is_copied(monkeypatch: pytest.MonkeyPatch):
    g = GraphBuilder("interpreted")
    x = g.input("x", TensorType((4, 4), float32))
    a, b = exp(g, x), g.loop((4, 4), lambda *i: g.unary("neg", g.load(x, *i)))
    g.output(g.concat([a, b], 1))
    real = Planner._code  # pyright: ignore[reportPrivateUsage]

    def failing(self: Planner, op: Any) -> Any:
        if op is a.op:
            raise RuntimeError("no kernel")
        return real(self, op)

    monkeypatch.setattr(Planner, "_code", failing)
    monkeypatch.setenv("TESSERA_STRICT", "0")
    with pytest.warns(UserWarning, match="no kernel"):
        run = compiled(g.finish(), [data(4, 4)])
    assert any(isinstance(s, Interpret) for s in run.plan.steps)


def test_a_loop_is_split_beside_a_product():
    g = GraphBuilder("product")
    x = g.input("x", TensorType((64, 512), float32))
    w = g.input("w", TensorType((512, 512), float32))
    g.output(joined(g, [g.matmul(x, w), x], 1))
    module = optimize(g.finish())
    (concat,) = concats(module)
    assert [v.type.shape for v in concat.parts] == [(64, 512)] * 2
    run = compiled(module, [data(64, 512), data(512, 512) / 30])
    assert launches(run) == 2
    assert in_place(run) == 2


def test_states_of_steps_are_stacked_without_a_kernel():
    g = GraphBuilder("steps")
    x, w = (g.input(n, TensorType((256, 256), float32)) for n in "xw")
    states = [x]
    for _ in range(3):
        states.append(exp(g, g.matmul(states[-1], w)))
    parts = [
        g.view(s, IndexMap(3, [dim(0), dim(2)]), TensorType((256, 1, 256), float32))
        for s in states[1:]
    ]
    g.output(joined(g, parts, 1))
    run = compiled(optimize(g.finish()), [data(256, 256) / 99, data(256, 256) / 99])
    assert launches(run) == 3


def test_a_loop_that_others_share_rows_with_stays_whole():
    g = GraphBuilder("rows")
    x, y = (g.input(n, TensorType((64, 128), float32)) for n in "xy")
    whole = joined(g, [x, y], 1)
    g.output(g.loop((64,), lambda i: g.reduce("sum", [256], lambda r: g.load(whole, i, r))))
    assert not concats(optimize(g.finish()))


def test_memory_bounds_what_is_split():
    """The whole would be held for as long as its first part."""
    g = GraphBuilder("long")
    x, w = (g.input(n, TensorType((256, 256), float32)) for n in "xw")
    first = g.matmul(x, w)
    at = first
    for _ in range(3):
        (at,) = g.extern("copy", [at], [Place(0)], [at.type])
    g.output(joined(g, [first, at], 0))
    body = g.finish().functions[0].regions[0]
    bound = peak_bytes([[op] for op in body], Uses(body, cost.sizes({})))
    assert bound == 4 * 256 * 256 * 4
    assert not split_index_sets(body, cost.CPU, cost.sizes({}), {}, 0)
    assert sum(isinstance(op, LoopOp) for op in body) == 1
    assert not any(isinstance(op, ConcatOp) for op in body)
