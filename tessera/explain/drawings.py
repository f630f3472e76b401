"""Draws parts of a report as SVG and HTML: shared memory over a kernel's life, the pipeline of a loop, layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from tessera.analysis.reports import BufferReport, LayoutReport, LoopReport, Report

WIDTH, HEIGHT, LEFT = 900, 260, 90  # pixels
COLOURS = ("#7aa6d8", "#e0a458", "#8fc08a", "#c58fc0", "#d98880", "#76c7c0", "#b8b04f", "#9fa8da")
ITERATIONS = 12  # of a pipeline that are drawn


def colour(number: int, count: int) -> str:
    """Return one of `count` colours around the wheel, light enough for black text."""
    return f"hsl({360 * number // max(1, count)} 65% 75%)"


def memory(buffers: Sequence[BufferReport], total: int) -> str:
    """Return buffers as rectangles: from left to right the kernel's ops, from bottom to top bytes."""
    end = max(b.last for b in buffers) + 1
    top = max(total, *(b.offset + b.bytes for b in buffers))
    parts = [_svg(HEIGHT + 30)]
    for i, b in enumerate(sorted(buffers, key=lambda b: -b.bytes)):
        x, width = LEFT + WIDTH * b.first / end, max(3.0, WIDTH * (b.last + 1 - b.first) / end)
        height = max(2.0, HEIGHT * b.bytes / top)
        y = HEIGHT - HEIGHT * b.offset / top - height
        about = (
            f"{b.name}: {b.bytes:,} bytes at {b.offset:,}, lines {b.first_line} to {b.last_line}"
        )
        parts.append(
            f'<g><title>{escape(about)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{COLOURS[i % len(COLOURS)]}" fill-opacity=".8"/>'
        )
        if height > 12:
            parts.append(
                f'<text x="{x + 4:.1f}" y="{y + 12:.1f}" style="fill:#111">{escape(about)}</text>'
            )
        parts.append("</g>")
    parts.append(f'<text x="0" y="12">{top:,} bytes</text><text x="0" y="{HEIGHT}">0</text>')
    parts.append(
        f'<text class="faint" x="{LEFT}" y="{HEIGHT + 20}">the kernel\'s operations, in program order</text></svg>'
    )
    return "".join(parts)


def _svg(height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + LEFT + 20}" height="{height}" role="img">'
        f'<rect class="frame" x="{LEFT}" y="0" width="{WIDTH}" height="{height - 30}"/>'
    )


def pipeline_spans(
    load: float, compute: float, stages: int
) -> Iterator[tuple[str, int, float, float]]:
    """Return (row, iteration, start, end) of a loop whose copies run at most `stages - 1` iterations ahead, or follow
    the computation if there is one buffer."""
    loaded: list[float] = []
    computed: list[float] = []
    for i in range(ITERATIONS):
        free = computed[i - stages + 1] if stages > 1 and i >= stages - 1 else 0.0
        if stages == 1 and computed:
            free = computed[-1]
        start = max(loaded[-1] if loaded else 0.0, free)
        loaded.append(start + load)
        yield "copies", i, start, loaded[-1]
        begin = max(loaded[-1], computed[-1] if computed else 0.0)
        computed.append(begin + compute)
        yield "computation", i, begin, computed[-1]


def pipeline(loop: LoopReport, report: Report) -> str:
    """Return the first iterations of a loop as a timeline, with the predicted times of copies and computation."""
    times = report.roofline.times
    load = max(times.get("memory", 0.0), times.get("caches", 0.0))
    compute = max(
        times.get("matrix products", 0.0),
        times.get("arithmetic", 0.0),
        times.get("shared memory", 0.0),
    )
    whole = max(load, compute) or 1.0
    load, compute = max(0.05, load / whole), max(0.05, compute / whole)
    spans = list(pipeline_spans(load, compute, loop.stages))
    end = max(span[3] for span in spans)
    parts = [_svg(100)]
    for row, i, start, stop in spans:
        y = 8 if row == "copies" else 40
        x, width = LEFT + WIDTH * start / end, WIDTH * (stop - start) / end
        parts.append(
            f'<g><title>{row} of iteration {i}</title><rect x="{x:.1f}" y="{y}" width="{max(1.0, width - 1):.1f}" '
            f'height="24" fill="{COLOURS[i % max(1, loop.stages) % len(COLOURS)]}"/>'
            f'<text x="{x + 3:.1f}" y="{y + 16}" style="fill:#111">{i if width > 16 else ""}</text></g>'
        )
    roles = {r.name for r in report.schedule.roles}
    names = ("producer", "consumers") if "producer" in roles else ("copies", "compute")
    parts.append(f'<text x="0" y="24">{names[0]}</text><text x="0" y="56">{names[1]}</text>')
    parts.append(
        f'<text class="faint" x="{LEFT}" y="90">iterations, coloured by buffer; times by the roofline</text></svg>'
    )
    return "".join(parts)


def layout(found: LayoutReport) -> str:
    """Return the top left corner of a tile as a table: colours are lanes of a warp, or banks of shared memory."""
    rows: list[str] = []
    for cells, groups in zip(found.cells, found.groups, strict=True):
        row = "".join(
            f'<td style="background:{colour(g, 32)}" title="{"lane" if found.kind == "registers" else "bank"} {g}">'
            f"{escape(c)}</td>"
            for c, g in zip(cells, groups, strict=True)
        )
        rows.append(f"<tr>{row}</tr>")
    what = (
        "thread:register, coloured by lane"
        if found.kind == "registers"
        else "byte offset, coloured by bank"
    )
    shape = "x".join(map(str, found.shape))
    return (
        f"<details open><summary>{found.name}: {found.kind}, {shape}, first used by {escape(found.used_by)} ({what})"
        f'</summary><div class="scroll"><table class="cells">{"".join(rows)}</table></div>'
        f'<p class="soft">{escape(found.text)}</p></details>'
    )
