"""How nests with rows are cut into programs on a GPU: as many as there is work for, and what is shared is read once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32, int64
from tessera.graph.calls.executable import machine_of
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import TensorType
from tessera.graph.planning.planner import Planner
from tests.unit.graph_kit import HOPPER, check, module_of


def launches(build: Any) -> list[Any]:
    plan = Planner(module_of(build).functions[0], machine_of(HOPPER)).run()  # type: ignore[arg-type]
    return [step.code for step in plan.steps]  # type: ignore[union-attr]


def sums(rows: int, columns: int) -> Any:
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", TensorType((rows, columns), float32))
        return g.loop([rows], lambda i: g.reduce("sum", [columns], lambda r: g.load(x, i, r)))

    return build


@pytest.mark.parametrize(
    ("rows", "programs", "warps"), [(9, 3, 4), (256, 64, 4), (2**17, 2**12, 2)], ids=str
)
def test_programs_have_few_rows_where_these_are_few(rows: int, programs: int, warps: int):
    (code,) = launches(sums(rows, 32))
    assert (code.programs, code.warps) == (programs, warps)


@pytest.mark.parametrize("rows", [9, 250])
def test_few_rows_are_summed(rows: int):
    x = np.random.default_rng(0).normal(size=(rows, 30)).astype(np.float32)
    check(sums(rows, 30), [x], [x.sum(1, dtype=np.float64)])


def sums_by_key(keys: int, count: int) -> Any:
    def build(g: GraphBuilder) -> Any:
        at = g.input("at", TensorType((count,), int64))
        x = g.input("x", TensorType((count,), float32))

        def term(key: Any, r: Any) -> Any:
            nothing = g.const(0.0, float32)
            return g.select(g.compare("eq", g.load(at, r), key), g.load(x, r), nothing)

        return g.loop([keys], lambda k: g.reduce("sum", [count], lambda r: term(k, r)))

    return build


def test_elements_for_many_sums_are_read_once():
    for count, whole in ((60001, True), (400001, False)):
        first, last = launches(sums_by_key(45, count))
        assert (first.tiling.shape, first.tiling.step) == ((8, 1), 1024)
        assert first.tiling.whole is whole and last.tiling.whole
    (small,) = launches(sums_by_key(300, 600))
    assert 8 not in small.tiling.shape


@pytest.mark.parametrize("count", [60001, 400001])
def test_sums_by_key(count: int):
    data = np.random.default_rng(1)
    at, x = data.integers(0, 45, count), data.integers(-4, 5, count).astype(np.float32)
    check(sums_by_key(45, count), [at, x], [np.bincount(at, x, 45)])


def means_over_pixels(images: int, pixels: int, channels: int = 16) -> Any:
    """What becomes of a picture with channels last, and each channel's sum of that."""
    t = TensorType((images, channels, pixels), float32, (channels * pixels, 1, channels))

    def build(g: GraphBuilder) -> Any:
        x = g.input("x", t)

        def channel(i: Any, c: Any) -> Any:
            made = g.loop([pixels], lambda p: g.exp(g.load(x, i, c, p)))
            return [made, g.reduce("sum", [pixels], lambda p: g.load(made, p))]

        made, total = g.loops([images, channels], channel)
        made.type = t
        return [made, total]

    return build


@pytest.mark.parametrize(
    ("images", "pixels", "programs", "warps"),
    [(8, 1024, 16, 16), (8, 100, 8, 4), (200, 1024, 200, 1), (8, 2000, 8, 1)],
    ids=str,
)
def test_few_programs_hold_columns_that_are_results_whole(
    images: int, pixels: int, programs: int, warps: int
):
    (code,) = launches(means_over_pixels(images, pixels))
    assert (code.programs, code.warps) == (programs, warps)


def test_columns_that_are_results_are_right():
    x = np.random.default_rng(0).normal(size=(2, 16, 1024)).astype(np.float32)
    given = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
    check(means_over_pixels(2, 1024), [given], [np.exp(x), np.exp(x).sum(2, dtype=np.float64)])
