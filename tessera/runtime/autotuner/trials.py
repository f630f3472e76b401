"""Runs the trials of one tuning: which configs fit, are equivalent, compute the same, and how fast each one is."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tessera.compiler import make_backend
from tessera.config import knobs
from tessera.errors import (
    CompilationTimeout,
    CompileTimeAssertionFailure,
    OutOfResources,
    PTXASError,
    TesseraError,
)
from tessera.runtime.autotuner.agreement import Checker, arrays_of
from tessera.runtime.autotuner.config import Config, shown
from tessera.runtime.autotuner.heuristics import Heuristics
from tessera.runtime.autotuner.progress import Progress
from tessera.runtime.benchmark import do_bench as default_do_bench
from tessera.runtime.driver import driver
from tessera.runtime.launching.async_compile import AsyncCompileMode, active_mode
from tessera.runtime.launching.interface import Wrapper

if TYPE_CHECKING:
    from tessera.runtime.autotuner.autotuner import Autotuner

# A config that cannot be built in time or does not fit counts as slow, not as wrong.
UNFIT = (OutOfResources, CompileTimeAssertionFailure, CompilationTimeout, PTXASError)


class TuningWarning(UserWarning):
    """A config was left out for a reason that its author should know, or a key has no effect."""


class Trials:
    """The trials of a tuner for one launch."""

    def __init__(
        self, tuner: Autotuner, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        self.tuner, self.args, self.kwargs = tuner, args, kwargs
        self.named = tuner.nargs or {}
        self.start = time.perf_counter()

    def fitting(self, configs: list[Config]) -> list[Config]:
        """Return the configs that may fit the device: those that cannot are found before they are compiled."""
        check = getattr(self.tuner.fn, "check_fit", None)
        if check is None or knobs.runtime.interpret:
            return configs
        for config in configs:
            try:
                check(*self.args, **self.kwargs, **config.all_kwargs())
            except UNFIT as error:
                self.tuner.leave_out(config, error)
            except TesseraError:
                pass  # raised again where the config is run
        return [c for c in configs if c not in self.tuner.unfit_configs]

    def compile_all(self, configs: list[Config]) -> None:
        """Compile in parallel processes what the measurements need. Errors are raised where the config is run."""
        # Objects other than our kernels have no caches to fill; modes do not nest.
        if (
            len(configs) < 3
            or not hasattr(kernel_under(self.tuner.fn), "device_caches")
            or active_mode.get() is not None
        ):
            return
        if knobs.runtime.interpret:
            return
        active = driver.active
        facts = active.get_device_properties(active.get_current_device())
        limits = {active.name: facts["max_shared_mem"]} if "max_shared_mem" in facts else {}
        # Imported only when something is tuned: most programs never do.
        workers = importlib.import_module(
            "tessera.runtime.autotuner.compile_workers"
        ).shared_workers(limits)
        if workers is None:
            return
        launch = {k: v for k, v in self.kwargs.items() if k != "warmup"}
        with AsyncCompileMode(workers, ignore_errors=True):
            for config in configs:
                self.tuner.fn.warmup(*self.args, **launch, **config.all_kwargs())

    def first_alike(self, configs: list[Config]) -> dict[Config, Config]:
        """Map each config to the first one that yields the same code: its times are the same."""
        # The user's own timer or rules may distinguish configs that the compiler does not.
        own = self.tuner.do_bench is not default_do_bench or isinstance(self.tuner.fn, Heuristics)
        idle: list[str] = []
        if not own and not knobs.runtime.interpret:
            names = make_backend(driver.active.get_current_target()).idle_options
            idle = [name for name in names if name not in self.tuner.arg_names]
        first: dict[tuple[Any, ...], Config] = {}
        for c in configs:
            first.setdefault(c.identity(idle), c)
        return {c: first[c.identity(idle)] for c in configs}

    def verified(self, configs: list[Config], missing: list[Config]) -> list[Config]:
        """Return the configs of `missing` whose results agree with those of the first config that runs."""
        tuner = self.tuner
        # Hooks change what a run means and may count the runs.
        hooked = (
            tuner.user_defined_pre_hook
            or tuner.user_defined_post_hook
            or any(c.pre_hook for c in configs)
        )
        if hooked or not knobs.autotuning.verify or knobs.runtime.interpret or len(configs) < 2:
            return missing
        checker = Checker(arrays_of({**self.named, **self.kwargs}))
        if not checker.affordable:
            return missing
        order = [configs[0], *(c for c in missing if c is not configs[0])]
        try:
            for config in order:
                current = {**self.kwargs, **config.all_kwargs()}
                checker.restore()
                tuner.pre_hook({**self.named, **current})
                try:
                    tuner.fn.run(*self.args, **current)
                except UNFIT:
                    continue  # measuring reports it
                checker.record(config)
        finally:
            checker.restore()
            tuner.restore_copies = {}
        tuner.wrong_configs = [c for c in checker.wrong() if c in missing]
        for config in tuner.wrong_configs:
            warnings.warn(
                f"autotuning {tuner.__name__}: the results of {config} differ from those of {order[0]}; it is left out",
                TuningWarning,
                stacklevel=5,
            )
        return [c for c in missing if c not in tuner.wrong_configs]

    def measured(self, configs: list[Config], enough: bool) -> dict[Config, list[float]]:
        """Return times of the configs, less those that the time budget leaves out. At least one is measured, unless
        there are `enough` times already."""
        budget = knobs.autotuning.budget
        timings: dict[Config, list[float]] = {}
        bench = self.tuner._bench  # pyright: ignore[reportPrivateUsage]  tuners of libraries have it by this name
        with Progress(f"tuning {self.tuner.__name__}", len(configs)) as progress:
            for config in configs:
                late = budget is not None and time.perf_counter() - self.start > budget
                if late and (timings or enough):
                    break
                timings[config] = bench(*self.args, config=config, **self.kwargs)
                best = min(timings, key=lambda c: timings[c][0])
                progress.step(timings[best][0], shown(best))
        return timings


def kernel_under(fn: object) -> Any:
    """Return the kernel under any number of wrappers."""
    while isinstance(fn, Wrapper):
        fn = fn.fn
    return fn
