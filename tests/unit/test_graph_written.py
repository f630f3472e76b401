"""Fusion does not make kernels that are written in thousands of ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.index import IndexMap, dim
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.ops import LoopOp
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import fuse, optimize, written
from tessera.graph.passes.cost import sizes
from tessera.graph.planning.plan import Launch, Step
from tests.unit.graph_kit import check, compiled, module_of

ROWS, ELEMENTS = 40, 12
FOURTH = IndexMap(1, [dim(0), 3])
NEXT = IndexMap(2, [dim(0), (dim(1) + 1) % ELEMENTS])


def steps(count: int) -> Any:
    """Each step reads three elements of the one before it, as those of a scan that is written out do."""

    def build(g: GraphBuilder) -> Any:
        t = g.input("x", TensorType((ROWS, ELEMENTS), float32))
        for _ in range(count):
            t = g.loop(
                (ROWS, ELEMENTS),
                lambda i, k, t=t: g.add(
                    g.mul(g.load(t, i, k), g.load_at(t, FOURTH, [i])), g.load_at(t, NEXT, [i, k])
                ),
            )
        return t

    return module_of(build)


def launches(plan: list[Step]) -> list[Launch]:
    return [s for s in plan if isinstance(s, Launch)]


def lengths(module: Any) -> list[int]:
    loops = [op for op in module.functions[0].regions[0] if isinstance(op, LoopOp)]
    return [written.Counts(loop, sizes({})).total for loop in loops]


def test_steps_are_fused_as_long_as_the_kernel_is_short(monkeypatch: pytest.MonkeyPatch):
    module = steps(12)
    optimize(module, verify=True)
    assert 1 < len(lengths(module)) < 12
    assert max(lengths(module)) <= written.MOST_WRITTEN
    assert all(len(s.code.text) < 600_000 for s in launches(compiled(module).plan.steps))
    short = steps(2)
    optimize(short, verify=True)
    assert len(lengths(short)) == 1
    monkeypatch.setattr(written, "MOST_WRITTEN", 10**9)
    monkeypatch.setattr(fuse, "again", lambda *given: 0.0)
    unbounded = steps(11)
    optimize(unbounded, verify=True)
    assert len(lengths(unbounded)) == 1


def test_they_compute_the_same():
    x = np.random.default_rng(0).standard_normal((ROWS, ELEMENTS)).astype(np.float32) / 4
    check(steps(9), [x])
