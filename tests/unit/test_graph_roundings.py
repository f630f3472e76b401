"""Which roundings go under numerics="fast", and which stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tessera.dtypes import bfloat16, float16, float32, int32
from tessera.graph.build import GraphBuilder
from tessera.graph.interp import interpret
from tessera.graph.passes import optimize
from tessera.graph.types import TensorType
from tessera.ir import Module, Value
from tessera.ops import CastOp

rng = np.random.default_rng(2)


def casts(module: Module) -> list[str]:
    return [f"{op.x.type} → {op.result.type}" for op in module.walk() if isinstance(op, CastOp)]


def half(x: np.ndarray) -> np.ndarray:
    """Numbers of fp16, as the interpreter has them."""
    return x.astype(np.float16)


def graph(body: Callable[[GraphBuilder, Value], Value]) -> tuple[Module, np.ndarray]:
    g = GraphBuilder("rounded")
    x = g.input("x", TensorType((8, 32), float16))
    g.output(body(g, x))
    return g.finish(), half(rng.standard_normal((8, 32)))


def step(g: GraphBuilder, x: Value, number: float) -> Value:
    """An operation on halves: computed in fp32, rounded."""

    def body(*i: Value) -> Value:
        wide = g.cast(g.load(x, *i), float32)
        return g.cast(g.mul(wide, g.const(number, float32)), x.type.elem)

    return g.loop(x.type.shape, body)


def test_a_chain_is_rounded_once():
    module, x = graph(lambda g, x: step(g, step(g, step(g, x, 1.1), 1.3), 0.7))
    eager = optimize(module.clone())
    fast = optimize(module.clone(), round_between=False)
    assert casts(fast) == ["fp16 → fp32", "fp32 → fp16"]
    assert len(casts(eager)) == 6
    (wanted,) = interpret(module.clone(), [x])
    np.testing.assert_array_equal(interpret(eager, [x])[0], wanted)
    real = x.astype(np.float64) * np.float32(1.1) * np.float32(1.3) * np.float32(0.7)
    (found,) = interpret(fast, [x])
    assert abs(found - real).max() < abs(wanted - real).max()


def test_rows_in_a_kernel_are_not_rounded():
    """The squares are read by two nests of the same kernel."""

    def body(g: GraphBuilder, x: Value) -> Value:
        square = step(g, step(g, x, 1.7), 0.3)
        total = g.loop(
            [8],
            lambda i: g.reduce("sum", [32], lambda r: g.cast(g.load(square, i, r), float32)),
        )
        return g.loop(
            [8, 32],
            lambda i, j: g.cast(
                g.sub(g.cast(g.load(square, i, j), float32), g.load(total, i)), float16
            ),
        )

    module, _ = graph(body)
    assert casts(optimize(module, round_between=False)).count("fp32 → fp16") == 1


def test_what_is_compared_or_an_integer_stays_rounded():
    def compared(g: GraphBuilder, x: Value) -> Value:
        y = step(g, x, 1.7)

        def body(*i: Value) -> Value:
            v = g.cast(g.load(y, *i), float32)
            return g.compare("eq", v, g.const(1.0, float32))

        return g.loop(y.type.shape, body)

    def counted(g: GraphBuilder, x: Value) -> Value:
        def body(*i: Value) -> Value:
            v = g.cast(g.cast(g.load(x, *i), int32), float16)
            return g.cast(g.cast(v, int32), float16)

        return g.loop(x.type.shape, body)

    for case, count in ((compared, 3), (counted, 4)):
        module, _ = graph(case)
        assert len(casts(optimize(module, round_between=False))) == count


def test_results_of_other_types_are_made_of_what_was_rounded_to_them():
    """bf16 → fp16 is no way back: the number was not computed in fp16."""

    def body(g: GraphBuilder, x: Value) -> Value:
        return g.loop(x.type.shape, lambda *i: g.cast(g.cast(g.load(x, *i), bfloat16), float16))

    module, _ = graph(body)
    assert casts(optimize(module, round_between=False)) == ["fp16 → bf16", "bf16 → fp16"]
