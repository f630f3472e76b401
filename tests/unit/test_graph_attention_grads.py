"""The gradients of attention are a kernel or two, which compute what the gradients mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tessera.backends.compiler import GPUTarget
from tessera.dtypes import bfloat16, dtype, float16, float32, float64
from tessera.errors import IRError
from tessera.graph.calls.build_kernels import Kernels
from tessera.graph.calls.executable import machine_of
from tessera.graph.index import parse_map, sym
from tessera.graph.ir.attention_meaning import attention, key_grads, query_grad
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import AttentionQueryGradOp
from tessera.graph.ir.types import TensorType
from tessera.graph.planning.plan import Launch
from tessera.graph.planning.planner import Planner
from tessera.interp.numerics import from_storage, to_storage
from tessera.ir import Module, parse_module, print_module, verify
from tessera.runtime.driver import driver
from tests.unit.graph_kit import (
    HOPPER,
    built_for_hopper,
    check,
    compiled,
    fp32,
    module_of,
    values_of,
)

RNG = np.random.default_rng(0)
# batch, heads, heads of keys, queries, keys, dimensions of both
Sizes = tuple[Any, Any, Any, Any, Any, int, int]


def gradients(
    sizes: Sizes, causal: bool, bias: bool, elem: dtype = float32, kept: int = 3
) -> Module:
    b, h, groups, m, n, d, e = sizes
    acc = float64 if elem is float64 else float32

    def build(g: GraphBuilder) -> Any:
        q = g.input("q", TensorType((b, h, m, d), elem))
        k = g.input("k", TensorType((b, groups, n, d), elem))
        v = g.input("v", TensorType((b, groups, n, e), elem))
        grad = g.input("grad", TensorType((b, h, m, e), elem))
        logs, delta = (g.input(name, TensorType((b, h, m), acc)) for name in ("logs", "delta"))
        c = g.input("c", fp32(1, h, m, n)) if bias else None
        return g.attention_grads(q, k, v, grad, logs, delta, d**-0.5, c, causal)[:kept]

    return module_of(build)


def arrays(sizes: Sizes, causal: bool, bias: bool, elem: dtype = float32) -> list[Any]:
    """Operands as attention leaves them. Of a bias some elements are -inf, and all those of one query."""
    b, h, groups, m, n, d, e = sizes
    shapes = ((b, h, m, d), (b, groups, n, d), (b, groups, n, e), (b, h, m, e))
    q, k, v, grad = (RNG.standard_normal(s).astype(np.float32) for s in shapes)
    c = RNG.standard_normal((1, h, m, n)).astype(np.float32) if bias else None
    if c is not None:
        c[RNG.random(c.shape) < 0.2] = -np.inf
        c[:, :, m // 2] = -np.inf
    out, logs = attention(q, k, v, c, scale=d**-0.5, causal=causal)
    delta = (out * grad).sum(-1).astype(logs.dtype)
    acc = np.float64 if elem is float64 else np.float32
    made = [to_storage(x if elem is bfloat16 else x.astype(acc), elem) for x in (q, k, v, grad)]
    return [*made, logs.astype(acc), delta.astype(acc), *([] if c is None else [c])]


def test_gradients_are_those_of_finite_differences():
    """What the ops mean, with shared heads, a bias and a causal mask, in fp64."""
    q, k, v, grad = (
        RNG.standard_normal(s) for s in ((1, 4, 5, 3), (1, 2, 6, 3), (1, 2, 6, 2), (1, 4, 5, 2))
    )
    c = RNG.standard_normal((1, 1, 5, 6))
    out, logs = attention(q, k, v, c, scale=0.7, causal=True)
    rest = (c, grad, logs, (out * grad).sum(-1))
    found = [*query_grad(q, k, v, *rest, scale=0.7, causal=True)]
    found += key_grads(q, k, v, *rest, scale=0.7, causal=True)
    for x, got in zip((q, k, v), found, strict=True):
        want = np.zeros_like(x)
        for at in np.ndindex(*x.shape):
            ends: list[float] = []
            for step in (1e-6, -1e-6):
                kept, x[at] = x[at], x[at] + step
                ends.append(float((attention(q, k, v, c, scale=0.7, causal=True)[0] * grad).sum()))
                x[at] = kept
            want[at] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(got, want, atol=1e-7)


def check_both(module: Module, given: list[Any]) -> None:
    """One kernel, for each head of keys, and two, on CPUs, and those for GPUs, compute what the graph means."""
    wanted = interpret(module, [np.copy(x) for x in given])
    cpu = machine_of(GPUTarget("cpu", "native", 1))
    for machine, kernels in (
        (replace(cpu, lanes=1), 1),
        (replace(cpu, lanes=1000), 2),
        (machine_of(HOPPER), 2),
    ):
        exe = compiled(module.clone(), machine)  # planning changes the graph
        assert [type(step) for step in exe.plan.steps] == [Launch] * kernels
        for got, want in zip(exe([np.copy(x) for x in given]), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


CASES: list[tuple[Sizes, bool, bool]] = [
    ((2, 4, 4, 16, 16, 8, 8), False, False),
    ((1, 4, 2, 70, 200, 16, 24), False, False),
    ((2, 2, 1, 100, 100, 16, 16), True, False),
    ((1, 2, 2, 33, 50, 20, 16), True, True),
    ((2, 4, 2, 150, 33, 16, 16), True, True),
    ((1, 1, 1, 1, 1, 1, 1), False, False),
]


@pytest.mark.parametrize(("sizes", "causal", "bias"), CASES)
def test_gradients_of_any_sizes(sizes: Sizes, causal: bool, bias: bool):
    check_both(gradients(sizes, causal, bias), arrays(sizes, causal, bias))


@pytest.mark.parametrize("logs", [-300, 300])
def test_what_is_outside_of_the_sizes_has_no_weight(logs: int):
    """It would be infinite where scores are far below those of 0 that stand there."""
    sizes: Sizes = (1, 2, 2, 33, 50, 16, 16)
    *given, c = arrays(sizes, False, True)
    given[4] += np.float32(logs) * (given[4] != 0)
    check_both(gradients(sizes, False, True), [*given, c + np.float32(logs)])


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_sizes_that_calls_tell(bias: bool):
    module = gradients((2, 4, 2, sym("s1"), sym("s2"), 20, 16), not bias, bias)
    for m, n in ((50, 300), (130, 70), (1, 1)):
        check_both(module, arrays((2, 4, 2, m, n, 20, 16), not bias, bias))


@pytest.mark.parametrize("elem", [float64, float16, bfloat16], ids=lambda e: e.short)
def test_gradients_of_any_type(elem: dtype):
    sizes: Sizes = (1, 2, 2, 40, 40, 16, 16)
    given = arrays(sizes, True, False, elem)
    module = gradients(sizes, True, False, elem)
    kinds = [elem] * 4 + [float64 if elem is float64 else float32] * 2
    meant = interpret(module, [from_storage(x, t) for x, t in zip(given, kinds, strict=True)])
    found = values_of(compiled(module)(list(given)), module)
    near = 1e-9 if elem is float64 else 0.03
    for got, want in zip(found, meant, strict=True):
        np.testing.assert_allclose(got, want, rtol=near, atol=near)


def test_gradients_are_read_and_written_through_strides():
    """Operands that are views, a gradient that is the same for all queries, results in the order of heads last."""

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(2, 70, 3, 4, 16))
        part = TensorType((2, 4, 70, 16), float32)
        q, k, v = (
            g.view(x, parse_map(f"(d0, d1, d2, d3) -> (d0, d2, {i}, d1, d3)"), part)
            for i in range(3)
        )
        grad = g.view(
            g.input("grad", fp32(16)), parse_map("(d0, d1, d2, d3) -> (d3)"),
            TensorType(part.shape, float32, (0, 0, 0, 1)),
        )  # fmt: skip
        logs, delta = (g.input(name, fp32(2, 4, 70)) for name in ("logs", "delta"))
        found = g.attention_grads(q, k, v, grad, logs, delta, 0.25)
        for r in found:
            r.type = TensorType(part.shape, float32, (70 * 4 * 16, 16, 4 * 16, 1))
        return found

    x = RNG.standard_normal((2, 70, 3, 4, 16)).astype(np.float32)
    grad = RNG.standard_normal(16).astype(np.float32)
    q, k, v = np.moveaxis(x, (2, 3), (0, 2))
    out, logs = attention(q, k, v, None, scale=0.25, causal=False)
    delta = (out @ grad).astype(np.float32)
    check_both(module_of(build), [x, grad, logs.astype(np.float32), delta])


def test_gradients_print_and_parse():
    module = gradients((2, 4, 2, sym("s1"), 8, 16, 16), True, True)
    again = parse_module(print_module(module))
    verify(again)
    assert print_module(again) == print_module(module)


def test_a_gradient_of_another_shape_is_refused():
    g = GraphBuilder("graph")
    q, grad = g.input("q", fp32(1, 2, 4, 8)), g.input("grad", fp32(1, 2, 4, 6))
    rows = g.input("rows", fp32(1, 2, 4))
    g.output(g.b.emit(AttentionQueryGradOp(q, q, q, None, grad, rows, rows, scale=1.0)))
    with pytest.raises(IRError, match="is not one of attention's result"):
        verify(g.finish())


SIMULATED: list[tuple[Sizes, bool, bool, dtype]] = [
    ((1, 2, 1, 20, 40, 16, 16), True, True, float32),
    ((1, 1, 1, 70, 70, 64, 64), True, False, bfloat16),
]


@pytest.mark.parametrize(("sizes", "causal", "bias", "elem"), SIMULATED)
def test_kernels_for_gpus_run_in_the_simulator(
    sizes: Sizes, causal: bool, bias: bool, elem: dtype, simulator: GPUTarget
):
    module = gradients(sizes, causal, bias, elem)
    given = arrays(sizes, causal, bias, elem)
    kinds = [elem] * 4 + [float32] * 3
    values = [from_storage(x, t) for x, t in zip(given, kinds, strict=False)]
    meant = interpret(module, values)
    function: Any = module.functions[0]
    plan = Planner(function, machine_of(HOPPER)).run()
    kernels = Kernels(simulator)
    kernels.build(plan)
    memory: dict[Any, Any] = dict(zip(function.body.args, map(np.copy, given), strict=True))
    for r in function.body.terminator.operands:
        memory[r] = to_storage(np.zeros(r.type.shape, np.float32), elem)
    for step in plan.steps:
        assert isinstance(step, Launch)
        kernel: Any = kernels.compiled[step.code.name]
        kernel[step.code.programs, 1, 1](*(memory[p] for p in step.code.parameters))
    near = 1e-4 if elem is float32 else 0.03
    for r, want in zip(function.body.terminator.operands, meant, strict=True):
        np.testing.assert_allclose(from_storage(memory[r], elem), want, rtol=near, atol=near)


@pytest.fixture
def simulator() -> Iterator[GPUTarget]:
    driver.set_active("simt")
    yield driver.active.get_current_target()
    driver.reset_active()


@pytest.mark.parametrize("elem", [float32, bfloat16], ids=lambda e: e.short)
def test_gradients_are_built_for_hopper(elem: dtype):
    module = gradients((2, 4, 2, sym("s1"), sym("s1"), 64, 64), True, False, elem)
    kernels = list(built_for_hopper(module).compiled.values())
    assert len(kernels) == 2 and all(k.asm["cubin"] for k in kernels)


def test_gradients_that_nobody_needs_are_not_computed():
    """Of keys that are not trained, say: the kernel for queries is all that is left."""
    module = gradients((2, 4, 4, 16, 16, 8, 8), False, False, kept=1)
    given = arrays((2, 4, 4, 16, 16, 8, 8), False, False)
    exe = check(module, given, atol=1e-4)
    (step,) = exe.plan.steps
    assert isinstance(step, Launch) and "attention_dq" in step.code.name


def test_one_kernel_can_be_left_out(monkeypatch: pytest.MonkeyPatch):
    module = gradients((2, 4, 4, 16, 16, 8, 8), False, False)
    machine = replace(machine_of(GPUTarget("cpu", "native", 1)), lanes=1)
    for off, kernels in [("", 1), ("graph-join-gradients", 2)]:
        monkeypatch.setenv("TESSERA_DISABLE", off)
        assert len(compiled(module.clone(), machine).plan.steps) == kernels
