"""Explains launches: those that a caller describes, and those that a program makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.analysis.reports import Report
from tessera.backends.compiler import GPUTarget
from tessera.compiler.kernel import CompiledKernel, LazyDict
from tessera.config import knobs
from tessera.explain import explain_compiled, measure
from tessera.explain.targets import compiled_for
from tessera.runtime.arguments.tensors import MockTensor
from tessera.runtime.driver import driver_named
from tessera.runtime.jit import JITFunction
from tessera.runtime.launching.binding import Prepared
from tessera.runtime.launching.interface import KernelInterface
from tessera.runtime.launching.typed import Grid


def explain_launch(
    fn: KernelInterface, args: Sequence[object], kwargs: Mapping[str, object], grid: Grid, target: GPUTarget | None,
    measured: bool,
) -> Report:  # fmt: skip
    """Return the report of `fn[grid](*args, **kwargs)`, compiled for `target` or for where the arguments are."""
    args = [MockTensor.wrap_dtype(x) for x in args]
    if isinstance(fn, JITFunction):
        kernel, run_time, extents = _described(fn, args, kwargs, grid)
    else:
        kernel, run_time, extents = _launched(fn, args, kwargs, grid)
    seconds = None
    if measured and (target is None or target == kernel.target):
        seconds = measure(lambda: fn[grid](*args, **kwargs))
    return explain_compiled(compiled_for(kernel, target), run_time, extents, seconds)


def _described(
    fn: JITFunction[...], args: Sequence[object], kwargs: Mapping[str, object], grid: Grid
) -> tuple[CompiledKernel, list[object], Sequence[int]]:
    built = fn.warmup(*args, grid=grid, **kwargs)
    kernel: CompiledKernel = getattr(built, "result", lambda: built)()
    values, pairs, _ = fn.create_binder()(*args, **kwargs)
    run_time = list(Prepared(tuple(p[0] for p in pairs)).arguments(values))
    extents = grid(dict(zip(fn.arg_names, values, strict=True))) if callable(grid) else grid
    return kernel, run_time, driver_named("cpu").extents(extents)


def _launched(
    fn: KernelInterface, args: Sequence[object], kwargs: Mapping[str, object], grid: Grid
) -> tuple[CompiledKernel, list[object], Sequence[int]]:
    """Launch a kernel whose config an autotuner or heuristics choose, and return what was launched."""
    seen: list[LazyDict] = []
    with knobs.runtime.scope():
        knobs.runtime.launch_enter_hook = seen.append
        fn[grid](*args, **kwargs)
    launch = seen[-1].launch
    assert launch is not None
    kernel, extents, values = launch
    return kernel, list(kernel.arguments(values)), extents
