"""The ratios of all rows in benchmarks/results/ as an SVG picture: one line for each group of the summary table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

LEFT, RIGHT, STEP, TOP = 330, 860, 26, 44
LOWEST, HIGHEST = 0.8, 20.0
TICKS = (0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20)
# On a page of the site those of its theme (tools/site/svg.py), else those behind the comma.
INK = "var(--md-default-fg-color, #222)"
FAINT = "var(--md-default-fg-color--lighter, #ddd)"
GROUND = "var(--md-default-bg-color, white)"
COLOURS = {"triton": "#1f77b4", "torch": "#d62728"}
Group = tuple[str, Sequence[tuple[str, float]]]  # a title; rivals and ratios


def x_of(ratio: float) -> float:
    """On a logarithmic axis; what lies beyond an end is drawn there."""
    inside = min(max(ratio, LOWEST), HIGHEST)
    share = math.log(inside / LOWEST) / math.log(HIGHEST / LOWEST)
    return LEFT + share * (RIGHT - LEFT)


def text(x: float, y: float, words: str, anchor: str = "end", colour: str = INK) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def drawn(groups: Iterable[Group]) -> str:
    """The picture: a dot for each ratio, those of Triton above the line and those of torch below it."""
    found = list(groups)
    bottom = TOP + STEP * len(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{RIGHT + 30}" height="{bottom + 24}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="{GROUND}"/>',
        text(LEFT, 16, "time of the rival divided by tessera's:", "start"),
        text(LEFT + 260, 16, "Triton", "start", COLOURS["triton"]),
        text(LEFT + 320, 16, "torch and its libraries", "start", COLOURS["torch"]),
    ]
    for tick in TICKS:
        x = x_of(tick)
        colour = INK if tick == 1 else FAINT
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP - 12}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}"/>'
        )
        parts.append(text(x, TOP - 16, f"{tick:g}", "middle"))
    for i, (title, ratios) in enumerate(found):
        y = TOP + STEP * i + STEP / 2
        parts.append(text(LEFT - 12, y + 4, title))
        for rival, ratio in ratios:
            at = y - 4 if rival == "triton" else y + 4
            parts.append(
                f'<circle cx="{x_of(ratio):.1f}" cy="{at:.1f}" r="3" fill="{COLOURS[rival]}" '
                'fill-opacity="0.55"/>'
            )
    return "\n".join([*parts, "</svg>", ""])
