"""Draws tiles, arrows and plots as SVG that can be read on a light and on a dark page.

A picture in a file has a white ground. Where the site puts it into a page, its colours are those of the theme: they are
variables of the theme's style sheet, and what stands behind the comma is for everybody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

INK = "var(--md-default-fg-color, #24292f)"
FAINT = "var(--md-default-fg-color--lighter, #b0b6bd)"
GROUND = "var(--md-default-bg-color, #ffffff)"
# Colours for cells, light enough for dark digits on them, and in an order in which neighbours differ.
CELLS = (
    "#9ecae9", "#ffbf79", "#a8d8a0", "#f5a6a4", "#c9b3e6", "#d8c3a5", "#f3b8dc", "#c9cdd2", "#dcdc8a", "#94d8dc",
)  # fmt: skip
LINES = ("#3b82c4", "#d9822b", "#3f9d5a", "#c8504b", "#8a63c9")
DIGITS = "#1c1f24"
SIZE, SMALL = 30, 13  # sides of a cell with a number and of one without


@dataclass
class Picture:
    """Parts of an SVG document, and how large it is: `add` makes room for what it adds."""

    title: str
    parts: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def add(self, part: str, right: float = 0, bottom: float = 0) -> None:
        self.parts.append(part)
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", size: int = 13, fill: str = INK,
        mono: bool = False,
    ) -> None:  # fmt: skip
        family = ' font-family="ui-monospace, monospace"' if mono else ""
        wide = len(words) * size * (0.61 if mono else 0.56)
        right = x + {"start": wide, "middle": wide / 2, "end": 0}[anchor]
        self.add(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"'
            f"{family}>{escape(words)}</text>",
            right, y + 4,
        )  # fmt: skip

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        fill: str,
        stroke: str = FAINT,
        opacity: float = 1,
    ) -> None:
        self.add(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{fill}" '
            f'stroke="{stroke}" fill-opacity="{opacity}"/>',
            x + w + 1, y + h + 1,
        )  # fmt: skip

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        stroke: str = FAINT,
        width: float = 1,
        more: str = "",
    ) -> None:
        self.add(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
            f'stroke-width="{width}"{more}/>',
            max(x1, x2), max(y1, y2),
        )  # fmt: skip

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """An arrow along one of the axes."""
        self.line(x1, y1, x2, y2, INK, 1.5)
        dx, dy = np.sign(x2 - x1), np.sign(y2 - y1)
        points = [
            (x2, y2),
            (x2 - 7 * dx - 4 * dy, y2 - 7 * dy - 4 * dx),
            (x2 - 7 * dx + 4 * dy, y2 - 7 * dy + 4 * dx),
        ]
        self.add(
            f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}" fill="{INK}"/>'
        )

    def rendered(self, ground: bool = True) -> str:
        w, h = round(self.width + 10), round(self.height + 8)
        back = [f'<rect width="{w}" height="{h}" fill="{GROUND}"/>'] if ground else []
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
            f'font-family="system-ui, sans-serif"><title>{escape(self.title)}</title>',
            *back, *self.parts, "</svg>", "",
        ])  # fmt: skip


def number(value: float) -> str:
    """A number that fits a cell."""
    if np.isnan(value):
        return "NaN"
    return next((t for d in (6, 3, 2, 1) if len(t := f"{value:.{d}g}") <= 5), f"{value:.0e}")


def colours(values: np.ndarray) -> dict[float, str]:
    """A colour for each value: small integers have their own, so that they are the same in every picture."""
    different = [float(v) for v in np.unique(values)]
    if all(v == int(v) and abs(v) < 1e6 for v in different if np.isfinite(v)):
        return {v: CELLS[int(v) % len(CELLS)] if np.isfinite(v) else "#e0e0e0" for v in different}
    return {v: CELLS[k % len(CELLS)] for k, v in enumerate(different)}


def cells(
    picture: Picture,
    x: float,
    y: float,
    values: np.ndarray,
    palette: dict[float, str] | None = None,
) -> tuple[float, float]:
    """Draw a tile of up to three dimensions; return where it ends."""
    palette = palette or colours(values)
    grid = values.reshape((1,) * (3 - values.ndim) + values.shape)
    side = SIZE if grid.shape[2] <= 16 and grid.size <= 64 else SMALL
    left = x
    for slab in grid:
        for (row, col), value in np.ndenumerate(slab):
            at_x, at_y = left + col * side, y + row * side
            picture.box(at_x, at_y, side, side, palette[float(value)], "#8a9099")
            if side == SIZE:
                picture.text(
                    at_x + side / 2, at_y + side / 2 + 4, number(value), "middle", 11, DIGITS
                )
        left += slab.shape[1] * side + 14
    return left - 14, y + grid.shape[1] * side


@dataclass(frozen=True)
class Tile:
    """A tile with what it is called."""

    title: str
    values: np.ndarray


def flow(title: str, given: Sequence[Tile], made: Sequence[Tile]) -> Picture:
    """What goes in above, an arrow, what comes out below; tiles of several rows stand side by side."""
    picture = Picture(title)
    y = _stack(picture, 4, given)
    if given:
        picture.arrow(24, y + 2, 24, y + 26)
        y += 30
    _stack(picture, y, made)
    return picture


def _stack(picture: Picture, y: float, tiles: Sequence[Tile]) -> float:
    x, bottom = 6.0, y
    for tile in tiles:
        tall = tile.values.ndim > 1 and tile.values.shape[-2] > 1
        if x > 6 and (not tall or x > 420):
            x, y = 6, bottom + 6
        picture.text(x, y + 14, tile.title, size=12, mono=True)
        right, low = cells(picture, x, y + 20, tile.values)
        bottom = max(bottom, low + 4)
        if tall:
            x = max(right, x + len(tile.title) * 7.4) + 28
        else:
            x, y = 6, bottom + 2
    return bottom
