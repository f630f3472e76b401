"""Scans on the CPU of rows that are no whole vectors: vectors, and then parts of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.config import knobs
from tessera.dtypes import int64
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import interpret
from tests.unit.graph_kit import compiled, fp32, last_extremum, module_of, recurrence


def scanned(kind: str, rows: int, n: int, reverse: bool, reads: bool) -> Any:
    def build(g: GraphBuilder) -> Any:
        x, y = g.input("x", fp32(rows, n)), g.input("y", fp32(rows, n))

        def row(i: Any) -> Any:
            if kind == "last":
                return g.scans(
                    n, lambda k: [g.load(x, i, k), k], last_extremum, (float("-inf"), -1), reverse
                )
            if kind == "recurrence":
                made = g.scans(
                    n, lambda k: [g.load(y, i, k), g.load(x, i, k)], recurrence, (1.0, 0.0), reverse
                )
            else:
                made = [g.scan(kind, n, lambda k: g.load(x, i, k), reverse)]
            if not reads:
                return made
            back = g.loop([n], lambda k: g.load(made[0], g.sub(g.const(n - 1, int64), k)))
            return [*made, back]

        return g.loops([rows], row)

    return build


@pytest.mark.parametrize("isa", ["", "avx2", "generic"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["sum", "max", "last", "recurrence"])
@pytest.mark.parametrize("n", [2, 3, 6, 7, 12, 15, 33, 100, 255])
def test_rows(n: int, kind: str, reverse: bool, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.cpu, "isa", isa or None)
    rng = np.random.default_rng(n)
    for rows in (1, 3):
        x, y = (rng.integers(-1, 2, (rows, n)).astype(np.float32) for _ in range(2))
        if kind == "last":
            x[:, ::5] = np.nan
        module = module_of(scanned(kind, rows, n, reverse, reads=n % 2 == 0))
        wanted = interpret(module, [x.copy(), y.copy()])
        for got, want in zip(compiled(module)([x, y]), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
