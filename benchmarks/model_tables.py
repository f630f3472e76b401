"""The tables of docs/performance/graph.md about whole models, from benchmarks/results/graph_models-*.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import record
from record import Results, Row

MODES = ("training", "inference")
DTYPES = ("float32", "bfloat16")
WHATS = ("GPU time", "step", "cold compile", "kernels", "peak memory")
Table = Callable[[Sequence[str], Iterable[Sequence[str]]], list[str]]


def results(mode: str) -> Results:
    return record.read(record.RESULTS / f"graph_models-{mode}.json")


def there(mode: str) -> bool:
    return (record.RESULTS / f"graph_models-{mode}.json").exists()


def origin(mode: str) -> str:
    found = results(mode)
    versions = ", ".join(f"{name} {found.versions[name]}" for name in ("torch", "triton"))
    right = f"{found.settings['right']} of {found.settings['cases']} cases right"
    return (
        f"{found.machine['device']}; {versions}; commit {found.commit} ({found.date}); "
        f"`{found.command} --device cuda --modes {mode}`; {right}."
    )


def geomean(values: Sequence[float]) -> str:
    return f"{math.exp(sum(map(math.log, values)) / len(values)):.2f}" if values else ""


def summary(table: Table) -> list[str]:
    """Geometric means and the least ratio, by kind of step and type."""
    lines: list[list[str]] = []
    for mode in filter(there, MODES):
        for dtype in DTYPES:
            rows = [r for r in results(mode).rows if r.dtype == dtype]
            cells: list[str] = []
            for what in WHATS:
                for rival in ("inductor", "eager"):
                    found = [r.ratios[rival] for r in rows if r.name == what and rival in r.ratios]
                    if what not in ("cold compile", "kernels") or rival == "inductor":
                        least = f" ({min(found):.2f})" if found else ""
                        cells.append(geomean(found) + least)
            count = sum(r.name == "step" for r in rows)
            lines.append([f"{mode}, {dtype}", str(count), *cells])
    columns = [
        "what",
        "models",
        "GPU time",
        "vs eager",
        "step",
        "vs eager",
        "cold compile",
        "kernels",
        "memory",
    ]
    return table([*columns, "vs eager"], lines)


def models(mode: str, table: Table) -> list[str]:
    """A line for each model, fp32 / bf16."""
    rows = {r.key: r for r in results(mode).rows}
    names = list(dict.fromkeys(r.shape for r in results(mode).rows))
    lines: list[list[str]] = []
    for name in sorted(names):

        def cell(what: str, show: Callable[[Row], str], name: str = name) -> str:
            found = [rows.get((what, name, dtype)) for dtype in DTYPES]
            return " / ".join("" if r is None else show(r) for r in found)

        def ratio(rival: str) -> Callable[[Row], str]:
            return lambda r: f"{r.ratios[rival]:.2f}" if rival in r.ratios else ""

        line = [name.partition(",")[0], cell("GPU time", lambda r: f"{r.times['tessera']:.0f}")]
        line += [cell("GPU time", ratio(who)) for who in ("inductor", "eager")]
        line += [cell("step", ratio(who)) for who in ("inductor", "eager")]
        line += [cell("cold compile", lambda r: f"{r.times['tessera']:.1f}")]
        line += [cell("cold compile", ratio("inductor"))]
        line += [cell("kernels", lambda r: f"{r.times['tessera']:.0f}")]
        line += [cell("kernels", ratio("inductor"))]
        line += [cell("peak memory", ratio(who)) for who in ("inductor", "eager")]
        lines.append(line)
    columns = ["model", "GPU time, µs", "vs Inductor", "vs eager", "step vs Inductor", "vs eager"]
    columns += ["cold compile, s", "vs Inductor", "kernels", "vs Inductor", "memory vs Inductor"]
    return [origin(mode), "", *table([*columns, "vs eager"], lines), "", *missing(mode)]


def missing(mode: str) -> list[str]:
    """What was not right, and what came to nothing, by the error that it met."""
    settings = results(mode).settings
    wrong = [f"{who}: {'; '.join(found)}." for who, found in settings["wrong"].items() if found]
    causes: dict[str, list[str]] = {}
    for case, why in settings["failed"].items():
        model, _, dtype, who = case.split(", ")
        whose = "" if who == "all" else f" by {who}"
        causes.setdefault(f"{why.splitlines()[0][:120]}", []).append(f"{model} {dtype}{whose}")
    failed = [f"{', '.join(found)}: `{why}`." for why, found in causes.items()]
    lines = ["Not right, " + " ".join(wrong)] if wrong else []
    return lines + (["Not measured: " + " ".join(failed)] if failed else [])


# --- CPUs -----------------------------------------------------------------------------------------------------------
CPU_WHATS = ("step", "cold compile", "kernels", "peak memory")


def on_cpu(table: Table) -> list[str]:
    """Geometric means and the least ratio by kind of step, then a line for each model; one thread."""
    found = record.read(record.RESULTS / "graph_models-cpu-1.json")
    title = f"{found.machine['processor']}, one thread; torch {found.versions['torch']}; commit {found.commit}"
    title += f" ({found.date}); `{found.command} --threads 1 --dtypes float32`;"
    title += f" {found.settings['right']} of {found.settings['cases']} cases right;"
    title += f" {found.settings['load']:.0f} others wanted the two cores in the worst part."
    kinds = [(what, rival) for what in CPU_WHATS for rival in ("inductor", "eager")]
    kinds = [k for k in kinds if k[0] not in ("cold compile", "kernels") or k[1] == "inductor"]
    means: list[list[str]] = []
    for mode in MODES:
        rows = [r for r in found.rows if r.shape.endswith(mode)]
        cells: list[str] = []
        for what, rival in kinds:
            ratios = [r.ratios[rival] for r in rows if r.name == what and rival in r.ratios]
            cells.append(f"{geomean(ratios)} ({min(ratios):.2f})")
        means.append([mode, str(sum(r.name == "step" for r in rows)), *cells])
    named = {"inductor": "Inductor", "eager": "eager"}
    columns = [f"{what} vs {named[rival]}" for what, rival in kinds]
    lines = [_of_cpu(found, model, kinds) for model in sorted({r.shape for r in found.rows})]
    head = ["model", "step, ms", "cold compile, s", *columns]
    return [title, "", *table(["what", "models", *columns], means), "", *table(head, lines)]


def _of_cpu(found: Results, model: str, kinds: Sequence[tuple[str, str]]) -> list[str]:
    rows = {r.name: r for r in found.rows if r.shape == model}
    cells = [f"{rows[w].times['tessera']:.3g}" if w in rows else "" for w in CPU_WHATS[:2]]
    for what, rival in kinds:
        ratios = rows[what].ratios if what in rows else {}
        cells.append(f"{ratios[rival]:.2f}" if rival in ratios else "")
    return [model, *cells]
