"""Products whose tiles threads read from rings that the TMA unit fills: the same results in every launch. All tiles:
`python benchmarks/ring_races.py`."""

# pyright: basic
from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

from tests.gpu.hopper import needs_hopper

pytestmark = needs_hopper
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
ring_races = pytest.importorskip("ring_races")
LAUNCHES = 300


@cache
def bench():
    return ring_races.Bench()


@pytest.mark.parametrize("case", list(ring_races.cases(list(ring_races.TYPES), True)), ids=str)
def test_every_launch_is_right(case):
    assert bench().run(case, LAUNCHES) == (0, 0)
