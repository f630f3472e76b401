"""Plots of results: lines over sizes, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tools.site.svg import FAINT, INK, LINES, Picture

LEFT, TOP, WIDTH, HEIGHT = 64, 34, 520, 220


def colour(k: int) -> str:
    return LINES[k % len(LINES)]


def legend(picture: Picture, names: Sequence[str], y: float = 16) -> None:
    x = float(LEFT)
    for k, name in enumerate(names):
        picture.box(x, y - 10, 12, 12, colour(k), colour(k))
        picture.text(x + 17, y, name, size=12)
        x += 40 + 7.2 * len(name)


def ticks(top: float) -> list[float]:
    """Round numbers from 0 to a little above `top`."""
    step = 10 ** math.floor(math.log10(top))
    step *= next(f for f in (0.1, 0.2, 0.25, 0.5, 1, 2) if top / (step * f) <= 6)
    return [k * step for k in range(math.ceil(top / step) + 1)]


def frame(picture: Picture, top: float, unit: str) -> float:
    """The vertical axis with its lines; return the pixels of one unit."""
    marks = ticks(top)
    scale = HEIGHT / marks[-1]
    for mark in marks:
        y = TOP + HEIGHT - mark * scale
        picture.line(LEFT, y, LEFT + WIDTH, y, FAINT, 0.7)
        picture.text(LEFT - 8, y + 4, f"{mark:,g}", "end", 11)
    picture.text(LEFT + WIDTH, 16, unit, "end", 12)
    return scale


def lines(
    title: str, xs: Sequence[float], series: Mapping[str, Sequence[float]], unit: str, along: str
) -> Picture:
    """A line for each series over a logarithmic axis."""
    picture = Picture(title)
    legend(picture, list(series))
    scale = frame(picture, max(map(max, series.values())), unit)
    low, high = math.log(min(xs)), math.log(max(xs))
    at = [LEFT + 16 + (WIDTH - 32) * (math.log(x) - low) / (high - low) for x in xs]
    for x, value in zip(at, xs):
        picture.text(x, TOP + HEIGHT + 18, size_name(value), "middle", 11)
    for k, values in enumerate(series.values()):
        points = [(x, TOP + HEIGHT - v * scale) for x, v in zip(at, values)]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        picture.add(
            f'<polyline points="{joined}" fill="none" stroke="{colour(k)}" stroke-width="2.5"/>'
        )
        for x, y in points:
            picture.add(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour(k)}"/>')
    picture.text(LEFT + WIDTH / 2, TOP + HEIGHT + 38, along, "middle", 12)
    return picture


def size_name(value: float) -> str:
    for power, letter in ((20, "M"), (10, "K")):
        if value >= 1 << power and value % (1 << power) == 0:
            return f"{value / (1 << power):g}{letter}"
    return f"{value:,g}"


def bars(
    title: str,
    groups: Mapping[str, Mapping[str, float]],
    unit: str,
    digits: int = 0,
    log: bool = False,
) -> Picture:
    """Groups of bars, one below another: each bar has its number behind it."""
    picture = Picture(title)
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    if len(names) > 1:
        legend(picture, names)
    most = max(v for group in groups.values() for v in group.values())
    left = max(map(len, groups)) * 7.0 + 18
    y = 34.0 if len(names) > 1 else 10.0
    for label, group in groups.items():
        picture.text(left - 10, y + 9 * len(group) + 3, label, "end", 12)
        for name, value in group.items():
            share = math.log1p(9 * value / most) / math.log(10) if log else value / most
            picture.box(left, y, max(1.5, share * 360), 15, colour(names.index(name)), "none")
            shown = f"{value:,.{digits}f} {unit}"
            picture.text(left + max(1.5, share * 360) + 8, y + 12, shown, size=12)
            y += 18
        y += 9
    picture.line(left, 28 if len(names) > 1 else 4, left, y - 6, INK)
    return picture


def source(picture: Picture, words: str) -> Picture:
    """A last line that says where the numbers come from."""
    picture.text(10, picture.height + 18, words, size=10)
    return picture
