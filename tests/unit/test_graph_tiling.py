"""How nests with rows are cut into programs on a GPU: into as many as there is work for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
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
