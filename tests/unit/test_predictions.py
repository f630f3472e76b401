"""What `kernel.explain` predicts times of a CPU from: costs of functions, and bytes that stores move."""

from __future__ import annotations

import numpy as np

from tessera.analysis.machines import Machine
from tessera.dtypes import float32
from tessera.explain import functions
from tessera.explain.predict import Totals, predict
from tessera.ir import Block, TileType
from tessera.ops import AddOp, ExpOp


def test_functions_are_measured_and_cheap_operations_are_not() -> None:
    (x,) = Block([TileType((16,), float32)]).args
    assert functions.cost(AddOp(x, x)) == 1.0
    assert functions.cost(ExpOp(x)) >= 1.0


def test_probes_compute_what_they_are_asked_for() -> None:
    """A function of ones, of each width."""
    for kind, shown in (("fp32", 2.0), ("fp64", 2.0)):
        run = functions.probe([kind], kind, f"%r: tile<{functions.BLOCK}x{kind}> = exp2 %v0")
        out = run.args[-1].view(np.float32 if kind == "fp32" else np.float64)
        assert (out == shown).all()


def test_stores_that_bypass_the_caches_read_no_lines() -> None:
    anywhere = float("inf")
    machine = Machine(
        "", 1, 1e9, ((anywhere, 1e9),), 1e9, {"fp32": 1e9}, 0.0, 0.0, ((anywhere, 5e8),), 1e9
    )
    moved = [
        predict(Totals({"x": 100.0}, {"y": 100.0}, streamed=streamed), machine, False, None)
        for streamed in (False, True)
    ]
    assert [round(r.times["memory"] * 1e9) for r in moved] == [300, 200]
