"""The arena of a graph: buffers that live at the same time lie apart, and little is wasted."""

from __future__ import annotations

import random

import pytest

from tessera.graph.memory import ALIGNMENT, Buffer, lower_bound, place


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
