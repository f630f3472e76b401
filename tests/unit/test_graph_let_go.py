"""What graphs hold if their callers let go of arguments, as of results of a program that its gradients need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.calls.executable import Executable, compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.emit.tiling import Machine
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.planning.memory import Buffer, cut
from tessera.graph.planning.settle import PAGE, let_go

N = 64
SIZE = N * N * 4
GPU = Machine("cuda", exact=False, tile=64, row=64, step=64, lanes=8, columns=64, walk=16)


class Doubling(NumpyHost):
    def extern(self, op: Any, arrays: Any, symbols: Any) -> tuple[Any, ...]:
        return (arrays[0] * 2,)


def backward(donated: bool) -> Executable:
    """A large argument that the first kernel reads, two smaller tensors behind that, and a larger result at the end."""
    g = GraphBuilder("backward")
    wide = g.input("wide", TensorType((N, N, 8), float32))
    x = g.input("x", TensorType((N, N), float32), donated=donated)
    first = g.loop([N, N, 8], lambda i, j, k: g.load(wide, j, i, k))
    less = g.loop([N, N], lambda i, j: g.reduce("max", [8], lambda k: g.load(first, j, i, k)))
    more = g.loop([N, N], lambda i, j: g.add(g.load(less, j, i), g.load(x, i, j)))
    last = g.extern("double", [more], [Place(0)], [more.type])[0]
    g.output(g.loop([N, N, 10], lambda i, j, k: g.load(last, j, i)))
    return compile_graph(g.finish(), Doubling(), machine=GPU)


@pytest.mark.parametrize("donated", [True, False])
def test_launches_are_started_apart_where_arguments_may_go(
    monkeypatch: pytest.MonkeyPatch, donated: bool
):
    """If the large argument goes, most is held while the first kernel runs; else when the result is there."""
    monkeypatch.setenv("TESSERA_DISABLE", "graph-fuse-rows,graph-inline-loops")
    exe = backward(donated)
    draw = np.random.default_rng(0)
    wide = draw.standard_normal((N, N, 8)).astype(np.float32)
    x = draw.standard_normal((N, N)).astype(np.float32)
    (y,) = exe([wide, x.copy()])
    wanted = 2 * (wide.max(2).T + x).T
    np.testing.assert_array_equal(y, np.broadcast_to(wanted[:, :, None], (N, N, 10)))
    plan = exe.plan
    made = [*plan.allocations({}, PAGE)]
    gone = let_go(plan)
    first = max(sum(a.at(g) for a in made) - sum(a.at(g) for a in gone) for g in plan.groups())
    if donated:
        assert plan.breaks and first <= 8 * SIZE
    else:
        assert not plan.breaks and not gone


def test_arenas_are_as_small_as_may_be_where_most_is_held_without_what_has_gone():
    """Of four groups the last one holds most, unless what is read in the first ones goes: then the first one does."""
    ends, beside, gone = [1, 3, 5, 7], [0, 0, 0, 4 << 20], [0, 2 << 20, 2 << 20, 4 << 20]
    buffers = [Buffer(0, 3, 1 << 20), Buffer(2, 5, 1 << 19)]
    assert len(cut(buffers, ends, beside)) == 1
    assert len(cut(buffers, ends, beside, gone=gone)) == 2
