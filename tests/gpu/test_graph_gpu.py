"""Kernels of graphs on a GPU, on torch's tensors, compared with the graphs' meaning in NumPy."""

# pyright: basic
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float16, float32, int64
from tessera.graph.index import sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.types import TensorType
from tessera.ir import Module

pytestmark = pytest.mark.gpu
DEVICE = "cuda:0"
RNG = np.random.default_rng(0)


def on_gpu(*shape: Any, elem: Any = float32) -> TensorType:
    return TensorType(shape, elem, None, DEVICE)


def run(module: Module, inputs: list[Any]) -> list[Any]:
    import torch  # pyright: ignore[reportMissingImports]

    from tessera.backends.compiler import GPUTarget
    from tessera.graph.calls.executable import compile_graph
    from tessera.graph.torch.host import TorchHost

    major, minor = torch.cuda.get_device_capability(0)
    host: Any = TorchHost({}, {}, DEVICE)
    exe = compile_graph(module, host, GPUTarget("cuda", 10 * major + minor, 32))
    found: list[Any] = []
    for _ in range(2):
        given = [torch.from_numpy(x.copy()).to(DEVICE) for x in inputs]
        found = [x.cpu().numpy() for x in exe(given)]
    return found


def check(build: Any, inputs: list[Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    g = GraphBuilder("graph", device=DEVICE)
    found = build(g)
    g.output(*(found if isinstance(found, list | tuple) else (found,)))
    module = g.finish()
    want = interpret(module, [x.copy() for x in inputs])
    for got, meant in zip(run(module, inputs), want, strict=True):
        np.testing.assert_allclose(got, meant, rtol=rtol, atol=atol)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("columns", [7, 128, 1000, 20000])
def test_softmax(columns: int):
    n = sym("s0")

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", on_gpu(n, columns))

        def row(i: Any) -> Any:
            m = g.reduce("max", [columns], lambda r: g.load(x, i, r))
            e = g.loop([columns], lambda r: g.exp(g.sub(g.load(x, i, r), m)))
            s = g.reduce("sum", [columns], lambda r: g.load(e, r))
            return g.loop([columns], lambda r: g.div(g.load(e, r), s))

        return g.loop([n], row)

    check(build, [numbers(37, columns)])


def test_transposes_columns_and_one_large_sum():
    def build(g: GraphBuilder) -> Any:
        x, y = g.input("x", on_gpu(1000, 700)), g.input("y", on_gpu(700, 1000))
        crossed = g.loop([1000, 700], lambda i, j: g.add(g.load(x, i, j), g.load(y, j, i)))
        columns = g.loop([700], lambda j: g.reduce("sum", [1000], lambda i: g.load(x, i, j)))
        total = g.loop([], lambda: g.reduce("sum", [1000, 700], lambda i, j: g.load(crossed, i, j)))
        return crossed, columns, total

    check(build, [numbers(1000, 700), numbers(700, 1000)], rtol=1e-3, atol=1e-2)


def test_welford_argmax_and_running_sums():
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", on_gpu(50, 3000))
        moments = g.loops([50], lambda i: g.welford([3000], lambda r: g.load(x, i, r)))
        largest = g.loops([50], lambda i: g.arg_reduce("max", 3000, lambda r: g.load(x, i, r)))
        runs = g.loop([50], lambda i: g.scan("sum", 3000, lambda r: g.load(x, i, r)))
        return *moments, *largest, runs

    check(build, [numbers(50, 3000)], rtol=1e-3, atol=1e-3)


def test_rows_are_gathered_and_added_up():
    rows = RNG.integers(0, 500, (64, 32))

    def build(g: GraphBuilder) -> Any:
        table, at = g.input("t", on_gpu(500, 96)), g.input("at", on_gpu(64, 32, elem=int64))
        found = g.loop([64, 32, 96], lambda i, j, k: g.load(table, g.load(at, i, j), k))
        zeros = g.loop([500, 96], lambda i, j: g.const(0.0, float32))
        added = g.scatter(
            zeros,
            [64, 32, 96],
            lambda i, j, k: (g.load(at, i, j), k, g.load(found, i, j, k)),
            "add",
        )
        return found, added

    check(build, [numbers(500, 96), rows], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("m", "n", "causal"), [(70, 130, False), (128, 128, True), (300, 300, True)]
)
@pytest.mark.parametrize("elem", [float32, float16], ids=lambda e: e.short)
def test_attention_and_its_gradients(m: int, n: int, causal: bool, elem: Any):
    heads, groups, d, e = 4, 2, 64, 40

    def build(g: GraphBuilder) -> Any:
        q = g.input("q", on_gpu(2, heads, m, d, elem=elem))
        k = g.input("k", on_gpu(2, groups, n, d, elem=elem))
        v = g.input("v", on_gpu(2, groups, n, e, elem=elem))
        grad = g.input("grad", on_gpu(2, heads, m, e, elem=elem))
        out, logs = g.attention(q, k, v, d**-0.5, None, causal)

        def delta(*i: Any) -> Any:
            def term(r: Any) -> Any:
                a, b = (g.cast(g.load(x, *i, r), float32) for x in (grad, out))
                return g.mul(a, b)

            return g.reduce("sum", [e], term)

        deltas = g.loop([2, heads, m], delta)
        return out, *g.attention_grads(q, k, v, grad, logs, deltas, d**-0.5, None, causal)

    kind = np.float32 if elem is float32 else np.float16
    shapes = ((2, heads, m, d), (2, groups, n, d), (2, groups, n, e), (2, heads, m, e))
    near = 1e-4 if elem is float32 else 0.03
    check(build, [numbers(*s).astype(kind) for s in shapes], near, near)
