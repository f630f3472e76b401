"""The arena of a graph: buffers that live at the same time lie apart, and little is wasted."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tessera.dtypes import float32
from tessera.graph import source
from tessera.graph.build import GraphBuilder
from tessera.graph.executable import compile_graph
from tessera.graph.host import NumpyHost
from tessera.graph.memory import ALIGNMENT, Buffer, lower_bound, place
from tessera.graph.types import TensorType


def some_buffers(seed: int, count: int) -> list[Buffer]:
    draw = random.Random(seed)
    made: list[Buffer] = []
    for _ in range(count):
        first = draw.randrange(count)
        size = draw.choice([0, 4, 300, 1024, 4096, 65536]) * draw.randrange(1, 9)
        made.append(Buffer(first, first + draw.choice([0, 1, 1, 2, 5, count // 3]), size))
    return made


@pytest.mark.parametrize("seed", range(8))
def test_buffers_that_meet_lie_apart(seed: int):
    buffers = some_buffers(seed, 60)
    placed = place(buffers)
    for i, a in enumerate(buffers):
        assert placed.offsets[i] % ALIGNMENT == 0
        assert placed.offsets[i] + a.size <= placed.size
        for j, b in enumerate(buffers[:i]):
            if a.size and b.size and a.first <= b.last and b.first <= a.last:
                low, high = sorted(((placed.offsets[i], a.size), (placed.offsets[j], b.size)))
                assert low[0] + low[1] <= high[0]


@pytest.mark.parametrize("seed", range(8))
def test_little_more_than_what_is_alive_at_once_is_taken(seed: int):
    buffers = some_buffers(seed, 60)
    assert lower_bound(buffers) <= place(buffers).size <= 1.25 * lower_bound(buffers)


def test_a_buffer_takes_the_place_of_one_that_died():
    placed = place([Buffer(0, 2, 1024), Buffer(1, 3, 512), Buffer(3, 4, 1024)])
    assert placed.offsets == (0, 1024, 0)
    assert placed.size == 1536


class Copying(NumpyHost):
    """Gives kernels copies of what does not begin at a multiple of 16 bytes, as GPUs need it."""

    def aligned(self, array: Any) -> Any:
        memory = np.zeros(array.nbytes + 64, np.uint8)
        start = -memory.ctypes.data % 64
        copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        np.copyto(copy, array)
        return copy


def test_arguments_that_are_written_and_not_aligned(monkeypatch: pytest.MonkeyPatch):
    """A kernel that writes to the copy of an argument must not leave the argument as it was."""
    monkeypatch.setattr(source.Writer, "wants_alignment", lambda w: True)
    g = GraphBuilder("doubled")
    x = g.input("x", TensorType((96,), float32))
    twice = g.loop([96], lambda i: g.mul(g.load(x, i), g.const(2.0, float32)))
    g.write(x, twice)
    g.output(g.loop([96], lambda i: g.add(g.load(x, i), g.const(1.0, float32))))
    exe = compile_graph(g.finish(), Copying())
    for first in (0, 1):  # elements of four bytes in front of the argument
        memory = np.arange(100, dtype=np.float32)
        argument = memory[first : first + 96]
        before = memory.copy()
        (out,) = exe([argument])
        np.testing.assert_array_equal(out, before[first : first + 96] + 1)
        np.testing.assert_array_equal(argument, before[first : first + 96] * 2)
        np.testing.assert_array_equal(memory[first + 96 :], before[first + 96 :])
