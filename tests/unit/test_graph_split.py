"""Reductions that few programs would do are split, and sum what they summed before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tessera.backends.compiler import GPUTarget
from tessera.graph.calls.executable import machine_of
from tessera.graph.emit.tiling import Machine
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.passes import optimize
from tessera.graph.planning.plan import Launch
from tessera.ir import Value
from tests.unit.graph_kit import HOPPER, built_for_hopper, check, compiled, fp32, module_of

CPU = GPUTarget("cpu", "avx2", 1)
RNG = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(100003,), (3, 65536), (2, 301, 299)])
def test_reductions_of_few_programs_are_split(shape: tuple[int, ...]):
    x = numbers(*shape)

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(*shape))
        total = g.loop([], lambda: g.reduce("sum", shape, lambda *at: g.exp(g.load(a, *at))))
        rows = g.loops(
            shape[:1],
            lambda i: g.welford(shape[1:] or (1,), lambda *at: g.load(a, i, *at[: len(shape) - 1])),
        )
        first = g.loops(
            [],
            lambda: g.arg_reduce(
                "max",
                shape[0],
                lambda r: g.load(a, *(r,) * len(shape[:1]), *(0,) * (len(shape) - 1)),
            ),
        )
        return total, *rows, *first

    exe = check(build, [x], rtol=1e-3)
    assert len(exe.plan.steps) > 3


@pytest.mark.parametrize("part", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [2, 4, 5, 7, 12, 24, 31])
def test_parts_of_any_length(rows: int, part: int):
    """The parts that are wanted, a power of two, need not divide the rows, and may be more than them."""
    x = RNG.integers(-50, 50, (rows, 8)).astype(np.float32)

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(rows, 8))
        sums = g.loop([8], lambda j: g.reduce("sum", [rows], lambda r: g.load(a, r, j)))
        first = g.loops([], lambda: g.arg_reduce("max", rows, lambda r: g.load(a, r, 0)))
        return sums, *first

    exe = compiled(optimize(module_of(build)), replace(machine_of(HOPPER), part=part))
    sums, first, place = exe([x])
    np.testing.assert_array_equal(sums, x.sum(0))
    assert (first, place) == (x[:, 0].max(), x[:, 0].argmax())


@pytest.mark.parametrize("part", [2, 5])
@pytest.mark.parametrize(("rows", "others"), [(31, 7), (64, 16), (24, 5), (40, 39), (12, 12)])
def test_reductions_of_different_lengths_have_parts_of_their_own(rows: int, others: int, part: int):
    """Two sums of columns that were merged, as those of two norms of heads: of the shorter one some parts are empty."""
    x, y = (RNG.integers(-50, 50, (n, 8)).astype(np.float32) for n in (rows, others))

    def build(g: GraphBuilder) -> Any:
        a, b = g.input("a", fp32(rows, 8)), g.input("b", fp32(others, 8))

        def body(j: Value) -> list[Value]:
            found = [g.reduce("sum", [rows], lambda r: g.load(a, r, j))]
            found.append(g.reduce("max", [others], lambda r: g.load(b, r, j)))
            return [*found, *g.welford([others], lambda r: g.load(b, r, j))]

        return g.loops([8], body)

    exe = compiled(optimize(module_of(build)), replace(machine_of(HOPPER), part=part))
    assert len(exe.plan.steps) == 2
    sums, most, mean, squares, count = exe([x, y])
    np.testing.assert_array_equal(sums, x.sum(0))
    np.testing.assert_array_equal(most, y.max(0))
    np.testing.assert_array_equal(count, np.full(8, others))
    np.testing.assert_allclose(mean, y.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(squares, ((y - y.mean(0)) ** 2).sum(0), rtol=1e-4)


@pytest.mark.parametrize(("row", "launches"), [(8192, 1), (65536, 2)])
def test_rows_that_are_loaded_at_once_stay_whole(row: int, launches: int):
    """Of 64 programs on a GPU: of a longer one the parts save more time than another launch takes."""

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(64, row))
        return g.loop([64], lambda i: g.reduce("sum", [row], lambda r: g.load(a, i, r)))

    exe = compiled(optimize(module_of(build)), machine_of(HOPPER))
    assert len(exe.plan.steps) == launches
    x = RNG.integers(-50, 50, (64, row)).astype(np.float32)
    np.testing.assert_array_equal(exe([x])[0], x.sum(1))


def test_merged_sums_of_columns_keep_a_gpu_busy():
    """The gradients of the norms of queries' and keys' heads are so small that they are one loop."""

    def build(g: GraphBuilder) -> Any:
        a, b = g.input("a", fp32(16384, 64)), g.input("b", fp32(4096, 64))

        def body(j: Value) -> list[Value]:
            sums = [(a, 16384), (b, 4096)]
            return [g.reduce("sum", [n], lambda r, x=x: g.load(x, r, j)) for x, n in sums]

        return g.loops([64], body)

    assert len(built_for_hopper(module_of(build)).compiled) == 2
    exe = compiled(module_of(build), machine_of(HOPPER))
    programs = [step.code.programs for step in exe.plan.steps if isinstance(step, Launch)]
    assert programs[0] == 512  # 256 parts of 32 columns


def test_splitting_can_be_left_out(monkeypatch: pytest.MonkeyPatch):
    x = RNG.integers(-50, 50, 100000).astype(np.float32)

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(x.size))
        return g.loop([], lambda: g.reduce("sum", x.shape, lambda r: g.load(a, r)))

    for off, kernels in [("", 2), ("graph-split-reductions", 1)]:
        monkeypatch.setenv("TESSERA_DISABLE", off)
        exe = compiled(module_of(build), machine_of(HOPPER))
        assert len(exe.plan.steps) == kernels
        assert exe([x])[0] == x.sum()


@pytest.mark.parametrize(
    ("rows", "columns"), [(4096, 3), (4100, 2), (1999, 4), (2000, 5), (640, 15), (400, 16), (3, 2)]
)
def test_rows_of_few_columns(rows: int, columns: int):
    """A part takes several of them at a time on a CPU, whether or not their number is a multiple."""
    x = RNG.integers(-50, 50, (rows, columns)).astype(np.float32)

    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(rows, columns))

        def body(j: Value) -> list[Value]:
            found = [g.reduce(kind, [rows], lambda r: g.load(a, r, j)) for kind in ("sum", "max")]
            place = g.arg_reduce("min", rows, lambda r: g.load(a, r, j))
            return [*found, *place, *g.welford([rows], lambda r: g.load(a, r, j))]

        return g.loops([columns], body)

    wanted = x.sum(0), x.max(0), x.min(0), x.argmin(0), x.mean(0), x.var(0) * rows
    check(build, [x], [*wanted, np.full(columns, rows, np.float32)], rtol=1e-3, atol=1e-3)


def first_launch(rows: int, columns: int, of: int, machine: Machine) -> Launch:
    def build(g: GraphBuilder) -> Any:
        a = g.input("a", fp32(rows, of))
        return g.loop([columns], lambda j: g.reduce("sum", [rows], lambda r: g.load(a, r, j)))

    step = compiled(optimize(module_of(build)), machine).plan.steps[0]
    assert isinstance(step, Launch)
    return step


@pytest.mark.parametrize(
    ("rows", "columns", "of", "wanted"),
    [
        (4096, 3, 3, 24),
        (4096, 10, 10, 20),
        (4096, 32, 32, 32),
        (4097, 3, 3, 3),  # no number of rows divides it
        (4096, 3, 4, 3),  # a row does not begin where the one before ends
        (36, 11, 11, 11),  # so little that a second launch takes longer
    ],
)
def test_rows_of_few_columns_are_whole_vectors(rows: int, columns: int, of: int, wanted: int):
    found = first_launch(rows, columns, of, machine_of(CPU))
    assert found.code.tiling.axes[-1].extent == wanted
    on_gpu = first_launch(rows, columns, of, machine_of(HOPPER))
    assert on_gpu.code.tiling.axes[-1].extent == columns


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_parts_are_shared_among_cores(lanes: int):
    """Few columns leave room in a tile for all parts, but then a single core would walk through them."""
    launch = first_launch(40000, 10, 10, replace(machine_of(CPU), lanes=lanes))
    assert launch.code.programs == lanes
