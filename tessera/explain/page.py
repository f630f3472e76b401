"""Draws reports as one HTML page, which needs nothing else: source with heat beside the IR of each level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tessera.analysis.reports import LineReport, Remark, Report
from tessera.explain import drawings
from tessera.explain.text import amount, duration

MOST_LINES = 6000  # of a level's text
FOLDER = Path(__file__).parent


def page(reports: Sequence[Report]) -> str:
    """Return the page, as text."""
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    title = ", ".join(dict.fromkeys(r.kernel for r in reports)) or "no kernel"
    body = "\n".join(part for i, r in enumerate(reports) for part in _report(r, i))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>tessera explain: {escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>\n<body><main>'
        f'<button id="theme" style="float:right">light or dark</button>\n{body}\n'
        f"</main><script>{script}</script></body></html>\n"
    )


def _report(r: Report, number: int) -> Iterator[str]:
    options = ", ".join(f"{k}={v}" for k, v in r.options.items())
    yield f'<section class="report" id="report-{number}"><header><h1>{escape(r.kernel)}</h1>'
    yield f'<span class="soft">{escape(r.target)}, grid {tuple(r.grid)}, {escape(options)}</span></header>'
    yield _facts(r)
    yield _roofline(r)
    yield f'<h2>Source and code</h2><div class="both">{_source(r)}{_levels(r)}</div>'
    if r.remarks:
        items = "".join(_remark(x, r) for x in r.remarks)
        yield f'<h2>Remarks</h2><ul class="remarks">{items}</ul>'
    yield from _schedule(r)
    yield _accesses(r)
    if r.layouts:
        pictures = "".join(drawings.layout(x) for x in r.layouts)
        yield f"<h2>Layouts</h2><details><summary>{len(r.layouts)} layouts: which thread holds what</summary>"
        yield f"{pictures}</details>"
    notes = [*r.notes]
    if r.walked < r.programs:
        notes.append(f"counts are those of {r.walked} of the {r.programs} programs")
    yield "".join(f'<p class="soft">{escape(x)}</p>' for x in notes) + "</section>"


def _fact(value: str, name: str) -> str:
    return f'<div class="fact"><b>{escape(value)}</b><span class="soft">{escape(name)}</span></div>'


def _facts(r: Report) -> str:
    f = r.roofline
    found = [_fact(duration(f.predicted), f"predicted on {f.machine}"), _fact(f.bound, "bounds it")]
    if f.measured is not None:
        found.append(_fact(duration(f.measured), "measured"))
    found += [
        _fact(f"{amount(f.bytes_of_memory)}B", "of memory"),
        _fact(f"{amount(f.flops)}flop", "on floats"),
    ]
    found.append(_fact(f"{r.instructions}", f"instructions ({r.code})"))
    if r.occupancy is not None:
        o = r.occupancy
        found.append(
            _fact(
                f"{100 * o.share:.0f} %", f"occupancy: {o.ctas} CTAs an SM, by {', '.join(o.bound)}"
            )
        )
        found.append(_fact(f"{r.registers}", f"registers, {r.spills} bytes spilled"))
        found.append(_fact(f"{r.shared_bytes:,}", "bytes of shared memory"))
    return f'<div class="facts">{"".join(found)}</div>'


def _roofline(r: Report) -> str:
    most = max(r.roofline.times.values(), default=0.0) or 1.0
    rows = "".join(
        f'<tr class="{"bound" if name == r.roofline.bound else ""}"><td class="text">{escape(name)}</td>'
        f"<td>{duration(t)}</td>"
        f'<td class="text" style="width:420px"><i style="width:{100 * t / most:.1f}%"></i></td></tr>'
        for name, t in r.roofline.times.items()
        if t
    )
    return f'<h2>Time by limit</h2><table class="roof">{rows}</table>'


# --- source and IR ----------------------------------------------------------------------------------------------
def _source(r: Report) -> str:
    gpu = r.occupancy is not None
    names = [
        "%",
        "loaded",
        "stored",
        "flops",
        r.code,
        *(["registers", "of tiles", "spills", "banks"] if gpu else ["vectors"]),
    ]
    cells = [_cells(x, gpu) for x in r.lines]
    used = [i for i in range(len(names)) if any(row[i] for row in cells)]
    head = "".join(f"<th>{escape(names[i])}</th>" for i in used)
    rows: list[str] = []
    file = ""
    hottest = max((x.share for x in r.lines), default=0.0) or 1.0
    for i, x in enumerate(r.lines):
        if x.file != file:
            file = x.file
            rows.append(
                f'<tr><td class="text soft" colspan="{len(used) + 2}">{escape(file)}</td></tr>'
            )
        rows.append(_row(x, i, [cells[i][k] for k in used], hottest))
    return (
        f'<div class="pane source"><table><thead><tr>{head}<th></th><th class="text">source</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(x: LineReport, gpu: bool) -> list[str]:
    cells = [
        f"{100 * x.share:.0f}" if x.share >= 0.005 else "",
        *map(_cell, (x.loaded, x.stored, x.flops)),
    ]
    cells.append(str(x.instructions or ""))
    if gpu:
        banks = _cell(x.bank_passes)
        if x.bank_conflicts:
            share = 100 * x.bank_conflicts / x.bank_passes
            banks = f'<span class="conflict" title="bank conflicts">{share:.0f} % of {banks}</span>'
        spills = f'<span class="conflict">{x.spills}</span>' if x.spills else ""
        cells += [str(x.registers or ""), str(x.live_registers or ""), spills, banks]
    else:
        cells.append(str(x.kinds.get("vectors", "") or ""))
    return cells


def _row(x: LineReport, number: int, cells: list[str], hottest: float) -> str:
    body = "".join(f"<td>{c}</td>" for c in cells)
    kinds = ", ".join(f"{n} {k}" for k, n in x.kinds.items())
    return (
        f'<tr data-line="{number}" style="--heat:{0.75 * x.share / hottest:.2f}" title="{escape(kinds)}">{body}'
        f'<td class="soft">{x.line}</td><td class="text">{escape(x.source)}</td></tr>'
    )


def _cell(x: float) -> str:
    return amount(x).strip() if x else ""


def _levels(r: Report) -> str:
    if not r.ir:
        return ""
    shown = "gir" if "gir" in r.ir else next(iter(r.ir))
    buttons = "".join(
        f'<button data-level="{level}" aria-selected="{str(level == shown).lower()}">{level}</button>'
        for level in r.ir
    )
    panes = "".join(_level(level, *r.ir[level], level == shown) for level in r.ir)
    return f'<div class="pane"><div class="tabs">{buttons}</div>{panes}</div>'


def _level(level: str, text: str, lines: list[int], shown: bool) -> str:
    rows: list[str] = []
    for code, line in list(zip(text.splitlines(), lines, strict=False))[:MOST_LINES]:
        mark = f' data-line="{line}"' if line >= 0 else ""
        rows.append(f"<div{mark}>{escape(code)}</div>")
    return f'<div class="ir{" shown" if shown else ""}" data-level="{level}">{"".join(rows)}</div>'


def _remark(x: Remark, r: Report) -> str:
    number = next(
        (
            i
            for i, line in enumerate(r.lines)
            if x.place.split(" > ")[-1] == f"{Path(line.file).name}:{line.line}"
        ),
        -1,
    )
    mark = f' data-line="{number}"' if number >= 0 else ""
    return (
        f"<li><a{mark}>{escape(x.place)}</a>: {escape(x.what)}<br><span class='soft'>because: {escape(x.reason)}</span>"
        f"<br><span class='remedy'>remedy: {escape(x.remedy)}</span></li>"
    )


# --- schedule and memory ----------------------------------------------------------------------------------------
def _schedule(r: Report) -> Iterator[str]:
    s = r.schedule
    if r.occupancy is not None:
        limits = ", ".join(f"{name}: {n}" for name, n in r.occupancy.limits.items())
        yield f"<h2>Schedule</h2><p>CTAs an SM by limit: {escape(limits)}; {r.occupancy.waves:.2f} waves."
        for role in s.roles:
            registers = f" of {role.registers} registers" if role.registers else ""
            yield f" Role {role.name}: {role.warps} warps{registers}."
        yield (" CTAs run several programs each." if s.persistent else "") + "</p>"
    for loop in s.loops:
        stages = f"{loop.stages} stages" if loop.stages > 1 else "one stage"
        by = f", tiles by {loop.copies}" if loop.copies else ""
        yield f"<p>Loop at {escape(loop.place)}: {loop.trips:.4g} iterations, {stages}{escape(by)}.</p>"
        if loop.stages > 1:
            yield f'<div class="scroll">{drawings.pipeline(loop, r)}</div>'
    if r.buffers:
        yield f'<h2>Shared memory</h2><div class="scroll">{drawings.memory(r.buffers, r.shared_bytes)}</div>'


def _accesses(r: Report) -> str:
    unit = "sectors a request" if r.occupancy is not None else "lines a request"
    rows = "".join(
        f'<tr data-line="{i}"><td class="text">{escape(a.place)}</td><td class="text">{escape(a.what)}</td>'
        f'<td class="text">{escape(a.width)}</td><td>{amount(a.bytes)}B</td>'
        f"<td>{a.sectors / a.requests if a.requests else 0:.2f}</td><td>{100 * a.coalescing:.0f} %</td></tr>"
        for i, x in enumerate(r.lines)
        for a in x.accesses
    )
    heads = "".join(f"<th>{h}</th>" for h in ("line", "access", "width", "bytes", unit, "used"))
    return f"<h2>Accesses of global memory</h2><table><tr>{heads}</tr>{rows}</table>"
