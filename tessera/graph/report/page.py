"""Draws a report as one HTML page without scripts: the steps of each graph from top to bottom, tensors as lines from
the step that makes them to the last one that reads them, times as bars beside the least that the roofline allows."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from html import escape
from math import log
from pathlib import Path

from tessera.graph.report.rows import GraphReport, Report, StepReport, TensorReport

# Pixels: height of a step; distance of lines; widths of texts, of bars, and of the numbers of arguments and results.
ROW, LANE, LABEL, BARS, ENDS = 22, 7, 520, 240, 48
COLOURS = {"kernel": "#2b6cb0", "extern": "#b7791f", "numpy": "#c53030"}
LINES = {"input": "#718096", "temporary": "#3182ce", "output": "#2f855a", "foreign": "#b7791f"}

STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:24px;color:#1a202c}
table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #e2e8f0}
td:first-child,th:first-child{text-align:left}pre{background:#f7fafc;padding:10px;overflow:auto;font-size:12px}
svg{display:block;margin:12px 0}.lane{stroke-width:2.5}.lane:hover{stroke-width:6}.scroll{overflow-x:auto}
"""


LEGEND = (
    "<p>Lines on the left are tensors, from the step that makes or first reads them to the last one that reads them; "
    "numbers are arguments that only this step reads, and results of the graph: "
    + ", ".join(f'<span style="color:{colour}">{place}</span>' for place, colour in LINES.items())
    + ". Bars are measured times on a logarithmic scale, black marks the least times that the roofline allows.</p>"
)


def save(report: Report, path: str | Path) -> Path:
    """Write the page to a file."""
    place = Path(path)
    place.write_text(page(report), encoding="utf-8")
    return place


def page(report: Report) -> str:
    """The page, as text."""
    body = "\n".join(_sections(report))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>tessera: what became of the model</title>'
        f"<style>{STYLE}</style></head>\n<body>\n<h1>What became of the model</h1>\n{body}\n</body></html>\n"
    )


def _sections(report: Report) -> Iterator[str]:
    yield _summary(report)
    for number, graph in enumerate(report.graphs):
        yield f"<h2>Graph {number}: {escape(graph.purpose)}</h2>"
        yield f"<p>{escape(str(graph).splitlines()[0])}</p>"
        if graph.steps:
            yield LEGEND
            yield f'<div class="scroll">{drawing(graph)}</div>'
        yield from _externs(graph)
        yield from _sources(graph)


def _summary(report: Report) -> str:
    head = Report(
        [], report.graph_breaks, report.memory, report.distances, report.peak, report.notes
    )
    lines = str(head).splitlines()
    if not report.graphs:
        return f"<p>{escape(lines[0])}</p>"
    items = "".join(f"<li>{escape(line)}</li>" for line in lines[1:])
    return f"<ul>{items}</ul>"


def _externs(graph: GraphReport) -> Iterator[str]:
    rows = [(f"{op}", n, why) for op, why, n in graph.externs]
    rows += [(op, 1, why) for op, why in graph.without_kernel]
    if rows:
        cells = "".join(
            f"<tr><td>{escape(op)}</td><td>{n}</td><td>{escape(why)}</td></tr>"
            for op, n, why in rows
        )
        yield f"<details><summary>{len(rows)} operations without a kernel</summary>"
        yield f"<table><tr><th>operation</th><th>times</th><th>reason</th></tr>{cells}</table></details>"


def _sources(graph: GraphReport) -> Iterator[str]:
    sources = {s.name: s.source for s in graph.steps if s.source}
    if sources:
        yield f"<details><summary>source of {len(sources)} kernels</summary>"
        for name, text in sources.items():
            yield f'<details id="{escape(name)}"><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>'
        yield "</details>"


# --- the drawing ------------------------------------------------------------------------------------------------
def lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """A column for each span of rows, so that spans which overlap have different ones: the first that is free."""
    ends: list[int] = []
    found = [0] * len(spans)
    for k in sorted(range(len(spans)), key=lambda k: spans[k]):
        first, last = spans[k]
        lane = next((n for n, end in enumerate(ends) if end <= first), len(ends))
        if lane == len(ends):
            ends.append(last)
        ends[lane] = last
        found[k] = lane
    return found


def _rows(graph: GraphReport) -> tuple[dict[int, int], dict[int, list[int]]]:
    """By tensor: the row that makes it, and the rows that read it afterwards."""
    made: dict[int, int] = {}
    read: dict[int, list[int]] = {}
    for row, step in enumerate(graph.steps):
        for t in step.reads:
            read.setdefault(t, []).append(row)
        for t in step.writes:
            made.setdefault(t, row)
    return made, {t: [r for r in rows if r > made.get(t, -1)] for t, rows in read.items()}


def _spans(graph: GraphReport) -> dict[int, tuple[int, list[int]]]:
    """By tensor: the row where its line begins, and those that read it. Arguments begin where they are read first; what
    is read by one step only, and by none that follows, has no line."""
    made, read = _rows(graph)
    spans = {t: (made.get(t, rows[0] if rows else 0), rows) for t, rows in read.items()}
    return {t: (first, rows) for t, (first, rows) in spans.items() if rows and max(rows) > first}


