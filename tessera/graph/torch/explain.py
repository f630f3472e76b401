"""Reports what becomes of a model: its graphs, kernels and their times, what runs by eager and why, memory, numbers."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.utils import counters

from tessera.graph.calls.executable import Executable
from tessera.graph.passes.layouts import NOTE
from tessera.graph.planning.plan import Interpret, Launch
from tessera.graph.report.graphs import GraphFacts
from tessera.graph.report.page import save
from tessera.graph.report.rows import GraphReport, Peak, Report
from tessera.graph.torch.host import current
from tessera.graph.torch.measure import (
    distances,
    peak_bytes,
    peak_of,
    synchronizer,
    training_step,
)
from tessera.graph.torch.records import GraphRecord, recording

RANDOM = (
    'the model draws random numbers: outputs are as eager\'s with options={"random": "eager"} only'
)

LAUNCHED = (
    "a kernel is launched that Dynamo does not know: `import tessera.compat` before torch.compile runs makes it one of "
    "Triton's, which are part of graphs (docs/torch-compile.md)"
)


def explain(
    model: Callable[..., Any],
    *inputs: Any,
    options: Mapping[str, Any] | None = None,
    measure: bool = True,
    html: str | None = None,
    **settings: Any,
) -> Report:
    """Compile a model for these inputs and report what became of it. It runs, and backward where results have
    gradients; the gradients of parameters stay as they were.

    `measure`: False leaves out what takes time: times of steps, memory, distances from eager and float64. `html`: where
    to write the report as a page. `settings`: more arguments of `torch.compile`.

    print(tessera.graph.explain(model, torch.randn(8, 16), html="report.html"))
    """
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="tessera", options=dict(options or {}), **settings)
    with recording() as records:
        training_step(compiled, model, inputs)
    breaks: Counter[str] = Counter()
    for why, n in counters["graph_break"].items():
        breaks[LAUNCHED if "tessera.runtime" in why or "JITFunction." in why else why] += n
    found = Report(graph_breaks=dict(breaks))
    if measure:
        _measure(found, model, compiled, inputs)
    found.graphs = [_report(r, found) for r in records]
    if any(s.name == "tessera.seed" for g in found.graphs for s in g.steps):
        found.notes.append(RANDOM)
    if html is not None:
        save(found, html)
    return found


def _measure(found: Report, model: Any, compiled: Any, inputs: tuple[Any, ...]) -> None:
    """The parts of a report that need more runs; what fails is a note."""
    try:
        ours, how = peak_bytes(lambda: training_step(compiled, model, inputs))
        eager, _ = peak_bytes(lambda: training_step(model, model, inputs))
        found.memory = (ours, eager, how)
    except Exception as error:
        found.notes.append(f"memory was not measured: {_line(error)}")
    try:
        found.distances = distances(model, compiled, inputs, found.notes)
    except Exception as error:
        found.notes.append(f"outputs were not compared: {_line(error)}")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _report(record: GraphRecord, found: Report) -> GraphReport:
    imported = record.imported
    lowered = 0 if imported is None else len(imported.lowered)
    counted = Counter(record.externs)
    externs = [(op, why, n) for (op, why), n in counted.most_common()]
    if imported is None or not isinstance(record.run, Executable):
        return GraphReport(record.purpose, lowered, [], externs, [], None)
    exe = record.run
    codes = [step.code for step in exe.plan.steps if isinstance(step, Launch)]
    kernels = [code.name for code in codes]
    interpreted = [(s.op.opcode, s.reason) for s in exe.plan.steps if isinstance(s, Interpret)]
    peak = None if exe.symbols else exe.peak_bytes({})
    made = GraphReport(record.purpose, lowered, kernels, externs, interpreted, peak)
    made.convolutions = imported.module.attrs.get(NOTE, "")
    for code in codes:
        known = made.origins.get(code.name, ())
        made.origins[code.name] = tuple(dict.fromkeys((*known, *code.origins)))
    try:
        _facts(made, record, found)
    except Exception as error:
        found.notes.append(f"the steps of a graph were not measured: {_line(error)}")
    return made


def _facts(made: GraphReport, record: GraphRecord, found: Report) -> None:
    """The steps of a graph with their times, if its first call was seen."""
    if record.inputs is None or not (found.distances or found.memory):
        return
    device = record.imported.device
    with current(device):
        if found.peak is None:
            found.peak = peak_of(device)
        facts = GraphFacts(record.run, record.inputs, found.peak, synchronizer(device))
    made.steps, made.tensors, made.least_bytes = facts.steps, facts.tensors, facts.least


__all__ = ["GraphReport", "Peak", "Report", "explain"]
