"""Graphs under the NumPy interpreter against NumPy itself; their text reads back and the verifier takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import bfloat16, float16, float32, int1, int32, int64
from tessera.errors import InterpreterError, IRError
from tessera.graph.index import IndexMap, dim, parse_map, sym
from tessera.graph.ir import interp
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import LoadOp, LoopOp
from tessera.graph.ir.types import ForeignType, Place, TensorType
from tessera.graph.passes import optimize
from tessera.ir import Module, Value, parse_module, print_module, verify
from tessera.ops import YieldOp

rng = np.random.default_rng(7)
N = sym("s0")


def finished(g: GraphBuilder, *values: Value) -> Module:
    """The module, verified, and equal to what its text reads back as."""
    g.output(*values)
    module = g.finish()
    verify(module)
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert print_module(again) == text
    return again


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def matrix(g: GraphBuilder, columns: int = 8) -> Value:
    return g.input("x", TensorType((N, columns), float32))


def test_softmax_over_rows():
    g = GraphBuilder("softmax")
    x = matrix(g)

    def row(i: Value) -> Value:
        m = g.reduce("max", [8], lambda r: g.load(x, i, r))
        e = g.loop([8], lambda r: g.exp(g.sub(g.load(x, i, r), m)))
        s = g.reduce("sum", [8], lambda r: g.load(e, r))
        return g.loop([8], lambda r: g.div(g.load(e, r), s))

    module = finished(g, g.loop([N], row))
    a = floats(5, 8)
    e = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(interpret(module, [a])[0], e / e.sum(1, keepdims=True), rtol=1e-6)
    assert interpret(module, [a[:0]])[0].shape == (0, 8)


def test_layer_norm_by_welford():
    g = GraphBuilder("norm")
    x = matrix(g, 37)

    def row(i: Value) -> list[Value]:
        mean, m2, count = g.welford([37], lambda r: g.load(x, i, r))
        return [mean, g.div(m2, count)]

    mean, variance = interpret(finished(g, *g.loops([N], row)), [a := floats(4, 37)])
    np.testing.assert_allclose(mean, a.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, a.var(1), rtol=1e-5)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (0, 8)])
def test_full_reductions(kind: str, shape: tuple[int, int]):
    g = GraphBuilder("reduce")
    x = matrix(g)
    module = finished(g, g.reduce(kind, [N, 8], lambda i, j: g.load(x, i, j)))
    a = floats(*shape)
    fn: Callable[..., Any] = getattr(np, kind)
    empty = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf}[kind]
    wanted = fn(a) if a.size else empty
    np.testing.assert_allclose(interpret(module, [a])[0], wanted, rtol=1e-5, atol=1e-6)


def test_a_nan_goes_through_extrema_and_the_first_of_equals_is_found():
    g = GraphBuilder("arg")
    x = matrix(g, 6)
    outs = [
        out
        for kind in ("max", "min")
        for out in g.loops([N], lambda i, k=kind: g.arg_reduce(k, 6, lambda r: g.load(x, i, r)))
    ]
    a = np.array(
        [[1, 5, 5, 0, 0, 2], [np.nan, 1, 2, np.nan, 3, 4], [-np.inf] * 6, [np.inf] * 6], np.float32
    )
    top, where, low, low_at = interpret(finished(g, *outs), [a])
    np.testing.assert_array_equal(top, a.max(1))
    np.testing.assert_array_equal(where, a.argmax(1))
    np.testing.assert_array_equal(low, a.min(1))
    np.testing.assert_array_equal(low_at, a.argmin(1))


def test_any_and_all():
    g = GraphBuilder("logic")
    x = g.input("x", TensorType((N, 4), int1))
    outs = [
        g.loop([N], lambda i, k=kind: g.reduce(k, [4], lambda r: g.load(x, i, r)))
        for kind in ("any", "all")
    ]
    a = np.array([[0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]], bool)
    some, every = interpret(finished(g, *outs), [a])
    np.testing.assert_array_equal(some, a.any(1))
    np.testing.assert_array_equal(every, a.all(1))


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(reverse: bool):
    g = GraphBuilder("scan")
    x = matrix(g, 13)

    def row(i: Value) -> Value:
        return g.scan("sum", 13, lambda r: g.load(x, i, r), reverse=reverse)

    a = floats(3, 13)
    wanted = np.cumsum(a[:, ::-1], 1)[:, ::-1] if reverse else np.cumsum(a, 1)
    got = interpret(finished(g, g.loop([N], row)), [a])[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("descending", [False, True])
def test_sorts_are_stable_and_put_nan_above_all(descending: bool):
    g = GraphBuilder("sort")
    x = matrix(g, 7)

    def row(i: Value) -> list[Value]:
        return g.sort(7, lambda r: (g.load(x, i, r), r), descending)

    a = np.array([[3, 1, np.nan, 1, 3, 0, 2], [1, 1, 1, 1, 1, 1, 1]], np.float32)
    values, order = interpret(finished(g, *g.loops([N], row)), [a])
    first = [2, 0, 4, 6, 1, 3, 5] if descending else [5, 1, 3, 6, 0, 4, 2]
    np.testing.assert_array_equal(order, [first, list(range(7))])
    np.testing.assert_array_equal(values, np.take_along_axis(a, order, 1))


@pytest.mark.parametrize("mode", ["set", "add", "max"])
def test_scatters(mode: str):
    g = GraphBuilder("scatter")
    base = g.input("base", TensorType((5, 3), float32))
    at = g.input("at", TensorType((N,), int64))
    v = g.input("v", TensorType((N, 3), float32))

    def body(i: Value, j: Value) -> list[Value]:
        row = g.load(at, i)
        keep = g.compare("ge", row, g.const(0, int64))
        return [row, j, g.load(v, i, j), keep]

    module = finished(g, g.scatter(base, [N, 3], body, mode))
    b, where, new = floats(5, 3), np.array([4, 0, -1, 4]), floats(4, 3)
    wanted = b.copy()
    for k, row in enumerate(where):
        if row >= 0:
            old = wanted[row]
            wanted[row] = {"set": new[k], "add": old + new[k], "max": np.maximum(old, new[k])}[mode]
    kept = b.copy()
    np.testing.assert_allclose(interpret(module, [b, where, new])[0], wanted, rtol=1e-6)
    np.testing.assert_array_equal(b, kept)


def test_views_and_masked_loads_join_two_tensors():
    g = GraphBuilder("cat")
    x = g.input("x", TensorType((N, 3), float32))
    y = g.input("y", TensorType((2, 3), float32))
    turned = g.view(x, parse_map("(d0, d1) -> (d1, d0)"), TensorType((3, N), float32, (1, 3)))

    def body(i: Value, j: Value) -> Value:
        first = g.compare("lt", j, g.index(N))
        other = g.load_at(
            y,
            IndexMap(2, [dim(1) - N, dim(0)]),
            [i, j],
            g.binary("xor", first, g.const(True, int1)),
        )
        return g.load(turned, i, j, mask=first, other=other)

    a, b = floats(4, 3), floats(2, 3)
    got = interpret(finished(g, g.loop([3, N + 2], body)), [a, b])[0]
    np.testing.assert_array_equal(got, np.concatenate([a.T, b.T], 1))
    assert interpret(parse_module(print_module(g_only_view())), [a])[0].shape == (3, 4)


def g_only_view() -> Module:
    g = GraphBuilder("view")
    x = g.input("x", TensorType((N, 3), float32))
    return finished(g, g.view(x, parse_map("(d0, d1) -> (d1, d0)"), TensorType((3, N), float32)))


def test_indirect_loads_gather():
    g = GraphBuilder("embedding")
    w = g.input("w", TensorType((10, 4), float32))
    ids = g.input("ids", TensorType((N,), int64))
    out = g.loop([N, 4], lambda i, j: g.load(w, g.load(ids, i), j))
    a, at = floats(10, 4), np.array([3, 3, 9])
    module = finished(g, out)
    np.testing.assert_array_equal(interpret(module, [a, at])[0], a[at])
    with pytest.raises(InterpreterError, match="outside"):
        interpret(module, [a, np.array([10])])


def test_matmul_rounds_once():
    g = GraphBuilder("mm")
    a = g.input("a", TensorType((2, N, 8), float16))
    b = g.input("b", TensorType((2, 8, 5), float16))
    module = finished(g, g.matmul(a, b, elem=float32))
    x, y = floats(2, 3, 8).astype(np.float16), floats(2, 8, 5).astype(np.float16)
    wanted = np.matmul(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(interpret(module, [x, y])[0], wanted)


def test_scalars_symbols_and_bf16():
    g = GraphBuilder("scale")
    g.input("n", int64, symbol="s1")
    x = g.input("x", TensorType((N, 2), bfloat16))
    factor = g.input("factor", float32)

    def body(i: Value, j: Value) -> Value:
        n = g.cast(g.index(sym("s1") * 2 + dim(0), j), float32)
        return g.cast(g.mul(g.add(g.cast(g.load(x, i, j), float32), n), factor), bfloat16)

    got = interpret(finished(g, g.loop([N, 2], body)), [3, np.ones((2, 2)), 1.5])[0]
    np.testing.assert_array_equal(got, [[10.5, 12], [10.5, 12]])


def test_writes_are_seen_in_the_end_only():
    g = GraphBuilder("write")
    x = g.input("x", TensorType((4,), float32))
    doubled = g.loop([4], lambda i: g.add(g.load(x, i), g.load(x, i)))
    g.write(x, doubled)
    module = finished(g, g.loop([4], lambda i: g.load(x, i)))
    a = floats(4)
    old = a.copy()
    (copy,) = interpret(module, [a])
    np.testing.assert_array_equal(copy, old)
    np.testing.assert_array_equal(a, old * 2)


def test_arguments_may_be_exchanged():
    g = GraphBuilder("swap")
    x, y = (g.input(name, TensorType((4,), float32)) for name in "xy")
    kept = g.loop([4], lambda i: g.load(x, i))
    g.write(x, y)
    g.write(y, kept)
    module = finished(g)
    for optimized in (False, True):
        a, b = floats(4), floats(4)
        old = a.copy(), b.copy()
        interpret(optimize(module) if optimized else module, [a, b])
        np.testing.assert_array_equal((b, a), old)
    assert any(isinstance(op, LoopOp) for op in module.walk())


def test_externs_are_run_by_their_library():
    g = GraphBuilder("extern")
    x = g.input("x", TensorType((N, 3), float32))
    out = g.extern("fft", [x], [Place(0), N], [TensorType((N, 2), ForeignType("complex64", 64))])
    module = finished(g, out[0])
    a = floats(4, 3)
    got = interpret(module, [a], lambda op, arrays, symbols: [np.fft.rfft(arrays[0])])[0]
    np.testing.assert_allclose(got, np.fft.rfft(a))
    with pytest.raises(InterpreterError, match="nothing runs the extern 'fft'"):
        interpret(module, [a])


def test_large_loops_run_in_parts(monkeypatch: pytest.MonkeyPatch):
    g = GraphBuilder("parts")
    x = matrix(g)
    out = g.loop([N], lambda i: g.reduce("sum", [8], lambda r: g.load(x, i, r)))
    module = finished(g, out)
    a = floats(100, 8)
    whole = interpret(module, [a])[0]
    monkeypatch.setattr(interp, "CHUNK", 64)
    np.testing.assert_array_equal(interpret(module, [a])[0], whole)


def test_integers_keep_their_types():
    g = GraphBuilder("ints")
    x = g.input("x", TensorType((N,), int32))
    out = g.loop([N], lambda i: g.mul(g.load(x, i), g.cast(i, int32)))
    a = np.array([1 << 30, 1 << 30, 1 << 30], np.int32)
    got = interpret(finished(g, out), [a])[0]
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, [0, 1 << 30, -(1 << 31)])


# --- what the verifier refuses --------------------------------------------------------------------------------
def broken(change: Callable[[GraphBuilder, Value, Value], Value]) -> Module:
    g = GraphBuilder("broken")
    x = matrix(g)
    g.output(g.loop([N, 8], lambda i, j: change(g, x, j)))
    return g.finish()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda g, x, j: g.load(x, j), "does not give 2 indices"),
        (lambda g, x, j: g.emit(LoadOp(x, [j, g.cast(j, int32)])), "an index is not int64"),
        (lambda g, x, j: g.emit(LoadOp(x, [j, j], None, g.const(0.0, float32))), "needs a mask"),
        (lambda g, x, j: g.load(x, j, j, mask=j), "the mask is not int1"),
        (lambda g, x, j: g.add(x, x), "operands are not numbers"),
    ],
)
def test_what_the_verifier_refuses(change: Callable[..., Value], text: str):
    with pytest.raises(IRError, match=text):
        verify(broken(change))


def test_results_have_the_shape_of_the_loop():
    g = GraphBuilder("shape")
    x = matrix(g)
    value = g.loop([N, 8], lambda i, j: g.load(x, i, j))
    value.type = TensorType((N, 9), float32)
    g.output(value)
    with pytest.raises(IRError, match=r"should be .'tensor<s0x8xfp32>'"):
        verify(g.finish())


def test_a_loop_has_an_index_for_each_extent():
    g = GraphBuilder("indices")
    x = matrix(g)
    value = g.loop([N, 8], lambda i, j: g.load(x, i, j))
    assert isinstance(value.op, LoopOp)
    assert isinstance(value.op.body.terminator, YieldOp)
    value.op.body.add_arg(int64)
    g.output(value)
    with pytest.raises(IRError, match="must have 2 indices"):
        verify(g.finish())


@pytest.mark.parametrize(
    "text",
    [
        "tensor<fp32>",
        "tensor<s0x128xbf16>",
        "tensor<(s0 // 2)x(s0 * 4 + 1)xi64, strides=(s0 * 4 + 1, 1)>",
        "tensor<4x4xfp16, strides=(1, 4), device=cuda:1>",
        "tensor<3xforeign:complex64:64>",
        "tensor<(max_size)x2xi1>",
    ],
)
def test_type_texts_read_back(text: str):
    head = f"func {{name='f'}} (%x: {text}) {{"
    module = parse_module(f"module {{}} {{ {head} return [] }} }}")
    verify(module)
    assert head in print_module(module)
