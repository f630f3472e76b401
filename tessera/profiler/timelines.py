"""Writes the trace of a kernel: as a table, as a trace for Perfetto or Chrome, as one page that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tessera.profiler.tracing import Trace

FOLDER = Path(__file__).parent
STYLE = FOLDER.parent / "explain" / "page.css"
MOST = {"chrome": 200_000, "page": 60_000}  # spans of a file, unless the caller names CTAs
HOSTS = ("cpu", "interpreter")  # where processors are threads


class Span(NamedTuple):
    """One activity of a warp. `processor`: its SM, or the thread on a CPU; `start` and `seconds`: in the unit of the
    trace. The rest: see `Event`."""

    role: str
    cta: int
    warp: int
    processor: int
    name: str
    phase: str
    loop: int
    line: int
    start: float
    seconds: float


class Row(NamedTuple):
    """An activity of a role in one phase and source line: how often it was recorded, its time over all warps."""

    role: str
    phase: str
    loop: int
    activity: str
    line: int
    records: int
    total: float


def merged(rows: Sequence[Row]) -> list[Row]:
    """Add up rows that differ in their numbers only."""
    found: dict[tuple[object, ...], Row] = {}
    for x in rows:
        old = found.get(x[:5])
        found[x[:5]] = (
            x
            if old is None
            else x._replace(records=x.records + old.records, total=x.total + old.total)
        )
    return list(found.values())


def duration(x: float, unit: str) -> str:
    """Return a time for readers: microseconds, or a count of the clock."""
    return f"{x * 1e6:.2f} us" if unit == "s" else f"{x:.0f} {unit}"


def phase_of(phase: str, loop: int) -> str:
    return (
        f"{phase} of the loop in line {loop}"
        if phase in ("prologue", "epilogue")
        else phase and f"loop in line {loop}"
    )


def lost(trace: Trace) -> str:
    return (
        f"{trace.lost} of {trace.records} records lost"
        if trace.lost
        else f"{trace.records} records, none lost"
    )


def text(trace: Trace) -> str:
    """Return the table."""
    unit = "us" if trace.unit == "s" else trace.unit
    head = (
        f"{trace.name} on {trace.target}, grid {trace.grid}: {trace.ctas} of {trace.launched} CTAs, "
        f"{len(trace.warps)} warps, {lost(trace)}"
    )
    lines = [head, f"{'share':>6} {'total ' + unit:>14} {'count':>9} {'mean ' + unit:>12}  what"]
    scale = 1e6 if trace.unit == "s" else 1.0
    for role, group in groupby(trace.rows(), key=lambda x: x.role):
        rows = list(group)
        whole = sum(x.total for x in rows) or 1.0
        lines.append(f"{'':6} {whole * scale:14.2f} {'':9} {'':12}  {role}")
        for x in rows:
            about = (
                "/".join(trace.scopes(x.line)),
                phase_of(x.phase, x.loop),
                x.line and f"line {x.line}",
            )
            place = ", ".join(p for p in about if p)
            total, mean = x.total * scale, x.total / x.records * scale
            lines.append(
                f"{100 * x.total / whole:5.1f}% {total:14.2f} {x.records:9} {mean:12.3f}"
                f"    {x.activity}{f' ({place})' if place else ''}"
            )
    return "\n".join(lines)


# --- which CTAs to show -----------------------------------------------------------------------------------------------
def chosen(trace: Trace, ctas: Sequence[int] | None, most: int) -> list[int]:
    """Return the CTAs to show: those that are given, or the first that together have no more spans than readers
    take."""
    if ctas is not None:
        return list(ctas)
    sizes: dict[int, int] = {}
    for w in trace.warps:
        sizes[w.cta] = sizes.get(w.cta, 0) + len(w.events)
    found: list[int] = []
    for cta, size in sizes.items():
        most -= size
        if most < 0 and found:
            break
        found.append(cta)
    return found


def phases(spans: Sequence[Span]) -> Iterator[tuple[str, float, float, int]]:
    """Yield what encloses the spans of a warp: (phase, start, end, iterations of the loop, 0 outside)."""
    for (phase, loop), group in groupby(spans, key=lambda s: (s.phase, s.loop)):
        inside = list(group)
        end = inside[-1].start + inside[-1].seconds
        if phase:
            seen = [(s.name, s.line) for s in inside]
            count = max(map(seen.count, dict.fromkeys(seen))) if phase == "loop" else 0
            yield phase_of(phase, loop), inside[0].start, end, count


def _on_host(trace: Trace) -> bool:
    return trace.target.partition(":")[0] in HOSTS


def _by_warp(trace: Trace, ctas: Sequence[int]) -> Iterator[list[Span]]:
    for _, group in groupby(trace.spans(ctas), key=lambda s: (s.cta, s.warp)):
        yield list(group)


# --- Perfetto ---------------------------------------------------------------------------------------------------------
def chrome_trace(trace: Trace, ctas: Sequence[int] | None) -> str:
    """Return the events as JSON for ui.perfetto.dev and chrome://tracing: a process for each CTA, or thread of a CPU,
    and a track for each warp. Times are in microseconds, or in steps of a clock that counts."""
    shown = chosen(trace, ctas, MOST["chrome"])
    scale = 1e6 if trace.unit == "s" else 1.0
    host = _on_host(trace)
    events: list[dict[str, object]] = []
    named: set[tuple[int, int]] = set()
    for spans in _by_warp(trace, shown):
        first = spans[0]
        process, track = (0, first.processor) if host else (first.cta, first.warp)
        if (process, track) not in named:
            named.add((process, track))
            events += _names(trace, first, process, track, host)
        common = {"ph": "X", "pid": process, "tid": track}
        for name, start, end, count in phases(spans):
            about = {"iterations": count} if count else {}
            events.append({
                **common, "cat": "phase", "name": name, "ts": start * scale, "dur": (end - start) * scale,
                "args": {**about, "cta": first.cta},
            })  # fmt: skip
        for s in spans:
            events.append({
                **common, "cat": s.role, "name": s.name, "ts": s.start * scale, "dur": s.seconds * scale,
                "args": {"line": s.line, "cta": s.cta, **_scopes(trace, s.line)},
            })  # fmt: skip
    about = {
        "kernel": trace.name, "target": trace.target, "grid": trace.grid, "unit": trace.unit, "lost": trace.lost,
        "records": trace.records, "ctas": f"{len(shown)} of {trace.launched}",
    }  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about})


def _scopes(trace: Trace, line: int) -> dict[str, str]:
    names = trace.scopes(line)
    return {"scopes": "/".join(names)} if names else {}


def _names(
    trace: Trace, s: Span, process: int, track: int, host: bool
) -> Iterator[dict[str, object]]:
    outer = trace.name if host else f"CTA {s.cta} on SM {s.processor}"
    inner = f"thread {s.processor}" if host else f"warp {s.warp}: {s.role}"
    for what, name in (("process_name", outer), ("thread_name", inner)):
        yield {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}
    yield {
        "ph": "M",
        "name": "thread_sort_index",
        "pid": process,
        "tid": track,
        "args": {"sort_index": track},
    }


# --- the page ---------------------------------------------------------------------------------------------------------
def page(trace: Trace, ctas: Sequence[int] | None) -> str:
    """Return the page: a timeline for each warp, which can be zoomed, and the table."""
    shown = chosen(trace, ctas, MOST["page"])
    names: dict[str, int] = {}
    tracks: list[dict[str, object]] = []
    processor = "thread" if _on_host(trace) else "SM"
    for spans in _by_warp(trace, shown):
        s = spans[0]
        tracks.append({
            "cta": s.cta, "warp": s.warp, "role": s.role, "on": f"{processor} {s.processor}",
            "spans": [[names.setdefault(x.name, len(names)), x.line, x.start, x.seconds] for x in spans],
            "phases": [list(p) for p in phases(spans)],
        })  # fmt: skip
    data = {"names": list(names), "unit": trace.unit, "tracks": tracks}
    left_out = (
        ""
        if len(shown) == trace.ctas
        else f" The timeline shows {len(shown)} of {trace.ctas} recorded CTAs."
    )
    legend = "".join(
        f'<span class="key" data-name="{i}"><i></i>{escape(name)}</span>'
        for i, name in enumerate(names)
    )
    about = (
        f"{escape(trace.target)}, grid {trace.grid}; {trace.ctas} of {trace.launched} CTAs recorded, "
        f"{lost(trace)}.{left_out}"
    )
    style = STYLE.read_text(encoding="utf-8") + (FOLDER / "timeline.css").read_text(
        encoding="utf-8"
    )
    script = (FOLDER / "timeline.js").read_text(encoding="utf-8")
    encoded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>tessera trace: {escape(trace.name)}</title>"
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>\n<body><main>'
        f'<button id="theme" style="float:right">light or dark</button><header><h1>{escape(trace.name)}</h1>'
        f'<span class="soft">{about}</span></header><p class="soft">Wheel: zoom; drag: move; double click: all.</p>'
        f'<div id="legend">{legend}</div><div id="timeline"><canvas></canvas><div id="tip" hidden></div></div>'
        f"{''.join(_tables(trace))}</main>"
        f'<script type="application/json" id="data">{encoded}</script><script>{script}</script></body></html>\n'
    )


def _tables(trace: Trace) -> Iterator[str]:
    for role, group in groupby(trace.rows(), key=lambda x: x.role):
        rows = list(group)
        whole = sum(x.total for x in rows) or 1.0
        body = "".join(
            f"<tr><td>{100 * x.total / whole:.1f} %</td><td>{duration(x.total, trace.unit)}</td><td>{x.records}</td>"
            f'<td>{duration(x.total / x.records, trace.unit)}</td><td class="text">{escape(x.activity)}</td>'
            f'<td class="text">{escape(phase_of(x.phase, x.loop))}</td><td>{x.line or ""}</td></tr>'
            for x in rows
        )
        heads = "".join(f"<th>{h}</th>" for h in ("share", "total", "count", "mean"))
        words = "".join(f'<th class="text">{h}</th>' for h in ("activity", "phase"))
        yield f"<h2>{escape(role)}</h2><table><tr>{heads}{words}<th>line</th></tr>{body}</table>"
