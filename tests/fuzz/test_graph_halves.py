"""Random graphs on halves, which operations widen, and which are rounded at the end: passes that change no bit change
none, whether loops store numbers in the bits that they had or in more."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tessera.dtypes import float16, float32
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import optimize
from tessera.ir import Module, Value
from tessera.ir.applications import Session

ROWS, COLUMNS = 6, 32


def random_graph(seed: int) -> Module:
    """Loops that read some of the tensors before them as fp32, at their own place or at the transposed one, and make
    halves, fp32, or fp32 of rounded numbers; and sums of rows, which keep loops apart."""
    draw = random.Random(seed)
    g = GraphBuilder("halves")
    made = [g.input(f"x{k}", TensorType((ROWS, COLUMNS), float16)) for k in range(2)]

    def wide(x: Value, i: Value, j: Value) -> Value:
        found = g.load(x, i, j)
        return found if x.type.elem == float32 else g.cast(found, float32)

    for _ in range(8):
        a, b = draw.choice(made), draw.choice(made)
        kind, factor = draw.choice(("half", "wide", "rounded", "rounded")), draw.uniform(0.5, 1.5)
        sums = [
            g.loop([ROWS], lambda i, a=a: g.reduce("max", [COLUMNS], lambda j: wide(a, i, j))),
            g.loop([COLUMNS], lambda j, a=a: g.reduce("max", [ROWS], lambda i: wide(a, i, j))),
        ]

        def body(
            i: Value, j: Value, of: tuple[Value, ...] = (a, b, *sums), f: float = factor,
            kind: str = kind,
        ) -> Value:  # fmt: skip
            a, b, s, t = of
            x = g.sub(g.mul(wide(a, i, j), g.const(f, float32)), wide(b, i, j))
            x = g.sub(g.sub(x, g.load(s, i)), g.load(t, j))
            x = x if kind == "wide" else g.cast(x, float16)
            return g.cast(x, float32) if kind == "rounded" else x

        made.append(g.loop([ROWS, COLUMNS], body))
    kept = draw.sample(made[2:], 2)
    g.output(
        *kept, g.loop([COLUMNS], lambda j: g.reduce("max", [ROWS], lambda i: wide(made[-1], i, j)))
    )
    return g.finish()


@pytest.mark.parametrize("off", ["", "graph-narrow-results"])
def test_no_bit_changes(off: str):
    applied = 0
    for seed in range(24):
        module = random_graph(seed)
        rng = np.random.default_rng(seed)
        args = [rng.standard_normal((ROWS, COLUMNS)).astype(np.float16) for _ in range(2)]
        wanted = interpret(module.clone(), args)
        with Session("graph", frozenset({off} - {""})) as session:
            optimize(module, verify=True)
        for mine, theirs in zip(interpret(module, args), wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        applied += sum(a.name == "graph-narrow-results" for a in session.applied)
    assert (applied > 0) == (not off)
