"""Prints a report of `explain` for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from posixpath import basename

from tessera.analysis.reports import LineReport, PlanReport, Report, Roofline

BAR = 8  # characters of the bar that shows a line's share of the time
SOURCE = 60  # characters of a line that are shown


def amount(x: float) -> str:
    """Return a number with three digits and a letter: 1.23 M."""
    for limit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= limit:
            return f"{x / limit:.3g} {name}"
    return f"{x:.3g} "


def duration(seconds: float) -> str:
    for limit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= limit:
            return f"{seconds / limit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"


def text(report: Report) -> str:
    """Return the report as lines of text."""
    return "\n".join(_lines(report))


def _lines(r: Report) -> Iterator[str]:
    options = ", ".join(f"{k}={v}" for k, v in r.options.items())
    yield f"{r.kernel} for {r.target}, grid {tuple(r.grid)}, {options}"
    yield from _resources(r)
    yield from _roofline(r.roofline)
    yield ""
    yield from _source(r)
    for title, part in (
        ("schedule", _schedule(r)), ("shared memory", _buffers(r)), ("accesses of global memory", _accesses(r)),
        ("remarks", _remarks(r)),
    ):  # fmt: skip
        found = list(part)
        if found:
            yield ""
            yield f"{title}:"
            yield from found
    for note in r.notes:
        yield f"note: {note}"
    if r.walked < r.programs:
        yield f"note: counts are those of {r.walked} of the {r.programs} programs"


def _resources(r: Report) -> Iterator[str]:
    if r.occupancy is None:
        yield f"  {r.instructions} instructions ({r.code})"
        return
    o = r.occupancy
    yield (
        f"  {r.registers} registers, {r.spills} bytes spilled, {r.shared_bytes} bytes of shared memory, "
        + (f"{r.instructions} instructions ({r.code})")
    )
    limits = ", ".join(f"{name} {n}" for name, n in o.limits.items())
    share = f"{100 * o.share:.0f} %"
    yield f"  occupancy: {o.ctas} CTAs, {o.warps} warps of an SM ({share}), bounded by {', '.join(o.bound)}"
    yield f"    CTAs by limit: {limits}; {o.waves:.2f} waves"


def _roofline(f: Roofline) -> Iterator[str]:
    measured = ""
    if f.measured is not None:
        measured = (
            f", measured {duration(f.measured)} ({f.predicted / f.measured:.2f} of it predicted)"
        )
    yield f"  predicted {duration(f.predicted)} on {f.machine}, bound by {f.bound}{measured}"
    yield f"    {amount(f.bytes_requested)}B requested, {amount(f.bytes_of_memory)}B of memory, {amount(f.flops)}flop"
    times = ", ".join(f"{name} {duration(t)}" for name, t in f.times.items() if t)
    yield f"    by limit: {times}"


def _source(r: Report) -> Iterator[str]:
    gpu = r.occupancy is not None
    yield (
        f"{'time':<{BAR + 4}} {'bytes':>8} {'flops':>8} {'code':>6}"
        + (f" {'regs':>5} {'spill':>5} {'banks':>9}" if gpu else f" {'vectors':>7}")
        + "  source"
    )
    file = ""
    for x in r.lines:
        if x.file != file:
            file = x.file
            yield f"--- {file}"
        yield _row(x, gpu)


def _row(x: LineReport, gpu: bool) -> str:
    bar = "#" * round(BAR * x.share)
    share = f"{100 * x.share:3.0f}" if x.share >= 0.005 else "   "
    moved, flops = x.loaded + x.stored, x.flops
    cells = f"{share} {bar:<{BAR}} {_cell(moved):>8} {_cell(flops):>8} {x.instructions or '':>6}"
    if gpu:
        banks = f"{amount(x.bank_passes)}" if x.bank_passes else ""
        conflicts = f"!{100 * x.bank_conflicts / x.bank_passes:.0f}%" if x.bank_conflicts else ""
        cells += f" {x.registers or x.live_registers or '':>5} {x.spills or '':>5} {banks.strip() + conflicts:>9}"
    else:
        cells += f" {x.kinds.get('vectors', '') or '':>7}"
    return f"{cells}  {x.line:4} {x.source[:SOURCE]}".rstrip()


def _cell(x: float) -> str:
    return amount(x).strip() if x else ""


def _schedule(r: Report) -> Iterator[str]:
    for loop in r.schedule.loops:
        how = f", {loop.stages} stages" if loop.stages > 1 else ""
        copies = f", tiles by {loop.copies}" if loop.copies else ""
        yield f"  loop at {loop.place}: {loop.trips:.4g} iterations{how}{copies}"
        if loop.plan is not None:
            yield from _plan(loop.plan)
    for role in r.schedule.roles:
        registers = f" of {role.registers} registers" if role.registers else ""
        yield f"  role {role.name}: {role.warps} warps{registers}"
    if r.schedule.persistent:
        yield "  persistent: CTAs run several programs each"
    if r.schedule.cluster > 1:
        yield f"  clusters of {r.schedule.cluster} CTAs"
    if r.schedule.overlapping:
        yield "  warpgroups take turns with matrix products (ping-pong)"


def _plan(p: PlanReport) -> Iterator[str]:
    shared = f", {p.ctas} CTAs share an SM" if p.ctas > 1 else ""
    yield f"    plan: {p.what}{shared}"
    parts = ", ".join(f"{part} {n:.0f}" for part, n in p.cycles.items() if n >= 1)
    yield f"    cycles an iteration: {p.predicted:.0f}, bound by {p.bound}; busy: {parts}"
    if p.other:
        yield f"    runner-up: {p.other}, {p.other_predicted:.0f} cycles; lost: {p.why}"


def _buffers(r: Report) -> Iterator[str]:
    for b in r.buffers:
        yield f"  {b.offset:7} {b.bytes:7} bytes  {b.name:<16} {b.place:<20} lines {b.first_line} to {b.last_line}"


def _accesses(r: Report) -> Iterator[str]:
    unit = "sectors of 32 bytes" if r.occupancy is not None else "lines of 64 bytes"
    for x in r.lines:
        for a in x.accesses:
            each = a.sectors / a.requests if a.requests else 0.0
            share = f"{100 * a.coalescing:.0f} % used"
            moved = f"{amount(a.bytes):>7}B, {each:.4g} {unit} a request, {share}"
            yield f"  {a.place:<22} {a.what:<14} {a.width:<22} {moved}"


def _remarks(r: Report) -> Iterator[str]:
    for x in r.remarks:
        yield f"  {x.place}: {x.what}"
        if x.reason:
            yield f"    because: {x.reason}"
        if x.remedy:
            yield f"    remedy: {x.remedy}"


def short_name(path: str) -> str:
    return basename(path)
