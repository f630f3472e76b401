"""How a GPU walks through rows that it needs more than once: whole, or by wide programs whose rows L2 holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import bfloat16, dtype, float32
from tessera.graph.calls.executable import machine_of
from tessera.graph.emit.tiling import Tiling
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.planning.planner import Planner
from tests.unit.graph_kit import HOPPER, built_for_hopper, check, fp32, module_of, softmax


def tiling(build: Any) -> Tiling:
    plan = Planner(module_of(build).functions[0], machine_of(HOPPER)).run()  # type: ignore[arg-type]
    (step,) = plan.steps
    return step.code.tiling  # type: ignore[union-attr]


def sums(rows: int, width: int) -> Any:
    def build(g: GraphBuilder) -> Any:
        x = g.input("x", fp32(rows, width))
        return g.loop([rows], lambda i: g.reduce("sum", [width], lambda r: g.load(x, i, r)))

    return build


def norm_of_two(rows: int, width: int) -> Any:
    """What the backward pass of a norm does: two tensors of which a program needs its row again."""

    def build(g: GraphBuilder) -> Any:
        x, y = g.input("x", fp32(rows, width)), g.input("y", fp32(rows, width))

        def row(i: Any) -> Any:
            a = g.reduce("sum", [width], lambda r: g.mul(g.load(x, i, r), g.load(y, i, r)))
            return g.loop(
                [width], lambda r: g.sub(g.mul(g.load(x, i, r), a), g.mul(g.load(y, i, r), a))
            )

        return g.loop([rows], row)

    return build


@pytest.mark.parametrize(
    ("width", "elem", "whole", "step", "warps"),
    [
        (8192, float32, True, 8192, 16),
        (16384, float32, True, 16384, 32),
        (32000, float32, False, 8192, 32),
        (32001, float32, False, 8192, 32),
        (50257, float32, False, 8192, 32),
        (16384, bfloat16, True, 16384, 32),
        (32000, bfloat16, False, 4096, 8),
        (50257, bfloat16, False, 8192, 32),
    ],
    ids=str,
)
def test_rows_of_a_softmax(width: int, elem: dtype, whole: bool, step: int, warps: int):
    """As measured on an H200: of 2048 rows, 50257 long, 422 us by programs of 8 warps and 303 us by those of 32."""
    t = tiling(softmax(2048, width, elem))
    assert (t.whole, t.step, t.warps) == (whole, step, warps)


def test_other_rows_are_walked_in_steps():
    once, two, few = sums(2048, 16384), norm_of_two(2048, 12000), softmax(131, 60000)
    assert [(tiling(b).whole, tiling(b).warps) for b in (once, two, few)] == [
        (False, 8),
        (False, 32),
        (False, 16),
    ]


@pytest.mark.parametrize(
    "build",
    [softmax(2048, 16384), softmax(2048, 16384, bfloat16), norm_of_two(2048, 8192)],
    ids=["softmax", "softmax of 16 bits", "two tensors"],
)
def test_whole_rows_do_not_spill(build: Any):
    (kernel,) = built_for_hopper(module_of(build)).compiled.values()
    assert tiling(build).whole and not kernel.metadata.spills


@pytest.mark.parametrize("width", [9001, 16000])
def test_whole_rows_come_to_the_same(width: int):
    rng = np.random.default_rng(width)
    x, y = (rng.standard_normal((3, width)).astype(np.float32) for _ in range(2))
    check(softmax(3, width), [x])
    check(norm_of_two(3, width), [x, y], rtol=1e-3, atol=1e-3)
