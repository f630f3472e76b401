"""Chooses a kernel's meta-parameters by measurement. `autotune` wraps anything that can be launched, and combines with
`heuristics` in any order:

    @tessera.autotune(configs=[Config({"BLOCK": 256}), Config({"BLOCK": 1024}, num_warps=8)], key=["n"])
    @tessera.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
    @tessera.jit
    def kernel(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr): ...

The first launch for new values of `key` (or new element types) drops the configs that need more than the device has, as
far as the front end's output shows, compiles the others in parallel processes, drops those whose results differ from
the first one's, and times the rest. Timings are kept on disk for each config, so that adding a config measures only
that one. Later launches look the winner up.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from threading import RLock, get_ident
from typing import Any, cast

from tessera.compiler.tracebacks import trim_traceback
from tessera.config import knobs
from tessera.errors import (
    AutotunerError,
    InvalidTuning,
    Spelling,
    UnknownOption,
    suggestion,
)
from tessera.runtime.arguments.tensors import clone, copy_into, fill_zero
from tessera.runtime.autotuner import store as tuning_store
from tessera.runtime.autotuner.config import Config, hashable
from tessera.runtime.autotuner.places import place_of_launch, timer_for
from tessera.runtime.autotuner.trials import UNFIT, Trials, TuningWarning, kernel_under
from tessera.runtime.benchmark import do_bench as default_do_bench
from tessera.runtime.benchmark import do_bench_cudagraph
from tessera.runtime.launching.binding import OPTIONS
from tessera.runtime.launching.interface import Wrapper
from tessera.runtime.launching.mistakes import call_with_names, refuse_unknown
from tessera.utilities import stacklevel_of_caller

QUANTILES = (0.5, 0.2, 0.8)  # a config is judged by its median, then by its fast and slow tails
FAILED = [float("inf")] * 3
_TUNING = [RLock()]
os.register_at_fork(after_in_child=lambda: _TUNING.__setitem__(0, RLock()))


class Autotuner(Wrapper):
    """A kernel whose meta-parameters are measured. `autotune` makes it and sets its arguments as attributes.

    `cache` maps a tuning key to its winner, `best_config` is the last one used, `configs_timings` are the times (ms) of
    the last tuning and `bench_time` the seconds it took. `wrong_configs` lists the configs left out for wrong results,
    `unfit_configs` those left out because they cannot be built or do not fit, with the reasons.
    """

    def __init__(
        self,
        fn: Any,
        arg_names: list[str],
        configs: Iterable[Config],
        key: Sequence[str],
        reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None,
        pre_hook: Callable[..., object] | None = None,
        post_hook: Callable[..., object] | None = None,
        prune_configs_by: Mapping[str, Any] | None = None,
        warmup: float | None = None,
        rep: float | None = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool = False,
    ) -> None:
        super().__init__("autotune", fn, arg_names)
        self.configs = _checked_configs(configs)
        self.keys = list(key or ())
        self.reset_to_zero = list(reset_to_zero or ())
        self.restore_value = list(restore_value or ())
        self._check_names(key)
        self.user_defined_pre_hook = pre_hook is not None
        self.user_defined_post_hook = post_hook is not None
        self.pre_hook: Callable[..., object] = pre_hook or self._reset_and_save
        self.post_hook: Callable[..., object] = post_hook or self._restore
        prune = prune_configs_by or {}
        known = ("early_config_prune", "perf_model", "top_k", "configs_top_k")  # torch has the last
        refuse_unknown("prune_configs_by", prune, known)
        self.early_config_prune: Callable[..., Any] | None = prune.get("early_config_prune")
        self.perf_model: Callable[..., Any] | None = prune.get("perf_model")
        self.configs_top_k: Any = prune.get("top_k", prune.get("configs_top_k", 1.0))
        self.do_bench = do_bench or _deprecated_benchmarker(warmup, rep, use_cuda_graph)
        self.num_warmups, self.num_reps, self.use_cuda_graph = warmup, rep, use_cuda_graph
        self.cache_results = cache_results
        self.cache: dict[tuple[object, ...], Config] = {}
        self.configs_timings: dict[Config, list[float]] = {}
        self.best_config = cast("Config", None)  # until a launch; checkers would refuse every use
        self.bench_time = 0.0
        self.wrong_configs: list[Config] = []
        self.unfit_configs: dict[Config, str] = {}
        self._nargs: dict[int, dict[str, Any]] = {}  # of launches in progress, by thread
        self._arguments: dict[
            int, tuple[Config, dict[str, Any]]
        ] = {}  # what a config adds to a launch
        self.restore_copies: dict[str, object] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_nargs": {}, "_arguments": {}, "restore_copies": {}}

    def _check_names(self, key: object) -> None:
        """Raise InvalidTuning for unknown names of arrays and for letters of a string; warn about other unknown names
        of keys, which have no effect."""
        for option in ("reset_to_zero", "restore_value", "keys"):
            unknown = [n for n in getattr(self, option) if n not in self.arg_names]
            if not unknown:
                continue
            text = f"autotuning {self.__name__}: {', '.join(unknown)} in {option.rstrip('s')} is no parameter"
            if option == "keys" and isinstance(key, str):
                text = f"autotuning {self.__name__}: key is a string, {key!r}, not a list of names"
                raise InvalidTuning(text, help=f"write key=[{key!r}]")
            if option != "keys":
                raise InvalidTuning(text, help=f"the parameters are {', '.join(self.arg_names)}")
            text += f"; the parameters are {', '.join(self.arg_names)}"
            warnings.warn(text, TuningWarning, stacklevel=stacklevel_of_caller())

    # --- launching ------------------------------------------------------------------------------------
    @property
    def nargs(self) -> dict[str, Any] | None:
        """The positional arguments, by name, of the launch that this thread is running."""
        return self._nargs.get(get_ident())

    @nargs.setter
    def nargs(self, named: dict[str, Any] | None) -> None:
        if named is None:
            self._nargs.pop(get_ident(), None)
        else:
            self._nargs[get_ident()] = named

    @trim_traceback
    def run(self, *args: object, **kwargs: object) -> Any:
        """Launch with the best config for these arguments, measuring first if it is not known yet."""
        if kwargs.get("warmup"):
            del kwargs["warmup"]
            return self.warmup(*args, **kwargs)
        named = self.nargs = dict(zip(self.arg_names, args))
        try:
            config = self._chosen(args, kwargs)
            self.best_config = config
            if config.pre_hook is not None:
                config.pre_hook({**named, **kwargs, **config.all_kwargs()})
            known = self._arguments.get(id(config))
            if known is None or known[0] is not config:
                known = self._arguments[id(config)] = (config, config.all_kwargs())
            try:
                return self.fn.run(*args, **kwargs, **known[1])
            except (TypeError, UnknownOption):  # the binder's, perhaps
                self._refuse_clashes(config, named.keys() | kwargs.keys())
                self._refuse_unknown(config)
                raise
        finally:
            self.nargs = None

    def warmup(self, *args: object, **kwargs: object) -> list[Any]:
        """Compile all configs that pruning leaves without launching; return the compiled kernels of those that fit."""
        self.nargs = dict(zip(self.arg_names, args))
        made: list[object] = []
        self.unfit_configs = {}
        configs = self.prune_configs(kwargs)
        try:
            for config in configs:
                try:
                    made.append(self.fn.warmup(*args, **kwargs, **config.all_kwargs()))
                except UNFIT as error:
                    self.leave_out(config, error)
                    if len(self.unfit_configs) == len(configs):
                        raise
        finally:
            self.nargs = None
        return made

    def _chosen(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Config:
        try:
            return self._choose(args, kwargs)
        except (TypeError, UnknownOption):
            for config in self.configs:
                self._refuse_unknown(config)
            raise

    def _refuse_unknown(self, config: Config) -> None:
        """Raise InvalidTuning if a config sets what is neither a parameter of the kernel nor an option."""
        for name in config.kwargs:
            if name not in self.arg_names and name not in OPTIONS:
                near = suggestion(name, self.arg_names) or f"there are {', '.join(self.arg_names)}"
                text = f"{self.__name__} has no parameter {name!r}, which a config sets"
                raise InvalidTuning(text, help=near) from None

    def _choose(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Config:
        if len(self.configs) == 1:
            return self.configs[0]
        key = self._key(kwargs)
        config = self.cache.get(key)
        if config is None:
            # Concurrent timings would disturb each other; trials also share state.
            with _TUNING[0], knobs.compilation.scope():
                knobs.compilation.instrumentation_mode = ""  # times are those of the build without
                config = self.cache.get(key) or self._tune(key, args, kwargs)
        return config

    def _key(self, kwargs: Mapping[str, object]) -> tuple[object, ...]:
        """Return the values of the `key` parameters that were passed, the element type of every array argument, and
        what tells the place of the launch from others of this machine."""
        given = {**(self.nargs or {}), **kwargs}
        found = [self._key_value(name, given[name]) for name in self.keys if name in given]
        for name in self.arg_names:
            kind = getattr(given.get(name), "dtype", None)
            if kind is not None:
                found.append(_type_name(kind))
        return (*found, *place_of_launch(given.values()))

    def _key_value(self, name: str, value: object) -> Any:
        try:
            return hashable(value)
        except TypeError:
            raise InvalidTuning(
                f"autotuning {self.__name__}: the key {name} is {type(value).__name__}, which has no hash",
                help="let `key` name the sizes on which the choice of a config depends",
            ) from None

    # --- measuring ------------------------------------------------------------------------------------
    def _tune(
        self, key: tuple[object, ...], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Config:
        named, configs = self._named(), self.prune_configs(kwargs)
        if len(configs) == 1:
            self.cache[key] = configs[0]
            return configs[0]
        for config in configs:
            self._refuse_clashes(config, named.keys() | kwargs.keys())
        timings = self._stored_timings(key, configs)
        missing = [c for c in configs if c not in timings]
        self.bench_time, self.wrong_configs, self.unfit_configs = 0.0, [], {}
        if missing:
            trials = Trials(self, args, kwargs)
            first = trials.first_alike(missing)
            distinct = trials.fitting([c for c in missing if first[c] is c])
            trials.compile_all(distinct)
            known = [c for c in configs if c not in self.unfit_configs]
            right = trials.verified(known, distinct)
            measured = trials.measured(right, enough=bool(timings))
            measured = {c: measured[first[c]] for c in missing if first[c] in measured}
            self.bench_time = time.perf_counter() - trials.start
            self.pre_hook({**named, **kwargs}, reset_only=True)
            unfit = [c for c in missing if first[c] in self.unfit_configs]
            timings |= {c: list(FAILED) for c in unfit} | measured
            self._store(key, timings)
        # min() keeps the earlier of two equal configs: the same timings always give the same winner.
        timings = {c: timings[c] for c in configs if c in timings}
        best = min(timings, key=lambda config: timings[config])
        self.configs_timings = timings
        self.cache[key] = best
        self._report(key, timings, best, cache_hit=not missing)
        return best

    def leave_out(self, config: Config, error: Exception) -> None:
        """Record that a config cannot be built or does not fit."""
        self.unfit_configs[config] = str(error)
        if knobs.autotuning.print:
            print(f"Autotuning {self.__name__}: {config} left out: {error}")

    def _refuse_clashes(self, config: Config, given: Iterable[str]) -> None:
        clashes = sorted(config.all_kwargs().keys() & given)
        if clashes:
            raise InvalidTuning(
                f"Conflicting meta-parameters: {', '.join(clashes)}. "
                "A launch must not pass what the autotuner's configs define.",
                help=f"leave {', '.join(f'`{name}`' for name in clashes)} out of the launch",
            )

    def _bench(self, *args: object, config: Config, **kwargs: object) -> list[float]:
        """Return the times of one config, or infinite ones. Libraries' tuners, which derive from this class, call it
        too."""
        self._refuse_clashes(config, kwargs)
        current = {**kwargs, **config.all_kwargs()}
        named = {**self._named(), **current}

        def call() -> None:
            if config.pre_hook is not None:
                what = f"the pre_hook of {config}"
                call_with_names(self.__name__, what, config.pre_hook, named, self.arg_names)
            self.pre_hook(named)
            try:
                self.fn.run(*args, **current)
            except Exception as error:
                self.post_hook(named, exception=error)
                raise
            self.post_hook(named, exception=None)

        timer = timer_for(self.do_bench, (*args, *kwargs.values()))
        try:
            found = timer(call, quantiles=QUANTILES)
        except UNFIT as error:
            self.leave_out(config, error)
            return list(FAILED)
        times = [float(found)] if isinstance(found, (int, float)) else [float(t) for t in found]
        if knobs.autotuning.print:
            print(f"Autotuning {self.__name__}: {config}: {times[0]:.4f} ms")
        return times

    def _named(self) -> dict[str, Any]:
        return self.nargs or {}

    def _reset_and_save(self, args: Mapping[str, object], reset_only: bool = False) -> None:
        """The default pre_hook."""
        for name in self.reset_to_zero:
            if args[name] is not None:
                fill_zero(args[name])
        if not reset_only:
            saved = (name for name in self.restore_value if args[name] is not None)
            self.restore_copies = {name: clone(args[name]) for name in saved}

    def _restore(self, args: Mapping[str, object], exception: BaseException | None = None) -> None:
        """The default post_hook."""
        for name, copy in self.restore_copies.items():
            copy_into(args[name], copy)
        self.restore_copies = {}

    def _report(
        self,
        key: tuple[object, ...],
        timings: dict[Config, list[float]],
        best: Config,
        cache_hit: bool,
    ) -> None:
        if knobs.autotuning.print:
            where = "from disk" if cache_hit else f"after {self.bench_time:.2f} s"
            print(f"Autotuning {self.__name__} with key {key} finished {where}, best: {best}")
        listener = knobs.autotuning.listener
        if listener is not None:
            listener(
                fn=kernel_under(self.fn),
                key=key,
                best_config=best,
                configs_timings=timings,
                duration=None if cache_hit else self.bench_time,
                cache_hit=cache_hit,
            )

    # --- pruning --------------------------------------------------------------------------------------
    def prune_configs(self, kwargs: Mapping[str, object]) -> list[Config]:
        """Return the configs worth measuring for the current arguments, by `prune_configs_by`."""
        named = self._named()
        configs = self.configs
        if self.early_config_prune is not None:
            kept: Iterable[Config] | None = self.early_config_prune(configs, named, **kwargs)
            configs = list(kept or ())
            if not configs:
                raise AutotunerError(
                    f"No valid autotuner configs after pruning of {self.__name__}. "
                    "`early_config_prune` must leave at least one config.",
                    help="let it return `configs[:1]` where nothing fits its rule",
                )
        if self.perf_model is None:
            return configs
        keep = self._top_k()
        if len(configs) <= keep:
            return configs
        estimate = {c: self.perf_model(**named, **kwargs, **c.all_kwargs()) for c in configs}
        return sorted(configs, key=lambda config: estimate[config])[:keep]

    def _top_k(self) -> int:
        top_k = self.configs_top_k
        if isinstance(top_k, float) and top_k <= 1.0:
            return max(1, int(len(self.configs) * top_k))
        if not isinstance(top_k, int) or top_k < 1:
            raise InvalidTuning(
                f"top_k must be a positive int, or a float of at most 1.0 as a share of all configs, got {top_k!r}",
                help="write `top_k=5`, or `top_k=0.2` for a fifth of them",
            )
        return top_k

    # --- results on disk --------------------------------------------------------------------------------
    def _store_path(self, key: tuple[object, ...]) -> str | None:
        """Return the file of the timings for this key; None if they must not be kept or the kernel has no source
        key."""
        wanted = self.cache_results or knobs.autotuning.cache
        # A hook changes what a config means, and its effect cannot be stored.
        if not wanted or knobs.runtime.interpret or any(c.pre_hook for c in self.configs):
            return None
        source = tuning_store.source_key(self.fn)
        return None if source is None else tuning_store.path_for(self.__name__, source, key)

    def _stored_timings(
        self, key: tuple[object, ...], configs: list[Config]
    ) -> dict[Config, list[float]]:
        path = self._store_path(key)
        stored = tuning_store.read(path) if path else {}
        return {c: stored[str(c)] for c in configs if str(c) in stored}

    def _store(self, key: tuple[object, ...], timings: dict[Config, list[float]]) -> None:
        path = self._store_path(key)
        if path is not None:
            tuning_store.write(path, key, {str(c): times for c, times in timings.items()})


@cache
def _type_name(kind: object) -> str:
    """Return the text of an element type, cached: NumPy takes 3 µs to make it."""
    return str(kind)


def _checked_configs(configs: Any) -> list[Config]:
    found: list[Any] = [configs] if isinstance(configs, Config) else list(configs)
    for config in found:
        if not isinstance(config, Config):
            raise InvalidTuning(
                f"configs must be Config objects, got {config!r}",
                help=f"write `{Spelling.package}.Config({{...}}, num_warps=4)`",
            )
    return found or [Config({}, num_warps=4, num_stages=3, num_ctas=1)]


def _deprecated_benchmarker(
    warmup: float | None, rep: float | None, use_cuda_graph: bool
) -> Callable[..., Any]:
    if warmup is None and rep is None and not use_cuda_graph:
        return default_do_bench
    warnings.warn(
        "warmup, rep and use_cuda_graph of autotune are deprecated: pass do_bench=",
        DeprecationWarning,
        stacklevel=stacklevel_of_caller(),
    )
    if use_cuda_graph:
        return partial(do_bench_cudagraph, rep=100 if rep is None else rep)
    return partial(
        default_do_bench, warmup=25 if warmup is None else warmup, rep=100 if rep is None else rep
    )
