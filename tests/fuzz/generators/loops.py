"""Random loops of dots that the schedule changes: copies run ahead, MMAs run on or late (dots.py)."""

from __future__ import annotations

from tests.fuzz.generators.dots import TABLE, build
from tests.fuzz.generators.dots import draw_overlapping as draw

__all__ = ["TABLE", "build", "draw"]
