"""Sorts and scatters become kernels that compute what they mean, for all element types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import (
    bfloat16,
    dtype,
    float16,
    float32,
    float64,
    int1,
    int8,
    int32,
    int64,
    uint8,
    uint32,
)
from tessera.graph.index import sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.graph.passes.expand_sort import COUNTED, FEW, MOST, is_quick
from tessera.graph.planning.plan import Interpret, Launch
from tessera.interp.numerics import from_storage, to_storage
from tessera.ir import Value
from tests.unit.graph_kit import built_for_hopper, compiled, module_of, values_of

RNG = np.random.default_rng(0)
TYPES = (bfloat16, float16, float32, float64, int1, int8, uint8, int32, uint32, int64)


def numbers(elem: dtype, *shape: int) -> Any:
    """Values among which there are equal ones, zeros of both signs, infinities and NaNs, as they lie in memory."""
    if elem.is_floating():
        x = RNG.integers(-8, 8, shape) / 4.0
        x = np.where(RNG.random(shape) < 0.1, np.nan, x)
        x = np.where(RNG.random(shape) < 0.1, -np.inf, x)
        x = np.where(RNG.random(shape) < 0.1, -0.0, x)
    else:
        low = 0 if elem is int1 or not elem.signed else -5
        x = RNG.integers(low, 2 if elem is int1 else 5, shape)
    return to_storage(x.astype(np.float32) if elem is bfloat16 else x, elem)


def agree(module: Any, inputs: list[Any], elems: list[dtype], fused: bool = True) -> Any:
    """Kernels and meaning give the same numbers, and every op has a kernel."""
    meant = interpret(module, [from_storage(np.copy(x), e) for x, e in zip(inputs, elems)])
    if fused:
        optimize(module, verify=True)
    exe = compiled(module)
    assert not any(isinstance(step, Interpret) for step in exe.plan.steps)
    found = values_of(exe([np.copy(x) for x in inputs]), module)
    for got, want in zip(found, meant, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-2 if elems[0].bits < 32 else 1e-5)
    return exe


def sorts(elem: dtype, rows: Any, n: int, descending: bool) -> Any:
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", TensorType((rows, n), elem))

        def row(i: Any) -> Any:
            return g.sort(n, lambda r: [g.load(x, i, r), r], descending)

        return g.loops([rows], row)

    return module_of(build)


@pytest.mark.parametrize("elem", TYPES, ids=lambda e: e.short)
def test_rows_of_any_type_are_sorted_and_equal_elements_stay_in_order(elem: dtype):
    for descending in (False, True):
        for n in (FEW, COUNTED):  # few elements are found by their places, more are scattered
            agree(sorts(elem, sym("s0"), n, descending), [numbers(elem, 5, n)], [elem])


@pytest.mark.parametrize("elem", [float32, float64], ids=lambda e: e.short)
@pytest.mark.parametrize("n", [1, 2, COUNTED + 1, 100, MOST["cpu"]])
def test_rows_of_any_length_are_sorted(n: int, elem: dtype):
    agree(sorts(elem, 3, n, False), [numbers(elem, 3, n)], [elem], fused=False)


@pytest.mark.parametrize("elem", [t for t in TYPES if t.bits <= 32], ids=lambda e: e.short)
def test_rows_that_are_too_long_to_count_are_sorted_by_a_network(elem: dtype):
    for n, rows, descending in ((COUNTED + 1, sym("s0"), False), (257, 4, True), (512, 3, True)):
        x = numbers(elem, rows if isinstance(rows, int) else 5, n)
        exe = agree(sorts(elem, rows, n, descending), [x], [elem])
        assert sum("graph_sort" in k.name for k in exe.compiled()) == 1


def test_a_network_sorts_across_memory_and_what_is_computed():
    """Its rows are whole in a tile, whatever stands around it."""

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", TensorType((300, 5), float32))

        def column(i: Any) -> Any:
            return g.sort(300, lambda r: [g.binary("mul", g.load(x, r, i), g.load(x, r, i)), r])

        values, places = g.loops([5], column)
        sums = g.loop([5], lambda i: g.reduce("sum", [300], lambda r: g.load(values, i, r)))
        return [values, places, sums]

    agree(module_of(build), [RNG.standard_normal((300, 5)).astype(np.float32)], [float32])


def test_a_sort_of_no_rows():
    agree(sorts(float32, sym("s0"), 4, False), [numbers(float32, 0, 4)], [float32])


def test_a_sort_of_computed_keys_stands_in_a_graph():
    n = sym("s0")

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", TensorType((20, n), float32, (1, 20)))

        def row(i: Any) -> Any:
            scale = g.reduce("max", [20], lambda r: g.load(x, r, i))
            keys = g.loop([20], lambda r: g.mul(g.load(x, r, i), scale))
            return g.sort(20, lambda r: g.load(keys, r))[0]

        y = g.loop([n], row)
        z = g.sort(9, lambda r: g.load(x, r, 0), descending=True)[0]
        return g.loop([n, 20], lambda i, r: g.exp(g.load(y, i, r))), z

    x = np.asfortranarray(RNG.standard_normal((20, 6)).astype(np.float32))
    for fused in (False, True):
        agree(module_of(build), [x], [float32], fused)


def test_scans_are_read_anywhere():
    n = sym("s0")

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", TensorType((3, n, 4), float32))

        def row(i: Any) -> Any:
            scale = g.reduce("max", [n], lambda r: g.load(x, i, r, 0))

            def run(j: Any) -> Any:
                return g.scan("sum", 4, lambda r: g.mul(g.load(x, i, j, r), scale))

            runs = g.loop([n], run)
            return g.loop([4, n], lambda r, j: g.load(runs, j, r))

        return g.loop([3], row)

    exe = agree(module_of(build), [RNG.standard_normal((3, 5, 4)).astype(np.float32)], [float32])
    assert len(exe.plan.steps) == 2


@pytest.mark.parametrize("n", [40, 40000])
def test_scans_from_the_end_of_long_rows(n: int):
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", TensorType((2, n), int64))
        return g.loop([2], lambda i: g.scan("sum", n, lambda r: g.load(x, i, r), reverse=True))

    agree(module_of(build), [RNG.integers(-5, 5, (2, n))], [int64], fused=False)


def scatters(elem: dtype, mode: str, rows: Any, n: int) -> Any:
    """Values go to a few rows of the base, several to the same, those of odd numbers nowhere."""

    def build(g: GraphBuilder) -> Any:
        base = g.input("base", TensorType((4, n), elem))
        at = g.input("at", TensorType((rows,), int64))
        x = g.input("x", TensorType((rows, n), elem))

        def body(i: Any, j: Any) -> Any:
            even = g.compare("eq", g.binary("rem", i, g.const(2, int64)), g.const(0, int64))
            return [g.load(at, i), j, g.load(x, i, j), even]

        return g.scatter(base, [rows, n], body, mode)

    return module_of(build)


@pytest.mark.parametrize("elem", TYPES, ids=lambda e: e.short)
def test_scatters_combine_elements_of_any_type(elem: dtype):
    for mode in ("add", "mul", "max", "min"):
        module = scatters(elem, mode, sym("s0"), 7)
        given = [numbers(elem, 4, 7), RNG.integers(0, 4, 30), numbers(elem, 30, 7)]
        agree(module, given, [elem, int64, elem])


def test_sums_of_small_types_are_rounded_once():
    """512 ones that are rounded one by one stay at 256."""
    module = scatters(bfloat16, "add", 1024, 7)
    ones = to_storage(np.ones((1024, 7), np.float32), bfloat16)
    given = [np.zeros((4, 7), ones.dtype), np.ones(1024, np.int64), ones]
    (found,) = values_of(compiled(module)(given), module)
    assert (found[1] == 512).all()


def test_a_scatter_of_nothing_leaves_its_base():
    base = numbers(float32, 4, 7)
    none = np.zeros((0,), np.int64), np.zeros((0, 7), np.float32)
    agree(scatters(float32, "mul", sym("s0"), 7), [base, *none], [float32, int64, float32])


@pytest.mark.parametrize("elem", [float32, int64, bfloat16], ids=lambda e: e.short)
def test_sorts_and_scatters_are_built_for_hopper(elem: dtype):
    for module in (sorts(elem, sym("s0"), 8, True), scatters(elem, "mul", sym("s0"), 7)):
        assert all(k.asm["cubin"] for k in built_for_hopper(module).compiled.values())


def test_a_sort_takes_one_kernel_for_places_and_one_for_each_other_step():
    module = sorts(float32, 64, COUNTED, False)
    optimize(module)
    steps = compiled(module).plan.steps
    assert len(steps) == 4  # keys, zeros, places and their order, values
    assert all(isinstance(step, Launch) for step in steps)


def test_a_scan_of_what_has_no_kernel_is_lifted_once(monkeypatch: pytest.MonkeyPatch):
    """Rows of unknown length are sorted in NumPy; the loop of a scan that reads one is no other loop's."""
    monkeypatch.setenv("TESSERA_STRICT", "1")  # where planning gives up is an error
    n = sym("s0")
    g = GraphBuilder("sorted sums", ranges={"s0": (2, None)})
    x = g.input("x", TensorType((3, n), float32))

    def row(i: Value) -> list[Value]:
        ordered, places = g.sort(n, lambda r: [g.load(x, i, r), r])

        def weighted(r: Value) -> Value:
            return g.mul(g.load(ordered, r), g.cast(g.load(places, r), float32))

        lower = g.loop([n], weighted)
        return [lower, g.scan("sum", n, lambda r: g.load(lower, r))]

    g.output(*g.loops([3], row))
    values = RNG.standard_normal((3, 7)).astype(np.float32)
    module = g.finish()
    found = compiled(module)([values])
    wanted = np.sort(values, axis=1) * np.argsort(values, axis=1)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-6)
    np.testing.assert_allclose(found[1], wanted.cumsum(1), rtol=1e-5, atol=1e-5)


def test_many_long_rows_are_not_counted_on_a_gpu():
    """Each compares n² pairs there, for which eager's sort is faster from about 64 elements on."""
    assert is_quick([1 << 20], 64, "cuda:0") and is_quick([sym("s0")], 64, "cuda:0")
    assert is_quick([4, 4], 1024, "cuda:0") and not is_quick([4, 5], 1024, "cuda:0")
    assert not is_quick([4096], 512, "cuda:0") and not is_quick([sym("s0")], 65, "cuda:0")
    assert is_quick([4096], 32, "cpu") and not is_quick([1], 33, "cpu")
