"""Memory that compiled graphs keep between calls on a CPU: one piece for all of them."""

from __future__ import annotations

import gc

import numpy as np

from tessera.dtypes import float32
from tessera.graph.calls.executable import Arenas, Executable, compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import TensorType


class Counting(NumpyHost):
    """Notes how much memory is asked for."""

    def __init__(self, asked: list[int]) -> None:
        self.asked = asked

    def empty(self, size: int) -> np.ndarray:
        self.asked.append(size)
        return super().empty(size)


def two_sums(rows: int, asked: list[int]) -> Executable:
    """Sums of columns that need all sums of rows first: these lie in the arena."""
    g = GraphBuilder("sums")
    x = g.input("x", TensorType((rows, 64), float32))
    sums = g.loop([rows], lambda i: g.reduce("sum", [64], lambda r: g.load(x, i, r)))
    g.output(
        g.loop(
            [64],
            lambda j: g.reduce("max", [rows], lambda r: g.mul(g.load(sums, r), g.load(x, r, j))),
        )
    )
    return compile_graph(g.finish(), Counting(asked))


def run(exe: Executable, rows: int) -> None:
    x = np.random.default_rng(rows).random((rows, 64), dtype=np.float32)
    (found,) = exe([x])
    np.testing.assert_allclose(found, (x.sum(1)[:, None] * x).max(0), rtol=1e-5)


def test_graphs_share_what_the_largest_needs() -> None:
    asked: list[int] = []
    small, large = two_sums(100, asked), two_sums(1000, asked)
    for _ in range(3):
        run(small, 100)
        run(large, 1000)
    arenas = [n for n in asked if n != 64 * 4]  # the others are results
    assert len(arenas) == 2, "both sizes are asked for once"
    assert small.arenas is large.arenas
    assert [len(a) for a in large.arenas.spare] == [max(asked)]


def test_memory_goes_with_the_last_graph() -> None:
    exe = two_sums(100, [])
    run(exe, 100)
    assert Counting in Arenas.of
    del exe
    gc.collect()
    assert Counting not in Arenas.of


def test_the_larger_of_two_pieces_is_kept() -> None:
    arenas, host = Arenas(), NumpyHost()
    first, second = arenas.take(host, 16), arenas.take(host, 64)  # as two threads do
    arenas.give(first)
    arenas.give(second)
    assert arenas.take(host, 32) is second
