"""Defines the decorators that make kernels: `jit` of a function, `autotune` of a kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, overload

from tessera.compiler.tracebacks import trim_traceback
from tessera.errors import suggestion
from tessera.runtime.autotuner.autotuner import Autotuner
from tessera.runtime.autotuner.config import Config
from tessera.runtime.jit import JITFunction
from tessera.runtime.launching.mistakes import named_arguments, refuse_unknown
from tessera.utilities import stacklevel_of_caller

P = ParamSpec("P")


@overload
def jit(fn: Callable[P, object]) -> JITFunction[P]: ...
@overload
def jit(
    *,
    version: object = None,
    repr: Callable[[Any], str] | None = None,
    launch_metadata: Callable[..., object] | None = None,
    do_not_specialize: Iterable[int | str] | None = None,
    do_not_specialize_on_alignment: Iterable[int | str] | None = None,
    debug: bool | None = None,
    noinline: bool | None = None,
) -> Callable[[Callable[P, object]], JITFunction[P]]: ...
def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a kernel of a function, bare or with options; `kernel[grid](*args, **launch_options)` launches it.

    `do_not_specialize` names parameters (by index or name) whose values never become part of the compiled code,
    `do_not_specialize_on_alignment` those whose divisibility by 16 does not. `debug` turns device asserts on.
    `noinline` makes other kernels call the function instead of inlining it. `repr` returns the name of the compiled
    symbol, and `launch_metadata` adds to what launch hooks get.

    The first launch with arguments of new types compiles. `grid` is 1 to 3 ints, or a function of a dict of the
    arguments that returns them. A launch returns the CompiledKernel. It raises TypeError for missing arguments and, of
    the catalogue, `argument-type` for a value that no kernel takes, `unknown-option` for an unknown keyword, `launch`
    for an invalid grid, and whatever error the compiler raises for the kernel.

    Example:
        >>> @tessera.jit
        ... def fill(x, n, value, BLOCK: tl.constexpr):
        ...     i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ...     tl.store(x + i, value, mask=i < n)
        >>> x = np.zeros(5, np.float32)
        >>> _ = fill[lambda args: (tessera.cdiv(args["n"], args["BLOCK"]),)](x, 5, 1.5, BLOCK=4, num_warps=1)
        >>> x
        array([1.5, 1.5, 1.5, 1.5, 1.5], dtype=float32)
        >>> fill[(1,)](x, 5, "a", BLOCK=8)
        Traceback (most recent call last):
        tessera.errors.SpecializationError: error[argument-type]: failed to specialize argument of type: str...
        >>> fill[(1,)](x, 5, 1.5, BLOCK=8, num_warp=1)
        Traceback (most recent call last):
        tessera.errors.UnknownOption: error[unknown-option]: Keyword argument num_warp was specified...
        >>> tessera.jit(3)
        Traceback (most recent call last):
        tessera.errors.NotAFunction: error[not-a-function]: @jit needs a Python function, got int...
    """
    refuse_unknown("jit", options, _JIT_OPTIONS)

    @trim_traceback
    def made(fn: Callable[..., object]) -> JITFunction[...]:
        return _with_known_names(JITFunction(fn, **options))

    return made(fn) if fn is not None else made


_JIT_OPTIONS = (
    "version", "repr", "launch_metadata", "do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline"
)  # fmt: skip


def _with_known_names(made: JITFunction[P]) -> JITFunction[P]:
    """Return the kernel; warn about options that name parameters that it does not have."""
    for option in ("do_not_specialize", "do_not_specialize_on_alignment"):
        unknown = [
            x for x in getattr(made, option) if isinstance(x, str) and x not in made.arg_names
        ]
        if unknown:
            text = f"{made.__name__} has no parameter {unknown[0]!r}, which {option} names"
            near = (
                suggestion(unknown[0], made.arg_names) or f"there are {', '.join(made.arg_names)}"
            )
            warnings.warn(f"{text}: {near}", UserWarning, stacklevel=stacklevel_of_caller())
    return made


@named_arguments
def autotune(
    configs: Iterable[Config],
    key: Sequence[str],
    prune_configs_by: Mapping[str, object] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., object] | None = None,
    post_hook: Callable[..., object] | None = None,
    warmup: float | None = None,
    rep: float | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., object] | None = None,
    cache_results: bool = False,
) -> Callable[[Any], Autotuner]:
    """Decorator: measure `configs` at the first launch for each set of `key` values, and launch the fastest.

    configs: what to try; with one (or none) nothing is ever measured. key: names of parameters; a new value of one, or
    a new element type of any array argument, tunes again. prune_configs_by: a dict with `early_config_prune(configs,
    args_by_name, **kwargs)`, and `perf_model(**args)` (the estimated time) with `top_k` (a count, or a share of the
    configs). reset_to_zero: array parameters to zero before each trial. restore_value: array parameters to restore
    after each trial. pre_hook(args, reset_only=False) and post_hook(args, exception=None) replace the hooks that do so.
    warmup, rep: ms for each config. do_bench(call, quantiles=...): the timer, which returns times in ms. cache_results:
    keep timings on disk.

    It raises `tuning-arguments` for invalid configs, keys or hooks, and `autotuner` if no config works.

    Example:
        >>> configs = [tessera.Config({"BLOCK": b}, num_warps=1) for b in (8, 16)]
        >>> tuned = tessera.autotune(configs, key=["n"], restore_value=["x"], warmup=1, rep=1)(double)
        >>> x = np.arange(5, dtype=np.float32)
        >>> _ = tuned[lambda args: (tessera.cdiv(args["n"], args["BLOCK"]),)](x, 5)
        >>> x
        array([0., 2., 4., 6., 8.], dtype=float32)
        >>> tuned.best_config in configs
        True
    """

    @trim_traceback
    def decorate(fn: object) -> Autotuner:
        return Autotuner(
            fn,
            getattr(fn, "arg_names", []),
            configs,
            key,
            reset_to_zero,
            restore_value,
            pre_hook=pre_hook,
            post_hook=post_hook,
            prune_configs_by=prune_configs_by,
            warmup=warmup,
            rep=rep,
            use_cuda_graph=use_cuda_graph,
            do_bench=do_bench,
            cache_results=cache_results,
        )

    return decorate
