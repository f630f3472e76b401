"""Makes the report of one compiled graph: what its steps move, compute and take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.graph.calls.dump import kernel_source
from tessera.graph.calls.executable import Executable
from tessera.graph.index import Sym
from tessera.graph.ir.interp import bind_symbols
from tessera.graph.ir.types import is_tensor
from tessera.graph.planning.plan import Extern, Launch, Step
from tessera.graph.report.costs import (
    Sizes,
    is_product,
    op_names,
    step_bytes,
    step_flops,
    step_name,
    tensor_bytes,
)
from tessera.graph.report.rows import EXTERN, KERNEL, NUMPY, Peak, StepReport, TensorReport
from tessera.graph.report.timing import Stepper
from tessera.ir import Value


class GraphFacts:
    """`steps`, `tensors` and `least` of one executable for these arguments. `timed`: whether to run the steps."""

    def __init__(
        self,
        exe: Executable,
        arguments: Sequence[Any],
        peak: Peak,
        wait: Callable[[], object],
        timed: bool = True,
    ):
        self.exe, self.peak = exe, peak
        self.sizes: Sizes = {
            Sym(name): n for name, n in bind_symbols(exe.function, arguments).items()
        }
        self.numbers = {v: k for k, v in enumerate(self._tensors())}
        self.tensors = [self._tensor(v) for v in self.numbers]
        ends = [*exe.plan.arguments, *exe.plan.results]
        self.least = sum(tensor_bytes(v, self.sizes) for v in dict.fromkeys(ends))
        stepper = Stepper(exe, arguments, wait) if timed else None
        self.steps = [
            self._step(s, None if stepper is None else stepper.run(s)) for s in exe.plan.steps
        ]

    def _tensors(self) -> list[Value]:
        """The tensors that steps read and write: those that memory belongs to, each once."""
        plan = self.exe.plan
        found = dict.fromkeys(plan.root(v) for v in plan.arguments if is_tensor(v))
        for step in plan.steps:
            for v in (*step.reads, *step.writes):
                if is_tensor(v):
                    found[plan.root(v)] = None
        return list(found)

    def _tensor(self, v: Value) -> TensorReport:
        name = v.name or f"t{self.numbers[v]}"
        place = self.exe.plan.place.get(v, "input")
        return TensorReport(name, v.type.short, tensor_bytes(v, self.sizes), place)

    def _step(self, step: Step, seconds: float | None) -> StepReport:
        moved, flops = step_bytes(step, self.sizes), step_flops(step, self.sizes)
        rate = self.peak.matmul_flops if is_product(step) else self.peak.flops
        kind = KERNEL if isinstance(step, Launch) else EXTERN if isinstance(step, Extern) else NUMPY
        return StepReport(
            kind, step_name(step), op_names(step), moved, flops,
            max(moved / self.peak.bandwidth, flops / rate), seconds,
            getattr(step, "reason", ""), self._numbers(step.reads), self._numbers(step.writes),
            kernel_source(step.code) if isinstance(step, Launch) else "",
            step.code.origins if isinstance(step, Launch) else (),
        )  # fmt: skip

    def _numbers(self, values: Sequence[Value]) -> tuple[int, ...]:
        roots = (self.exe.plan.root(v) for v in values if is_tensor(v))
        return tuple(dict.fromkeys(self.numbers[v] for v in roots))
