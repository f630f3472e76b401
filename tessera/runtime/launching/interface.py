"""Defines the interface of every launchable object: `kernel[grid](...)`, `run` and `warmup`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from tessera.compiler.tracebacks import trim_traceback
from tessera.errors import HostOnly, NotAFunction
from tessera.language.by_name import ByName
from tessera.runtime.arguments.tensors import MockTensor
from tessera.runtime.launching.mistakes import with_note
from tessera.runtime.launching.typed import Grid, Traces

if TYPE_CHECKING:
    from tessera.analysis.reports import Report

# Left out of pickles: pickle looks functions up by name, and this one finds the kernel in place of its function.
UNPICKLED = ("base_fn", "__wrapped__")


class KernelInterface(ByName):
    """The base class of jitted functions, autotuners and heuristics.

    A subclass defines `run(*args, grid, warmup, **kwargs)`. `arg_names` are the kernel's parameters in order; `fn` is
    the wrapped object: another KernelInterface, or in the end the Python function.
    """

    fn: Any
    __name__: str  # of the innermost function, like its other dunder names

    def run(self, *args: object, grid: object, warmup: bool, **kwargs: object) -> Any:
        raise NotImplementedError

    @trim_traceback
    @with_note("give the grid of the launch by its name, as `kernel.warmup(..., grid=(8,))`")
    def warmup(self, *args: object, grid: Grid, **kwargs: object) -> Any:
        """Compile for these arguments without launching; a `torch.dtype` may stand for a tensor."""
        return self.run(*map(MockTensor.wrap_dtype, args), grid=grid, warmup=True, **kwargs)

    @trim_traceback
    @with_note("give the grid of the launch by its name, as `kernel.explain(..., grid=(8,))`")
    def explain(
        self, *args: object, grid: Grid, target: object = None, measure: bool = False, **kwargs: object
    ) -> Report:  # fmt: skip
        """Return a report of a launch with these arguments: for each source line bytes, operations, machine code,
        coalescing, conflicts and registers; occupancy, schedule, predicted time, and what was not optimised and why.

        The kernel is compiled, for `target` (a GPUTarget; no such device is needed) or for where its arguments are,
        but not run: unless `measure` asks for its time, which takes some launches, or an autotuner has to choose its
        config first. Arguments may be MockTensors. `print(report)` shows it; `report.json()` and
        `report.save("page.html")` keep it (docs/explain.md).

        Example:
            >>> report = double.explain(np.zeros(1000, np.float32), 1000, BLOCK=128, grid=(8,))
            >>> report.roofline.bytes_requested, report.roofline.flops, len(report.remarks)
            (8000.0, 1024.0, 0)
        """
        launches = import_module("tessera.explain.launches")  # rarely needed
        return launches.explain_launch(self, args, kwargs, grid, target, measure)

    @property
    def trace(self) -> Traces:
        """`trace[grid](*args, **options)`: launch a build of the kernel that records clocks where its warps go from one
        stage to another, and return the timeline of each role: a `Trace` (docs/profiling.md).

        `print(trace)` shows the time by role, activity and source line; `trace.save("name.json")` writes a trace for
        ui.perfetto.dev, `trace.save("name.html")` a page. `trace(records=n, ctas=n)[grid](…)` says how many records of
        a warp and how many CTAs are kept. An autotuned kernel is launched once before, to choose its config. It raises
        what a launch raises, and LaunchError for a grid without programs.

        Example:
            >>> trace = double.trace[(8,)](np.zeros(1000, np.float32), 1000, BLOCK=128)
            >>> trace.roles, trace.ctas, trace.lost
            (('program',), 8, 0)
        """
        return import_module("tessera.profiler.tracing").Tracer(self)  # rarely needed

    def check_fit(self, *args: object, **kwargs: object) -> None:
        """Raise OutOfResources if a launch with these arguments certainly needs more than the device has, judging by
        what is known before anything is compiled."""

    def __getitem__(self, grid: Grid) -> Callable[..., Any]:
        """Return `kernel[grid]`, to be called with (*args, **options). `grid`: 1 to 3 ints, or a callable that returns
        them."""
        return partial(self.run, grid=grid, warmup=False)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        raise HostOnly(name=self.__name__)


class Wrapper(KernelInterface):
    """The base class of objects that launch another kernel, `fn`, with more arguments."""

    def __init__(self, decorator: str, fn: object, arg_names: Sequence[str]) -> None:
        if not hasattr(fn, "run"):
            name = getattr(fn, "__name__", "")
            got = f"the {type(fn).__name__} {name}".rstrip()
            raise NotAFunction(decorator=decorator, wanted="a kernel", got=got)
        self.fn = fn
        self.arg_names = list(arg_names)
        self._describe()

    def _describe(self) -> None:
        """Take over the name, the module and the documentation of the Python function."""
        self.base_fn = innermost_function(self.fn)
        functools.update_wrapper(self, self.base_fn, updated=())

    def __copy__(self) -> Self:
        """Return another object, whose attributes may be changed."""
        made = type(self).__new__(type(self))
        made.__setstate__(self.__getstate__())
        return made

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if k not in UNPICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._describe()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fn!r})"


def innermost_function(fn: Any) -> Any:
    """Return the Python function under any number of wrappers."""
    while not inspect.isfunction(fn) and getattr(fn, "fn", None) is not None:
        fn = fn.fn
    return fn
