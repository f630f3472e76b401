"""Matrix products become kernels, together with what makes their operands and what reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest

from tessera.backends.compiler import GPUTarget
from tessera.dtypes import bfloat16, dtype, float16, float32, float64, int32
from tessera.graph.calls.executable import machine_of
from tessera.graph.emit.matmul import _side, variants
from tessera.graph.index import IndexMap, dim, parse_map, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.ops import MatmulOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.graph.planning.plan import Launch
from tessera.interp.numerics import from_storage, to_storage
from tests.unit.graph_kit import HOPPER, built_for_hopper, compiled, fp32, module_of, values_of

RNG = np.random.default_rng(0)
EPSILON = {float64: 2.0**-52, float32: 2.0**-23, float16: 2.0**-10, bfloat16: 2.0**-7}
Epilogue = Callable[[GraphBuilder, Any, list[Any]], Any]


def numbers(elem: dtype, *shape: int) -> Any:
    x = RNG.standard_normal(shape)
    return to_storage(x.astype(np.float32) if elem is bfloat16 else x, elem)


def agree(
    module: Any, inputs: Sequence[Any], elems: Sequence[dtype], k: int, kernels: int = 1
) -> None:
    """Kernels, cut up as for a CPU and a GPU, are as close to the meaning as sums of k products in fp32 must be."""
    given = [from_storage(np.copy(x), e) for x, e in zip(inputs, elems, strict=True)]
    meant = interpret(module, given)
    optimize(module, verify=True)
    for machine in (None, machine_of(HOPPER)):
        exe = compiled(module, machine)
        assert len(exe.plan.steps) == kernels
        found = values_of(exe([np.copy(x) for x in inputs]), module)
        types = module.functions[0].returns
        for got, want, t in zip(found, meant, types, strict=True):
            inside = EPSILON[float64 if t.elem is float64 else float32]
            bound = EPSILON[t.elem] + (k + 2) * inside
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=bound, atol=4 * bound * max(k, 1) ** 0.5)


def product(
    elem: dtype, a: TensorType, b: TensorType, epilogue: Epilogue | None = None, *more: TensorType
) -> Any:
    def build(g: GraphBuilder) -> Any:
        x, y = g.input("a", a), g.input("b", b)
        rest = [g.input(f"c{k}", t) for k, t in enumerate(more)]
        acc = float64 if elem is float64 else float32
        p = g.matmul(x, y, acc, elem)
        return p if epilogue is None else epilogue(g, p, rest)

    return module_of(build)


@pytest.mark.parametrize("elem", [float64, float32, float16, bfloat16], ids=lambda e: e.short)
def test_products_of_any_type(elem: dtype):
    module = product(elem, TensorType((33, 40), elem), TensorType((40, 18), elem))
    agree(module, [numbers(elem, 33, 40), numbers(elem, 40, 18)], [elem, elem], 40)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_products_have_the_blocks_that_were_measured(backend: str):
    """All tilings that are timed are right, cut up as for either machine, with an epilogue, too."""
    module = product(
        float32,
        TensorType((130, 70), float32),
        TensorType((70, 140), float32),
        lambda g, p, rest: g.loop([130, 140], lambda i, j: g.unary("exp", g.load(p, i, j))),
    )
    (op,) = (x for x in module.functions[0].walk() if isinstance(x, MatmulOp))
    machine = machine_of(HOPPER if backend == "cuda" else GPUTarget("cpu", "native", 1))
    given = [numbers(float32, 130, 70), numbers(float32, 70, 140)]
    optimize(module, verify=True)
    found = variants(op, machine)
    programs: set[object] = set()
    for blocks in found:
        op.attrs["blocks"] = astuple(blocks)
        exe = compiled(module, machine)
        (step,) = exe.plan.steps
        assert isinstance(step, Launch)
        programs.add((step.code.text, step.code.warps))
        (got,) = exe([np.copy(x) for x in given])
        np.testing.assert_allclose(got, np.exp(given[0] @ given[1]), rtol=1e-3)
    assert len(programs) == len(found) >= 3


@pytest.mark.parametrize("shape", [(1, 1, 1), (300, 200, 170), (3, 0, 4), (0, 5, 4), (5, 260, 1)])
def test_products_of_any_sizes(shape: tuple[int, int, int]):
    m, k, n = shape
    given = [numbers(float32, m, k), numbers(float32, k, n)]
    fixed = product(float32, TensorType((m, k), float32), TensorType((k, n), float32))
    agree(fixed, given, [float32] * 2, k)
    s = [sym(f"s{i}") for i in range(3)]
    ab = TensorType((s[0], s[1]), float32), TensorType((s[1], s[2]), float32)
    agree(product(float32, *ab), given, [float32] * 2, k)


@pytest.mark.parametrize("k", [1, 40, 200])
@pytest.mark.parametrize("same", ["a", "b", "both", "everywhere"])
def test_operands_that_are_the_same_along_k(same: str, k: int):
    """Nothing masks a load that does not go along k: what lies beyond k must not be summed."""
    at_a, at_b = parse_map("(d0, d1) -> (d0, 0)"), parse_map("(d0, d1) -> (0, d1)")
    if same == "everywhere":
        at_a = at_b = parse_map("(d0, d1) -> (0, 0)")

    def build(g: GraphBuilder) -> Any:
        a, b = g.input("a", TensorType((9, k), float32)), g.input("b", TensorType((k, 18), float32))
        x = a if same == "b" else g.view(a, at_a, TensorType((9, k), float32))
        y = b if same == "a" else g.view(b, at_b, TensorType((k, 18), float32))
        return g.matmul(x, y, float32, float32)

    agree(module_of(build), [numbers(float32, 9, k), numbers(float32, k, 18)], [float32] * 2, k)


def bias_relu(g: GraphBuilder, p: Any, more: list[Any]) -> Any:
    m, n = p.type.shape
    return g.loop(
        [m, n],
        lambda i, j: g.binary(
            "max", g.add(g.load(p, i, j), g.load(more[0], j)), g.const(0.0, float32)
        ),
    )


def test_bias_and_activation_are_in_the_kernel_of_the_product():
    m = sym("s0")
    types = [
        TensorType((m, 24), float32),
        TensorType((24, 20), float32),
        TensorType((20,), float32),
    ]
    module = product(float32, types[0], types[1], bias_relu, types[2])
    given = [numbers(float32, *s) for s in ((37, 24), (24, 20), (20,))]
    agree(module, given, [float32] * 3, 24)


def test_a_residual_is_added_in_three_dimensions_and_both_results_are_stored():
    b, s = sym("s0"), sym("s1")

    def residual(g: GraphBuilder, p: Any, more: list[Any]) -> Any:
        def body(i: Any, j: Any, k: Any) -> list[Any]:
            map = IndexMap(3, [dim(0) * s + dim(1), dim(2)])
            y = g.add(g.load_at(p, map, [i, j, k]), g.load(more[0], i, j, k))
            return [y, g.cast(y, bfloat16)]

        return g.loops([b, s, 20], body)

    types = [TensorType((b * s, 24), float32), TensorType((24, 20), float32)]
    module = product(float32, types[0], types[1], residual, TensorType((b, s, 20), float32))
    given = [numbers(float32, *x) for x in ((15, 24), (24, 20), (3, 5, 20))]
    agree(module, given, [float32] * 3, 24)


@pytest.mark.parametrize("order", ["nt", "tn", "tt"])
def test_operands_in_any_order_of_memory_and_batches(order: str):
    def side(rows: int, columns: int, turned: bool) -> tuple[TensorType, Any]:
        strides = (rows * columns, 1, rows) if turned else None
        x = (
            numbers(float32, 6, columns, rows).transpose(0, 2, 1)
            if turned
            else numbers(float32, 6, rows, columns)
        )
        return TensorType((6, rows, columns), float32, strides), x

    (ta, a), (tb, b) = side(10, 24, order[0] == "t"), side(24, 18, order[1] == "t")

    def scaled(g: GraphBuilder, p: Any, more: list[Any]) -> Any:
        def body(i: Any, h: Any, j: Any, k: Any) -> Any:
            map = IndexMap(4, [dim(0) * 3 + dim(1), dim(2), dim(3)])
            return g.mul(g.load_at(p, map, [i, h, j, k]), g.const(0.5, float32))

        return g.loop([2, 3, 10, 18], body)

    agree(product(float32, ta, tb, scaled), [a, b], [float32] * 2, 24)


def test_views_and_casts_of_operands_are_in_the_kernel():
    def build(g: GraphBuilder) -> Any:
        a = g.input("a", TensorType((33, 40), bfloat16))
        w = g.input("w", TensorType((20, 40), float32))
        cast = g.loop([20, 40], lambda i, j: g.cast(g.load(w, i, j), bfloat16))
        turned = g.view(cast, parse_map("(d0, d1) -> (d1, d0)"), TensorType((40, 20), bfloat16))
        return g.matmul(a, turned, float32, bfloat16)

    module = module_of(build)
    given = [numbers(bfloat16, 33, 40), numbers(float32, 20, 40)]
    meant = interpret(module, [from_storage(given[0], bfloat16), given[1]])[0]
    optimize(module, verify=True)
    exe = compiled(module)
    assert len(exe.plan.steps) == 1
    (found,) = values_of(exe(list(given)), module)
    np.testing.assert_allclose(found, meant, rtol=2.0**-7, atol=0.02)


def test_a_cast_operand_does_not_count_where_k_ends():
    def build(g: GraphBuilder) -> Any:
        a = g.input("a", TensorType((5, 133), float32))
        w = g.input("w", TensorType((133, 7), float32))
        one = g.const(1.0, float32)
        inverse = g.loop([133, 7], lambda i, j: g.div(one, g.load(w, i, j)))
        return g.matmul(a, inverse)

    given = [numbers(float32, 5, 133), 1 + RNG.random((133, 7), np.float32)]
    module = module_of(build)
    want = given[0] @ (1 / given[1])
    for fused in (False, True):
        if fused:
            optimize(module)
        (found,) = compiled(module)(list(given))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


def test_a_loop_between_two_products_is_in_one_of_their_kernels():
    def build(g: GraphBuilder) -> Any:
        a = g.input("a", TensorType((8, 24), float32))
        b = g.input("b", TensorType((24, 20), float32))
        c = g.input("c", TensorType((20, 9), float32))
        p = g.matmul(a, b)
        half = g.loop([8, 20], lambda i, j: g.mul(g.load(p, i, j), g.const(0.5, float32)))
        return g.matmul(half, c)

    given = [numbers(float32, *s) for s in ((8, 24), (24, 20), (20, 9))]
    agree(module_of(build), given, [float32] * 3, 24 * 20, 2)


def test_a_product_with_other_readers_stays_a_tensor():
    def build(g: GraphBuilder) -> Any:
        a = g.input("a", TensorType((8, 24), float32))
        b = g.input("b", TensorType((24, 20), float32))
        p = g.matmul(a, b)
        turned = g.loop([20, 8], lambda i, j: g.exp(g.load(p, j, i)))
        sums = g.loop([8], lambda i: g.reduce("sum", [20], lambda r: g.load(p, i, r)))
        return p, turned, sums

    agree(
        module_of(build), [numbers(float32, 8, 24), numbers(float32, 24, 20)], [float32] * 2, 24, 3
    )


def test_whole_numbers_have_no_kernel():
    module = module_of(
        lambda g: g.matmul(
            g.input("a", TensorType((4, 5), int32)), g.input("b", TensorType((5, 3), int32)), int32
        )
    )
    a, b = (
        RNG.integers(-9, 9, (4, 5)).astype(np.int32),
        RNG.integers(-9, 9, (5, 3)).astype(np.int32),
    )
    exe = compiled(module)
    assert [type(s).__name__ for s in exe.plan.steps] == ["Interpret"]
    np.testing.assert_array_equal(exe([a, b])[0], a @ b)


@pytest.mark.parametrize("elem", [float32, bfloat16], ids=lambda e: e.short)
def test_products_are_built_for_hopper(elem: dtype):
    m = sym("s0")
    types = [TensorType((m, 256), elem), TensorType((256, 128), elem), TensorType((128,), float32)]

    def epilogue(g: GraphBuilder, p: Any, more: list[Any]) -> Any:
        return g.loop(
            [m, 128], lambda i, j: g.add(g.cast(g.load(p, i, j), float32), g.load(more[0], j))
        )

    module = product(elem, types[0], types[1], epilogue, types[2])
    optimize(module)
    (kernel,) = built_for_hopper(module).compiled.values()
    assert kernel.asm["cubin"]
    if elem is bfloat16:
        assert "wgmma" in kernel.asm["ptx"]


def test_what_reads_a_product_stays_its_epilogue_where_columns_of_it_are_summed():
    """As the gradient of a layer's bias: on GPUs rows that no product makes are summed where they are computed."""

    def build(g: GraphBuilder) -> Any:
        x, y = g.input("x", fp32(300, 64)), g.input("y", fp32(64, 128))
        p = g.matmul(x, y, float32, float32)
        made = g.loop([300, 128], lambda i, j: g.unary("tanh", g.load(p, i, j)))
        return made, g.loop([128], lambda j: g.reduce("sum", [300], lambda i: g.load(made, i, j)))

    given = [numbers(float32, 300, 64), numbers(float32, 64, 128)]
    exe = compiled(optimize(module_of(build)), replace(machine_of(HOPPER), groups=8))
    made, sums = exe([np.copy(x) for x in given])
    np.testing.assert_allclose(made, np.tanh(given[0] @ given[1]), atol=1e-3)
    np.testing.assert_allclose(sums, made.sum(0), rtol=1e-4, atol=1e-3)
    step = exe.plan.steps[0]
    assert isinstance(step, Launch) and "tanh" in step.code.name and "matmul" in step.code.name


