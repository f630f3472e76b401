"""Loops that share indices after these have changed places, or after one of them was split; extents of 1."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.index import dim, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import LoopOp, ReduceOp, ScatterOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.graph.passes.reindex import permute, split
from tessera.ir import Module, Value, verify

N = sym("s0")
rng = np.random.default_rng(5)


def tensor(*shape: Any) -> TensorType:
    return TensorType(shape, float32)


def loops(module: Module) -> list[LoopOp]:
    return [op for op in module.functions[0].regions[0] if isinstance(op, LoopOp)]


def results(module: Module, args: list[Any]) -> list[Any]:
    verify(module)
    return interpret(module, [x.copy() for x in args])


def same_after_passes(g: GraphBuilder, *out: Value) -> list[LoopOp]:
    """The loops after all passes, which change no bit."""
    g.output(*out)
    module = g.finish()
    args = [
        rng.standard_normal([5 if not isinstance(n, int) else n for n in a.type.shape]).astype(
            np.float32
        )
        for a in module.functions[0].regions[0].args
    ]
    wanted = results(module, args)
    optimize(module, verify=True)
    for a, b in zip(wanted, results(module, args), strict=True):
        np.testing.assert_array_equal(a, b)
    return loops(module)


def batch_norm(g: GraphBuilder, x: Value) -> Value:
    """x minus the sums over all but its second dimension."""
    n, c, h, w = x.type.shape
    s = g.loop([c], lambda j: g.reduce("sum", [n, h, w], lambda r, y, z: g.load(x, r, j, y, z)))
    return g.loop(x.type.shape, lambda i, j, k, m: g.sub(g.load(x, i, j, k, m), g.load(s, j)))


def group_norm(g: GraphBuilder, x: Value) -> Value:
    """x minus the sums over groups of 4 of its second dimension."""
    n, c, h = x.type.shape
    s = g.loop(
        [n, c // 4],
        lambda i, j: g.reduce(
            "sum", [4, h], lambda r, k: g.load(x, i, g.index(dim(0) * 4 + dim(1), j, r), k)
        ),
    )
    return g.loop(
        x.type.shape,
        lambda i, j, k: g.sub(g.load(x, i, j, k), g.load(s, i, g.index(dim(0) // 4, j))),
    )


@pytest.mark.parametrize(
    ("place", "side", "count"), [("cuda:0", 24, 1), ("cpu", 24, 2), ("cpu", 2, 1)]
)
def test_batch_norm_is_one_loop_over_channels(place: str, side: int, count: int):
    """On a CPU only a small one: vectors would gather elements that lie apart, which costs more than a launch."""
    g = GraphBuilder("batch_norm", device=place)
    x = g.input("x", TensorType((4, 64, side, side), float32, device=place))
    loop, *others = same_after_passes(g, batch_norm(g, x))
    assert len(others) == count - 1
    if not others:
        assert loop.extents == (64,)
        strides = (side**2, 64 * side**2, side, 1)  # it lies in memory as before
        assert loop.results[0].type.strides == strides


def test_few_channels_are_no_programs():
    """Two programs would take longer than two kernels that all of the machine works on."""
    g = GraphBuilder("few")
    assert len(same_after_passes(g, batch_norm(g, g.input("x", tensor(64, 2, 64, 64))))) == 2


def test_columns_are_no_programs():
    """Programs over the index that memory goes along would read a few elements of each row."""
    g = GraphBuilder("columns")
    x = g.input("x", tensor(4096, 64))
    s = g.loop([64], lambda j: g.reduce("sum", [4096], lambda r: g.load(x, r, j)))
    y = g.loop([4096, 64], lambda i, j: g.sub(g.load(x, i, j), g.load(s, j)))
    assert len(same_after_passes(g, y)) == 2


def test_group_norm_is_one_loop_over_groups():
    g = GraphBuilder("group_norm")
    (loop,) = same_after_passes(g, group_norm(g, g.input("x", tensor(4, 32, 36))))
    assert loop.extents == (4, 8)


def test_a_loop_over_all_rows_and_one_over_rows_of_batches():
    """A reduction over (24,) that is read at rows of (4, 6): its index becomes two."""
    g = GraphBuilder("flat")
    x = g.input("x", tensor(24, 64))
    s = g.loop([24], lambda i: g.reduce("sum", [64], lambda r: g.load(x, i, r)))
    flat = dim(0) * 6 + dim(1)
    y = g.loop(
        [4, 6, 64],
        lambda i, j, k: g.sub(g.load(x, g.index(flat, i, j), k), g.load(s, g.index(flat, i, j))),
    )
    (loop,) = same_after_passes(g, y)
    assert loop.extents == (4, 6)


def test_extents_of_one_go():
    g = GraphBuilder("units")
    x = g.input("x", tensor(N, 8))
    s = g.loop([1, N, 1], lambda z, i, k: g.reduce("sum", [1, 8], lambda q, r: g.load(x, i, r)))
    y = g.loop([1, N, 1], lambda z, i, k: g.unary("sqrt", g.unary("abs", g.load(s, z, i, k))))
    (loop,) = same_after_passes(g, y)
    assert loop.extents == (N,)
    (reduce,) = (op for op in loop.body if isinstance(op, ReduceOp))
    assert reduce.extents == (8,)


@pytest.mark.parametrize("kind", ["scan", "reduce"])
def test_loops_that_run_once_are_merged_but_for_scans(kind: str):
    """No kernel reduces what it scans in steps."""
    g = GraphBuilder("once")
    x = g.input("x", tensor(N))
    if kind == "scan":
        first = g.loop([], lambda: g.scan("sum", N, lambda r: g.load(x, r)))
        y = g.loop([], lambda: g.reduce("max", [N], lambda r: g.load(first, r)))
    else:
        first = g.loop([], lambda: g.reduce("sum", [N], lambda r: g.load(x, r)))
        y = g.loop([], lambda: g.reduce("max", [N], lambda r: g.sub(g.load(x, r), g.load(first))))
    assert len(same_after_passes(g, first, y)) == (2 if kind == "scan" else 1)


def test_extents_of_one_leave_scatters():
    g = GraphBuilder("scatter")
    x = g.input("x", tensor(7, 3))
    g.output(g.scatter(x, (1, 3), lambda i, j: [g.index(4), j, g.load(x, i, j)], mode="add"))
    module = g.finish()
    data = [rng.standard_normal((7, 3)).astype(np.float32)]
    (wanted,) = results(module, data)
    optimize(module)
    (scatter,) = (op for op in module.functions[0].regions[0] if isinstance(op, ScatterOp))
    assert scatter.extents == (3,)
    np.testing.assert_array_equal(results(module, data)[0], wanted)


@pytest.mark.parametrize("name", ["graph-permute-loops", "graph-split-loops"])
def test_switched_off(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TESSERA_DISABLE", name)
    assert name in os.environ["TESSERA_DISABLE"]
    g = GraphBuilder("off")
    x = g.input("x", tensor(4, 32, 36))
    if name == "graph-split-loops":
        made = same_after_passes(g, group_norm(g, x))
    else:
        made = same_after_passes(g, batch_norm(g, g.input("y", tensor(4, 32, 2, 4))))
    assert all(loop.extents != (32,) and loop.extents != (4, 8) for loop in made) or len(made) == 2


@pytest.mark.parametrize("strides", [None, (1, 8, 48)])
@pytest.mark.parametrize("change", [lambda op: permute(op, [2, 0, 1]), lambda op: split(op, 1, 3)])
def test_reordered_loops_compute_the_same(change: Any, strides: tuple[int, ...] | None):
    g = GraphBuilder("order")
    x = g.input("x", tensor(8, 6, 5))
    y, z = g.loops(
        [8, 6, 5],
        lambda i, j, k: [g.add(g.load(x, i, j, k), g.load(x, i, 0, k)), g.load(x, i, j, k)],
    )
    y.type = TensorType(y.type.shape, float32, strides)
    w = g.loop([6, 8], lambda a, b: g.unary("neg", g.load(z, b, a, 2)))
    g.output(y, w)
    module = g.finish()
    data = [rng.standard_normal((8, 6, 5)).astype(np.float32)]
    wanted = results(module, data)
    change(loops(module)[0])
    for a, b in zip(wanted, results(module, data), strict=True):
        np.testing.assert_array_equal(a, b)


def test_equal_tensors_are_returned_as_two():
    """Even where they are views of what a loop without extents of 1 makes: who gets one may write to it."""
    g = GraphBuilder("two")
    x = g.input("x", tensor(1, 8))
    made = [g.loop([1, 8], lambda i, j: g.exp(g.load(x, i, j))) for _ in range(2)]
    g.output(*made)
    module = optimize(g.finish())
    a, b = (v.op.x for v in module.functions[0].regions[0].terminator.operands)  # type: ignore[union-attr]
    assert a is not b
