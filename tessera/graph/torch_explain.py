"""Reports what becomes of a model: its graphs, their kernels, what runs by eager and why, memory, graph breaks."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_flatten

from tessera.graph.executable import Executable
from tessera.graph.plan import Interpret, Launch
from tessera.graph.torch_records import GraphRecord, recording


@dataclass
class GraphReport:
    """One graph. `operations`: how many ATen operations rules lowered; `kernels`: names of launched kernels in order;
    `externs`: (operation, reason, how often); `without_kernel`: (op, reason) of what NumPy computes; `peak_bytes`:
    memory beside the arguments, None where sizes are symbolic."""

    purpose: str
    operations: int
    kernels: list[str]
    externs: list[tuple[str, str, int]]
    without_kernel: list[tuple[str, str]]
    peak_bytes: int | None

    def __str__(self) -> str:
        memory = "" if self.peak_bytes is None else f", {self.peak_bytes:,} bytes at most"
        lines = [
            f"{self.purpose}: {self.operations} operations in {len(self.kernels)} kernels{memory}"
        ]
        lines += [
            f"  kernel {name}" + (f" ({n} times)" if n > 1 else "")
            for name, n in Counter(self.kernels).items()
        ]
        lines += [
            f"  extern {op}" + (f" ({n} times)" if n > 1 else "") + f": {why}"
            for op, why, n in self.externs
        ]
        lines += [f"  no kernel for {op}: {why}" for op, why in self.without_kernel]
        return "\n".join(lines)


@dataclass
class Report:
    """What `explain` found. `str(report)` is a text, `report.json()` the same as JSON; `graph_breaks`: reasons with how
    often each broke a graph."""

    graphs: list[GraphReport] = field(default_factory=list)
    graph_breaks: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        breaks = [f"graph break ({n} times): {why}" for why, n in self.graph_breaks.items()]
        return "\n".join([*map(str, self.graphs), *breaks]) or "nothing was compiled"

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2)


def explain(
    model: Callable[..., Any],
    *inputs: Any,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Report:
    """Compile a model for these inputs and report what became of it. It runs once, and backward where results have
    gradients. `settings`: more arguments of `torch.compile`.

    print(tessera.graph.explain(model, torch.randn(8, 16)))
    """
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="tessera", options=dict(options or {}), **settings)
    with recording() as records:
        results = compiled(*inputs)
        floats = [
            x for x in tree_flatten(results)[0] if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        if floats:
            leaves = [
                x
                for x in tree_flatten(inputs)[0]
                if isinstance(x, torch.Tensor) and x.requires_grad
            ]
            leaves += list(model.parameters()) if isinstance(model, torch.nn.Module) else []
            total = sum((x.real if x.is_complex() else x).sum() for x in floats)
            torch.autograd.grad(total, leaves, allow_unused=True)  # type: ignore[arg-type]
    return Report([_report(r) for r in records], dict(counters["graph_break"]))


def _report(record: GraphRecord) -> GraphReport:
    lowered = 0 if record.imported is None else len(record.imported.lowered)
    counted = Counter(record.externs)
    externs = [(op, why, n) for (op, why), n in counted.most_common()]
    if not isinstance(record.run, Executable):
        return GraphReport(record.purpose, lowered, [], externs, [], None)
    steps = record.run.plan.steps
    kernels = [step.code.name for step in steps if isinstance(step, Launch)]
    interpreted = [(step.op.opcode, step.reason) for step in steps if isinstance(step, Interpret)]
    peak = None if record.run.symbols else record.run.peak_bytes({})
    return GraphReport(record.purpose, lowered, kernels, externs, interpreted, peak)