@pytest.mark.parametrize(
    ("deep", "turned", "kernels"), [(32, False, 1), (8, False, 2), (32, True, 2)]
)
def test_heads_change_places_with_sequences_in_the_kernel(deep: int, turned: bool, kernels: int):
    """Where the elements of a head are long enough, and lie side by side in the result, too."""
    heads, rows = 64 // deep, 20

    def at(g: GraphBuilder, p: Any, i: Any, h: Any, s: Any, d: Any) -> Any:
        index = parse_map(f"(d0, d1, d2, d3) -> (d0 * {rows} + d2, d1 * {deep} + d3)")
        return g.unary("tanh", g.load_at(p, index, [i, h, s, d]))

    def build(g: GraphBuilder) -> Any:
        x, y = g.input("x", fp32(2 * rows, 24)), g.input("y", fp32(24, 64))
        p = g.matmul(x, y, float32, float32)
        if turned:
            return g.loop([2, heads, deep, rows], lambda i, h, d, s: at(g, p, i, h, s, d))
        return g.loop([2, heads, rows, deep], lambda i, h, s, d: at(g, p, i, h, s, d))

    given = [numbers(float32, 2 * rows, 24), numbers(float32, 24, 64)]
    agree(module_of(build), given, [float32, float32], 24, kernels)


