"""Explains kernels (rank 8): what each source line moves and computes, how it was compiled, what bounds its time.

`kernel.explain(*args, grid=…)` and `CompiledKernel.explain()` come here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.analysis.reports import Report
from tessera.compiler.kernel import CompiledKernel
from tessera.explain.build import Builder, compile_again
from tessera.explain.targets import compiled_for, variant_that_runs
from tessera.runtime.arguments.tensors import MockTensor, element_type
from tessera.runtime.benchmark import do_bench

__all__ = ["Report", "builder_for", "explain_compiled", "measure"]

ASSUMED = 1024  # an integer argument of which nothing is known
TIMES = 20.0  # ms of a measurement


def explain_compiled(
    kernel: CompiledKernel, args: Sequence[object] | None, grid: Sequence[int], measured: float | None = None
) -> Report:  # fmt: skip
    """Return the report of a compiled kernel for a launch with its run-time arguments, as the binary takes them; None:
    arrays of unknown size, and integers of 1024."""
    report = builder_for(kernel, args, grid).report(measured)
    if args is None:
        report.notes.append(f"no arguments were given: integers are taken as {ASSUMED}")
    return report


def builder_for(
    kernel: CompiledKernel, args: Sequence[object] | None, grid: Sequence[int]
) -> Builder:
    """Return what makes the report of `explain_compiled`, and predicts times for other machines."""
    kernel = variant_that_runs(compiled_for(kernel))
    x, y, z = (*(int(n) for n in grid), 1, 1)[:3]
    return Builder(compile_again(kernel), _assumed(kernel) if args is None else args, (x, y, z))


def _assumed(kernel: CompiledKernel) -> list[object]:
    kinds: list[str] = kernel.metadata.args
    found: list[object] = []
    for kind in kinds:
        if kind == "memory":
            continue
        if kind == "ptr" or kind.startswith("*"):
            found.append(MockTensor(element_type("float32")))
        else:
            found.append(1.0 if kind.startswith(("fp", "bf")) else ASSUMED if kind != "i1" else 1)
    return found


def measure(run: Callable[[], object]) -> float:
    """Return the seconds of a call, the median of a few tens of milliseconds."""
    return do_bench(run, warmup=TIMES / 4, rep=TIMES, return_mode="median") / 1e3
