"""Holds a report: its parts as data, which print as text and become JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

KERNEL, EXTERN, NUMPY = "kernel", "extern", "numpy"
GRADIENT = "gradient of "
SHOWN = 8  # gradients in a text: those of a large model are many


@dataclass(frozen=True)
class Peak:
    """What a machine can do at most: `bandwidth` in bytes a second, measured by a copy; `flops` a second of fp32, and
    `matmul_flops` of products, computed from its data sheet or its clock."""

    bandwidth: float
    flops: float
    matmul_flops: float


@dataclass(frozen=True)
class StepReport:
    """One step of a call. `ops`: what it computes; `origins`: for which operations of the program; `bytes` and
    `flops`: moved and done if each operand is read once; `seconds`: measured, of one launch among many (None: not
    measured); `why`: the reason of an extern; `reads` and `writes`: numbers of tensors; `source`: of the kernel."""

    kind: str
    name: str
    ops: str
    bytes: int
    flops: int
    roofline: float
    seconds: float | None
    why: str = ""
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    source: str = ""
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorReport:
    """A tensor of a graph: its type as text, its bytes, and how it comes about: input, temporary, output, foreign."""

    name: str
    type: str
    bytes: int
    place: str


@dataclass
class GraphReport:
    """One graph. `operations`: how many ATen operations rules lowered; `kernels`: names of launched kernels in order;
    `externs`: (operation, reason, how often); `without_kernel`: (op, reason) of what NumPy computes; `peak_bytes`:
    memory beside the arguments, None where sizes are symbolic; `least_bytes`: arguments and results, each once;
    `origins`: by kernel, the operations of the program that it computes; `convolutions`: the order of dimensions that
    was chosen for theirs, and why; empty where there are none."""

    purpose: str
    operations: int
    kernels: list[str]
    externs: list[tuple[str, str, int]]
    without_kernel: list[tuple[str, str]]
    peak_bytes: int | None
    least_bytes: int = 0
    steps: list[StepReport] = field(default_factory=list[StepReport])
    tensors: list[TensorReport] = field(default_factory=list[TensorReport])
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    convolutions: str = ""

    @property
    def bytes(self) -> int:
        """Bytes that all steps move."""
        return sum(s.bytes for s in self.steps)

    def __str__(self) -> str:
        memory = "" if self.peak_bytes is None else f", {self.peak_bytes:,} bytes at most"
        lines = [
            f"{self.purpose}: {self.operations} operations in {len(self.kernels)} kernels{memory}"
        ]
        if self.convolutions:
            lines.append(f"  convolutions: {self.convolutions}")
        if self.steps:
            times = self.bytes / self.least_bytes if self.least_bytes else 1.0
            lines.append(
                f"  {self.bytes:,} bytes moved, {times:.1f} times the {self.least_bytes:,} of arguments and results"
            )
            lines += table(self.steps)
        else:
            for name in dict.fromkeys(self.kernels):
                lines.append(f"  kernel {name}{_times(self.kernels.count(name))}")
                lines += _made_for(self.origins.get(name, ()), 4)
        lines += [f"  extern {op}{_times(n)}: {why}" for op, why, n in self.externs]
        lines += [f"  no kernel for {op}: {why}" for op, why in self.without_kernel]
        return "\n".join(lines)


def _times(n: int) -> str:
    return f" ({n} times)" if n > 1 else ""


def _made_for(operations: Sequence[str], left: int) -> list[str]:
    """A line with the operations of the program that a kernel computes, if they are known."""
    return [f"{'':{left}}computes {', '.join(operations)}"] if operations else []


def table(steps: Sequence[StepReport]) -> list[str]:
    """Lines: measured time, its least by the roofline, bytes, what, of which ops; below, for which operations of the
    program. Equal steps are one line."""
    groups: dict[tuple[str, str], list[StepReport]] = {}
    for s in steps:
        groups.setdefault((s.kind, s.name), []).append(s)
    lines = ["        time   roofline        bytes  step"]
    for (kind, name), same in groups.items():
        known = [s.seconds for s in same if s.seconds is not None]
        time = f"{1e6 * sum(known):9.1f} us" if known else "           -"
        least = f"{1e6 * sum(s.roofline for s in same):7.1f} us"
        size = f"{sum(s.bytes for s in same):12,}"
        ops = f": {same[0].ops}" if same[0].ops else ""
        lines.append(f"{time} {least} {size}  {kind} {name}{_times(len(same))}{ops}")
        lines += _made_for(list(dict.fromkeys(o for s in same for o in s.origins)), 41)
    return lines


@dataclass(frozen=True)
class Distance:
    """How far an output or a gradient is from eager's, and both from what float64 gives: the largest difference as a
    part of the largest element; None where float64 does not run the model. `output`: its name, as `output 0`,
    `gradient of inputs[0]`, `gradient of 0.weight`."""

    output: str
    eager: float
    exact: float | None
    eager_exact: float | None

    def __str__(self) -> str:
        text = f"{self.output}: {self.eager:.1e} from eager"
        if self.exact is not None and self.eager_exact is not None:
            text += f", {self.exact:.1e} from float64 (eager {self.eager_exact:.1e})"
        return text


def _farthest(distances: Sequence[Distance]) -> list[str]:
    """A line for each output, and for each gradient; if these are many, for those that are the farthest from float64,
    or else from eager, and one for all others together."""
    gradients = [d for d in distances if d.output.startswith(GRADIENT)]
    if len(gradients) <= SHOWN:
        return [str(d) for d in distances]
    order = sorted(gradients, key=lambda d: d.eager if d.exact is None else d.exact, reverse=True)
    rest = order[SHOWN:]
    known = all(d.exact is not None for d in rest)
    most = Distance(
        f"{len(rest)} other gradients, at most", max(d.eager for d in rest),
        max(d.exact or 0 for d in rest) if known else None, max(d.eager_exact or 0 for d in rest) if known else None,
    )  # fmt: skip
    hidden = {d.output for d in rest}
    return [str(d) for d in distances if d.output not in hidden] + [str(most)]


@dataclass
class Report:
    """What `explain` found. `str(report)` is a text, `report.json()` the same as JSON;
    `page.save(report, path)`: a page;
    `graph_breaks`: reasons with how often each broke a graph; `memory`: peak bytes beside arguments of a compiled and
    an eager call, and how they were measured; `distances`: by output and gradient; `peak`: of the machine; `notes`:
    what could not be found out, and why."""

    graphs: list[GraphReport] = field(default_factory=list[GraphReport])
    graph_breaks: dict[str, int] = field(default_factory=dict[str, int])
    memory: tuple[int, int, str] | None = None
    distances: list[Distance] = field(default_factory=list[Distance])
    peak: Peak | None = None
    notes: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        lines = [str(g) for g in self.graphs] or ["nothing was compiled"]
        lines += [f"graph break ({n} times): {why}" for why, n in self.graph_breaks.items()]
        if self.memory is not None:
            ours, eager, how = self.memory
            lines.append(f"peak memory: {ours:,} bytes, eager {eager:,} ({how})")
        lines += _farthest(self.distances)
        if self.peak is not None:
            p = self.peak
            lines.append(
                f"roofline: {p.bandwidth / 1e9:.1f} GB/s measured, {p.flops / 1e9:,.0f} GFLOP/s of fp32, "
                f"{p.matmul_flops / 1e9:,.0f} of products"
            )
        return "\n".join([*lines, *self.notes])

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2)