def test_what_a_product_ends_with_is_no_part_of_other_loops():
    """Both are small, and of equal extents: as one kernel they would read the product, which is of fp32."""

    def build(g: GraphBuilder) -> Any:
        x, y = (
            g.input("x", TensorType((64, 64), bfloat16)),
            g.input("y", TensorType((64, 64), bfloat16)),
        )
        p, z = g.matmul(x, y, float32, float32), g.input("z", fp32(64, 64))
        first = g.loop([64, 64], lambda i, j: g.cast(g.load(z, j, i), bfloat16))
        return g.loop([64, 64], lambda i, j: g.cast(g.load(p, i, j), bfloat16)), first

    given = [*(numbers(bfloat16, 64, 64) for _ in range(2)), numbers(float32, 64, 64)]
    module = module_of(build)
    agree(module, given, [bfloat16, bfloat16, float32], 64, 2)
    steps = compiled(module, machine_of(HOPPER)).plan.steps
    assert sorted("matmul" in s.code.name for s in steps if isinstance(s, Launch)) == [False, True]


def test_what_stands_around_a_product_is_apart_where_that_is_switched_off(
    monkeypatch: pytest.MonkeyPatch,
):
    def build(g: GraphBuilder) -> Any:
        x, y = g.input("x", fp32(40, 24)), g.input("y", fp32(24, 32))
        twice = g.loop([40, 24], lambda i, j: g.add(g.load(x, i, j), g.load(x, i, j)))
        p = g.matmul(twice, y, float32, float32)
        return g.loop([40, 32], lambda i, j: g.unary("tanh", g.load(p, i, j)))

    given = [numbers(float32, 40, 24), numbers(float32, 24, 32)]
    for off, launches in (("", 1), ("graph-fuse-products", 3)):
        monkeypatch.setenv("TESSERA_DISABLE", off)
        exe = compiled(optimize(module_of(build)))
        (found,) = exe([np.copy(x) for x in given])
        np.testing.assert_allclose(found, np.tanh(2 * given[0] @ given[1]), rtol=1e-4, atol=1e-5)
        assert len(exe.plan.steps) == launches


@pytest.mark.parametrize(
    ("rows", "block"), [(394, 208), (512, 256), (384, 192), (100, 100), (257, 144)]
)
def test_blocks_on_cpus_go_least_beyond_the_end(rows: int, block: int) -> None:
    assert _side(rows, 256) == block
    assert -rows % block <= -rows % 128 or rows <= 256
