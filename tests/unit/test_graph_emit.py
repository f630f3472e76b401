"""Kernels that are made of loop nests compute what the nests mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.config import knobs
from tessera.dtypes import float32, int64
from tessera.errors import InternalError
from tessera.graph.calls import build_kernels
from tessera.graph.calls.executable import compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.index import parse_map, sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.passes import optimize
from tessera.graph.planning.planner import KernelWarning
from tessera.runtime.autotuner.compile_workers import CompileWorkers
from tests.unit.graph_kit import built_for_hopper, check, compiled, fp32, module_of

RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(g: GraphBuilder, x: Any, rows: Any, columns: Any) -> Any:
    def row(i: Any) -> Any:
        m = g.reduce("max", [columns], lambda r: g.load(x, i, r))
        e = g.loop([columns], lambda r: g.exp(g.sub(g.load(x, i, r), m)))
        s = g.reduce("sum", [columns], lambda r: g.load(e, r))
        return g.loop([columns], lambda r: g.div(g.load(e, r), s))

    return g.loop([rows], row)


def plain_softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("columns", [1, 7, 128, 20000])
def test_softmax_of_any_number_of_rows(columns: int):
    module = module_of(
        lambda g: softmax(g, g.input("x", fp32(sym("s0"), columns)), sym("s0"), columns)
    )
    for rows in (1, 33) if columns < 1000 else (5,):
        x = numbers(rows, columns)
        check(module, [x], [plain_softmax(x)])


def test_softmax_of_rows_of_any_length():
    module = module_of(
        lambda g: softmax(g, g.input("x", fp32(sym("s0"), sym("s1"))), sym("s0"), sym("s1"))
    )
    for shape in ((1, 1), (3, 100), (2, 5000)):
        x = numbers(*shape)
        check(module, [x], [plain_softmax(x)])


def test_a_transposed_operand_is_read_in_two_dimensional_tiles():
    x, y = numbers(33, 77), numbers(77, 33)

    def build(g: GraphBuilder) -> Any:
        a, b = g.input("a", fp32(33, 77)), g.input("b", fp32(77, 33))
        return g.loop([33, 77], lambda i, j: g.add(g.load(a, i, j), g.load(b, j, i)))

    exe = check(build, [x, y], [x + y.T])
    assert [a.block > 1 for a in exe.plan.steps[0].code.tiling.axes] == [True, True]  # type: ignore[union-attr]


def test_indices_that_every_access_treats_as_one_become_one():
    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(4, 5, 6))
        return g.loop([4, 5, 6], lambda i, j, k: g.exp(g.load(a, i, j, k)))

    exe = check(build, [numbers(4, 5, 6)])
    assert [a.dims for a in exe.plan.steps[0].code.tiling.axes] == [(0, 1, 2)]  # type: ignore[union-attr]


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_sums_along_any_dimensions(axes: tuple[int, ...]):
    shape, x = (6, 40, 50), numbers(6, 40, 50)
    kept = [d for d in range(3) if d not in axes]

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(*shape))

        def total(*outer: Any) -> Any:
            def element(*inner: Any) -> Any:
                at = dict(zip((*kept, *axes), (*outer, *inner), strict=True))
                return g.load(a, *(at[d] for d in range(3)))

            return g.reduce("sum", [shape[d] for d in axes], element)

        return g.loop([shape[d] for d in kept], total)

    check(build, [x], [x.sum(axes)])


def test_windows_are_walked_through_by_each_element():
    x = numbers(2, 3, 8, 8)
    windows = [[x[:, :, 2 * h : 2 * h + 3, 2 * w : 2 * w + 3] for w in range(3)] for h in range(3)]
    want = np.stack([np.stack([w.max((2, 3)) for w in row], -1) for row in windows], -2)
    at = parse_map("(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2 * 2 + d4, d3 * 2 + d5)")

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(2, 3, 8, 8))
        return g.loop(
            [2, 3, 3, 3],
            lambda *o: g.reduce("max", [3, 3], lambda *i: g.load_at(a, at, [*o, *i])),
        )

    check(build, [x], [want])


def test_argmax_takes_the_first_of_equal_values():
    x = numbers(20, 300).round(1)

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(20, 300))
        return g.loops([20], lambda i: g.arg_reduce("max", 300, lambda r: g.load(a, i, r)))

    check(build, [x], [x.max(1), x.argmax(1)])


@pytest.mark.parametrize("columns", [100, 30000])
def test_welford_gives_mean_and_deviations(columns: int):
    x = numbers(3, columns) + 100

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(3, columns))
        return g.loops([3], lambda i: g.welford([columns], lambda r: g.load(a, i, r)))

    check(build, [x], [x.mean(1), x.var(1) * columns, np.full(3, columns)], rtol=2e-3)


@pytest.mark.parametrize("columns", [60, 40000])
def test_running_sums(columns: int):
    x = numbers(5, columns) * np.float32(0.01)

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(5, columns))
        return g.loop([5], lambda i: g.scan("sum", columns, lambda r: g.load(a, i, r)))

    check(build, [x], [np.cumsum(x, 1, dtype=np.float64)])


def test_rows_are_gathered_and_scattered():
    rows, w = RNG.integers(0, 50, (4, 6)), numbers(50, 16)
    v = RNG.integers(-9, 9, (4, 6, 16)).astype(np.float32)  # sums are exact in any order
    want = np.zeros((50, 16), np.float32)
    np.add.at(want, rows, v)

    def build(g: GraphBuilder) -> Any:
        table, at = g.input("w", fp32(50, 16)), g.input("at", TensorType((4, 6), int64))
        given = g.input("v", fp32(4, 6, 16))
        found = g.loop([4, 6, 16], lambda p, q, d: g.load(table, g.load(at, p, q), d))
        zeros = g.loop([50, 16], lambda p, q: g.const(0.0, float32))
        added = g.scatter(
            zeros, [4, 6, 16], lambda p, q, d: (g.load(at, p, q), d, g.load(given, p, q, d)), "add"
        )
        return found, added

    exe = check(build, [w, rows, v], [w[rows], want])
    assert len(exe.plan.steps) == 3, "the zeros are no copy: they die in the scatter"


def test_results_take_the_memory_of_operands_that_die():
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(sym("s0"), 64))
        for _ in range(4):
            last = x
            x = g.loop([sym("s0"), 64], lambda i, j, last=last: g.exp(g.load(last, i, j)))
        return x

    x = numbers(10, 64) * 0.1 - 1
    exe = check(build, [x], [np.exp(np.exp(np.exp(np.exp(x))))])
    assert exe.peak_bytes({"s0": 100}) == 100 * 64 * 4  # all in the result's memory


def test_arguments_are_written_when_all_else_is_done():
    x, y = numbers(8, 8), numbers(8, 8)

    def build(g: GraphBuilder) -> Any:
        a, b = g.input("a", fp32(8, 8)), g.input("b", fp32(8, 8))
        total = g.loop([8, 8], lambda i, j: g.add(g.load(a, i, j), g.load(b, i, j)))
        g.write(a, total)
        return g.loop([8, 8], lambda i, j: g.mul(g.load(a, i, j), g.load(total, i, j)))

    before = x.copy()
    (got,) = compiled(module_of(build))([x, y])
    np.testing.assert_allclose(x, before + y)
    np.testing.assert_allclose(got, before * (before + y), rtol=1e-6)


def test_equal_nests_are_one_kernel():
    def build(g: GraphBuilder) -> Any:
        xs = [g.input(f"x{k}", fp32(30, 40)) for k in range(3)]
        return [g.loop([30, 40], lambda i, j, x=x: g.exp(g.load(x, i, j))) for x in xs]

    exe = compiled(module_of(build))
    assert len(exe.plan.steps) == 3
    assert len(exe.compiled()) == 1


def test_kernels_are_built_for_hopper():
    n = sym("s0")

    def build(g: GraphBuilder) -> Any:
        x, y = g.input("x", fp32(n, 128)), g.input("y", fp32(128, n))
        rows = softmax(g, x, n, 128)
        sums = g.loop([128], lambda j: g.reduce("sum", [n], lambda i: g.load(x, i, j)))
        crossed = g.loop([n, 128], lambda i, j: g.add(g.load(x, i, j), g.load(y, j, i)))
        return rows, sums, crossed

    assert all(k.asm["cubin"] for k in built_for_hopper(module_of(build)).compiled.values())


def test_tensors_without_elements():
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(0, 5))
        rows = g.loop([0, 5], lambda i, j: g.exp(g.load(x, i, j)))
        sums = g.loop([5], lambda j: g.reduce("sum", [0], lambda i: g.load(x, i, j)))
        return rows, sums, g.loop([0], lambda i: g.reduce("max", [5], lambda j: g.load(x, i, j)))

    check(build, [numbers(0, 5)])


def test_what_no_kernel_is_made_for_is_computed_by_its_meaning():
    n, m = sym("s0"), sym("s1")  # rows of an unknown length are not sorted by counting

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(n, m))
        y = g.loop([n, m], lambda i, j: g.exp(g.load(x, i, j)))
        z = g.loop([n], lambda i: g.sort(m, lambda j: g.load(y, i, j))[0])
        return g.loop([n, m], lambda i, j: g.add(g.load(z, i, j), g.load(y, i, j)))

    exe = check(build, [numbers(7, 20)])
    assert [type(s).__name__ for s in exe.plan.steps] == ["Launch", "Interpret", "Launch"]


def test_a_kernel_that_cannot_be_compiled_is_replaced(monkeypatch: pytest.MonkeyPatch):
    original = build_kernels.compile_kernel

    def broken(source: Any, *more: Any, **named: Any) -> Any:
        if "exp" in source.name:
            raise InternalError("a fault")
        return original(source, *more, **named)

    monkeypatch.setattr(build_kernels, "compile_kernel", broken)

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(sym("s0"), 8))
        y = g.loop([sym("s0"), 8], lambda i, j: g.exp(g.load(x, i, j)))
        return g.loop([sym("s0")], lambda i: g.reduce("sum", [8], lambda j: g.load(y, i, j)))

    with knobs.scope():
        knobs.compilation.strict = False
        with pytest.warns(KernelWarning, match="a fault"):
            check(build, [numbers(5, 8)], tilings=False)
        knobs.compilation.strict = True
        with pytest.raises(InternalError, match="a fault"):
            compiled(module_of(build))


def test_many_kernels_are_compiled_by_worker_processes(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    run_stages = CompileWorkers.run_stages

    def noted(workers: Any, src: Any, *more: Any) -> Any:
        asked.append(src.name)
        return run_stages(workers, src, *more)

    monkeypatch.setattr(CompileWorkers, "run_stages", noted)
    monkeypatch.setattr(build_kernels, "WORTH_WORKERS", 2)

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(6, 8))
        y = g.loop([6, 8], lambda i, j: g.exp(g.load(x, i, j)))
        return g.loop([6], lambda i: g.reduce("sum", [8], lambda j: g.load(y, i, j)))

    with knobs.scope():
        knobs.autotuning.processes = 1
        knobs.compilation.always_compile = True
        exe = check(build, [numbers(6, 8)], tilings=False)
    assert sorted(asked) == sorted(k.name for k in exe.compiled())
    check(build, [numbers(6, 8)], tilings=False)
    assert len(asked) == 2  # the cache has them


def test_a_scan_is_read_by_a_reduction_across_it():
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(3, sym("s0"), 4))

        def row(i: Any) -> Any:
            runs = g.loop([sym("s0")], lambda j: g.scan("sum", 4, lambda r: g.load(x, i, j, r)))
            return g.loop([4], lambda k: g.reduce("sum", [sym("s0")], lambda r: g.load(runs, r, k)))

        return g.loop([3], row)

    check(build, [numbers(3, 5, 4)])


def test_externs_see_no_negative_strides():
    n = sym("s0")
    seen: list[Any] = []

    def noted(x: Any) -> Any:
        seen.append(x.strides)
        return np.array(x)

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(n, 4))
        flipped = g.view(x, parse_map("(d0, d1) -> (s0 - 1 - d0, d1)"), fp32(n, 4))
        (copy,) = g.extern("noted", [flipped], [Place(0)], [crossed])
        return copy

    crossed = TensorType((n, 4), float32, (1, n))
    x = numbers(6, 4)
    module = module_of(build)
    exe = compile_graph(module, NumpyHost({"noted": noted}))
    (got,) = exe([x])
    np.testing.assert_array_equal(got, x[::-1])
    assert seen == [(16, 4)]
    assert got.strides == (4, 24)


def test_masked_reads_of_one_local_tensor_keep_their_masks():
    """Both halves of what is joined compute the same elements of `e`, each where its own mask holds."""
    g = GraphBuilder("halves")
    x = g.input("x", TensorType((sym("s0"), 8), float32))
    later, earlier = parse_map("(d0) -> (d0 + 4)"), parse_map("(d0) -> (d0 - 4)")

    def row(i: Any) -> Any:
        e = g.loop([8], lambda k: g.exp(g.load(x, i, k)))
        a = g.loop([4], lambda k: g.add(g.load(e, k), g.load_at(e, later, [k])))
        b = g.loop([4], lambda k: g.sub(g.load(e, k), g.load_at(e, later, [k])))

        def joined(k: Any) -> Any:
            first = g.compare("lt", k, g.const(4, int64))
            second = g.compare("ge", k, g.const(4, int64))
            return g.load_at(b, earlier, [k], mask=second, other=g.load(a, k, mask=first))

        return g.loop([8], joined)

    g.output(g.loop([sym("s0")], row))
    x = numbers(5, 8)
    e = np.exp(x)
    wanted = np.concatenate([e[:, :4] + e[:, 4:], e[:, :4] - e[:, 4:]], 1)
    (got,) = compile_graph(g.finish(), NumpyHost())([x])
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_constants_of_a_combination_may_stand_in_front_of_it():
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(sym("s0"), 100))

        def row(i: Any) -> Any:
            mean, _, _ = g.welford([100], lambda r: g.load(x, i, r))
            return g.loop([100], lambda r: g.sub(g.load(x, i, r), mean))

        return g.loop([sym("s0")], row)

    module = module_of(build)
    optimize(module)
    check(module, [numbers(6, 100)])
    assert len(built_for_hopper(module).compiled) == 1