def _ends(graph: GraphReport, row: int, lined: Container[int]) -> tuple[list[str], list[str]]:
    """Names of the arguments that only this step reads, and of the results that it makes."""
    step, tensors = graph.steps[row], graph.tensors
    given = [t for t in step.reads if tensors[t].place == "input" and t not in lined]
    results = [t for t in step.writes if tensors[t].place in ("output", "input")]
    return [about(tensors[t]) for t in given], [about(tensors[t]) for t in results]


def about(t: TensorReport) -> str:
    return f"{t.name}: {t.type}, {t.bytes:,} bytes, {t.place}"


def drawing(graph: GraphReport) -> str:
    """The graph as SVG: a row for each step; on the left a line for each tensor, with a dot where it is read."""
    spans = _spans(graph)
    columns = lanes([(first, max(rows)) for first, rows in spans.values()])
    count = max(columns, default=-1) + 1
    left = count * LANE + ENDS + 16
    height, width = (len(graph.steps) + 1) * ROW, left + LABEL + BARS + 90
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="ui-monospace, DejaVu Sans Mono, monospace" font-size="12">'
    ]
    for (t, (first, rows)), column in zip(spans.items(), columns, strict=True):
        parts.append(_line(graph.tensors[t], first, rows, 8 + column * LANE, left))
    scale = _Scale(graph.steps)
    parts += [_row(s, k, left, scale) for k, s in enumerate(graph.steps)]
    for k in range(len(graph.steps)):
        given, results = _ends(graph, k, spans)
        parts.append(_counts(given, LINES["input"], left - ENDS + 2, k))
        parts.append(_counts(results, LINES["output"], left - ENDS // 2 + 2, k))
    return "".join([*parts, "</svg>"])


def _counts(names: Sequence[str], colour: str, x: int, row: int) -> str:
    """How many tensors begin or end at a step; their names where the pointer is."""
    if not names:
        return ""
    title, y = escape("\n".join(names)), _middle(row) + 4
    return f'<g><title>{title}</title><text x="{x}" y="{y}" fill="{colour}">{len(names)}</text></g>'


def _middle(row: int) -> int:
    return row * ROW + ROW


def _line(t: TensorReport, first: int, rows: Sequence[int], x: int, left: int) -> str:
    colour = LINES.get(t.place, LINES["temporary"])
    start, end = _middle(first), _middle(max(rows))
    title = escape(about(t))
    lines = [f'<line class="lane" x1="{x}" y1="{start}" x2="{x}" y2="{end}"/>']
    lines.append(f'<line x1="{x}" y1="{start}" x2="{left}" y2="{start}" stroke-opacity=".35"/>')
    dots = "".join(f'<circle cx="{x}" cy="{_middle(r)}" r="2.6" fill="{colour}"/>' for r in rows)
    return f'<g stroke="{colour}"><title>{title}</title>{"".join(lines)}{dots}</g>'


class _Scale:
    """A logarithmic scale of times, in pixels: equal factors are equal distances."""

    def __init__(self, steps: Sequence[StepReport]):
        times = [t for s in steps for t in (s.seconds, s.roofline) if t]
        self.least = min(times, default=1e-6) / 2
        self.unit = BARS / log(max(times, default=1e-6) / self.least)

    def __call__(self, seconds: float) -> float:
        return log(seconds / self.least) * self.unit if seconds > self.least else 0.0


def _row(s: StepReport, row: int, left: int, scale: _Scale) -> str:
    y = row * ROW + ROW // 2
    colour = COLOURS.get(s.kind, "#4a5568")
    text = f"{s.name}  {s.ops or s.why}"
    limit = LABEL // 7 - 4
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    took = "" if s.seconds is None else f"{s.seconds * 1e6:.1f} us, "
    names = f"; computes {', '.join(s.origins)}" if s.origins else ""
    about = f"{took}at least {s.roofline * 1e6:.1f} us; {s.bytes:,} bytes, {s.flops:,} operations{names}"
    x = left + LABEL
    bar, least = scale(s.seconds or 0.0), x + scale(s.roofline)
    return (
        f"<g><title>{escape(f'{s.kind} {text}: {about}')}</title>"
        f'<rect x="{left}" y="{y + 2}" width="{LABEL - 8}" height="{ROW - 4}" fill="{colour}" fill-opacity=".12"/>'
        f'<rect x="{left}" y="{y + 2}" width="4" height="{ROW - 4}" fill="{colour}"/>'
        f'<text x="{left + 10}" y="{y + 15}">{escape(shown)}</text>'
        f'<rect x="{x}" y="{y + 6}" width="{bar:.1f}" height="{ROW - 12}" fill="{colour}"/>'
        f'<line x1="{least:.1f}" y1="{y + 3}" x2="{least:.1f}" y2="{y + ROW - 3}" stroke="#1a202c" stroke-width="2"/>'
        f'<text x="{x + max(bar, 4) + 6:.1f}" y="{y + 15}" fill="#4a5568">{_time(s)}</text></g>'
    )


def _time(s: StepReport) -> str:
    return "" if s.seconds is None else f"{s.seconds * 1e6:.1f} us"
