"""Which roundings go under numerics="fast", and which stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tessera.dtypes import bfloat16, dtype, float8e4nv, float16, float32, float64, int32
from tessera.errors import IRError
from tessera.graph.calls.executable import machine_of
from tessera.graph.emit.kernel import emit
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import LoopOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.ir import Module, Value, print_module, verify
from tessera.ops import CastOp
from tests.unit.graph_kit import HOPPER

rng = np.random.default_rng(2)


def casts(module: Module) -> list[str]:
    return [f"{op.x.type} → {op.result.type}" for op in module.walk() if isinstance(op, CastOp)]


def kernel_of(module: Module) -> str:
    """The tile IR of a graph's only loop."""
    (loop,) = (op for op in module.functions[0].regions[0] if isinstance(op, LoopOp))
    return emit(loop, machine_of(HOPPER)).text


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
        return g.cast(g.mul(wide, g.const(number, float32)), x.type.elem, contract=True)

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
                g.sub(g.cast(g.load(square, i, j), float32), g.load(total, i)), float16, True
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


@pytest.mark.parametrize("narrow", [float16, bfloat16, float8e4nv, float32])
def test_a_conversion_that_the_program_asks_for_stays(narrow: dtype):
    """x - x.to(narrow).to(x's type) is what the conversion loses."""
    wide = float64 if narrow is float32 else float32

    def body(g: GraphBuilder, x: Value) -> Value:
        def lost(*i: Value) -> Value:
            v = g.mul(g.cast(g.load(x, *i), wide), g.const(1.1, wide))
            return g.sub(v, g.cast(g.cast(v, narrow), wide))

        return g.loop(x.type.shape, lost)

    module, x = graph(body)
    (wanted,) = interpret(module.clone(), [x])
    (found,) = interpret(optimize(module, round_between=False), [x])
    assert abs(wanted).max() > 0
    np.testing.assert_array_equal(found, wanted)


def test_kernels_have_no_marks():
    """Equal kernels are one, whether an operation or the program rounds."""

    def body(g: GraphBuilder, x: Value, contract: bool) -> Value:
        return g.loop(
            x.type.shape,
            lambda *i: g.cast(g.exp(g.cast(g.load(x, *i), float32)), float16, contract),
        )

    marked, plain = (graph(lambda g, x, k=k: body(g, x, k))[0] for k in (True, False))
    assert "contract" in print_module(marked) and "contract" not in print_module(plain)
    assert kernel_of(marked) == kernel_of(plain)


def test_only_what_rounds_may_be_marked():
    module, _ = graph(lambda g, x: g.loop((8, 32), lambda *i: g.cast(g.load(x, *i), float32, True)))
    with pytest.raises(IRError, match="nothing is rounded from fp16 to fp32"):
        verify(module)


def test_results_of_other_types_are_made_of_what_was_rounded_to_them():
    """bf16 → fp16 is no way back: the number was not computed in fp16."""

    def body(g: GraphBuilder, x: Value) -> Value:
        return g.loop(x.type.shape, lambda *i: g.cast(g.cast(g.load(x, *i), bfloat16), float16))

    module, _ = graph(body)
    assert casts(optimize(module, round_between=False)) == ["fp16 → bf16", "bf16 → fp16"]
