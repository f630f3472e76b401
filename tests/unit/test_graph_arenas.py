"""Memory that compiled graphs keep between calls on a CPU: large pieces, for all of them."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph.calls import executable
from tessera.graph.calls.executable import Arenas, Executable, compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import TensorType
from tessera.graph.planning import memory
from tessera.graph.planning.memory import Buffer, Placement, place


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


@pytest.fixture(autouse=True)
def one_temporary_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_DISABLE", "graph-split-reductions")  # parts depend on the machine
    gc.collect()  # graphs of other tests, with their memory


def large_from(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(executable, "LARGE", size)


def test_small_memory_is_taken_anew_for_each_call() -> None:
    asked: list[int] = []
    exe = two_sums(1000, asked)
    for _ in range(3):
        run(exe, 1000)
    assert not exe.plan.arenas, "a tensor alone is allocated as such"
    assert sorted(asked) == [64 * 4] * 3 + [1000 * 4] * 3
    assert not exe.arenas.spare


def test_graphs_share_large_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    large_from(monkeypatch, 1024)
    asked: list[int] = []
    small, large = two_sums(600, asked), two_sums(1000, asked)
    for _ in range(3):
        run(small, 600)
        run(large, 1000)
    arenas = [n for n in asked if n != 64 * 4]  # the others are results
    assert len(arenas) == 2, "both sizes are asked for once"
    assert small.arenas is large.arenas
    assert [len(a) for a in large.arenas.spare] == [max(asked)]


def test_calls_look_for_large_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "take(" not in two_sums(600, []).source
    large_from(monkeypatch, 600 * 4 + 1)
    assert "take(" not in two_sums(600, []).source
    large_from(monkeypatch, 600 * 4)
    source = two_sums(600, []).source
    assert "take(2400)" in source and "give(arena)" in source


def test_memory_goes_with_the_last_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    large_from(monkeypatch, 16)
    exe = two_sums(100, [])
    run(exe, 100)
    assert len(Arenas.of[Counting].spare) == 1
    del exe
    gc.collect()
    assert Counting not in Arenas.of


def test_the_smallest_piece_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    large_from(monkeypatch, 16)
    arenas, host = Arenas(), NumpyHost()
    pieces = [arenas.take(host, n) for n in (16, 40, 64)]  # as three threads do
    for piece in pieces:
        arenas.give(piece)
    assert arenas.take(host, 32) is pieces[1]
    assert arenas.take(host, 33) is pieces[2]
    assert arenas.take(host, 16) is pieces[0]
    assert not arenas.spare


def test_memory_is_neither_much_too_large_nor_kept_beside_what_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large_from(monkeypatch, 16)
    arenas, host = Arenas(), NumpyHost()
    for n in (20, 30, 100, 28, 120):
        arenas.give(arenas.take(host, n))
    assert [len(x) for x in arenas.spare] == [30, 120]


def test_what_is_not_large_is_not_kept() -> None:
    arenas, host = Arenas(), NumpyHost()
    arenas.give(arenas.take(host, executable.LARGE - 1))
    assert not arenas.spare


def test_few_pairs_of_arenas_are_placed_to_know_that_they_stay_apart(
    monkeypatch: pytest.MonkeyPatch,
):
    """Each tensor begins and ends at steps of its own, so that an arena of any pair would be held for longer than the
    smaller one is: how much is alive at once says so."""
    calls: list[int] = []

    def counted(buffers: Sequence[Buffer]) -> Placement:
        calls.append(len(buffers))
        return place(buffers)

    monkeypatch.setattr(memory, "place", counted)
    chain = [Buffer(n, n + 10, 1024 * (n + 1)) for n in range(40)]
    found = memory.Cut(chain, range(50), [0] * 50, [0] * 50, [0] * 50)
    found.join_where_nothing_grows()
    assert [p.members for p in found.parts] == [(n,) for n in range(40)]
    assert len(calls) <= 2 * len(chain)
