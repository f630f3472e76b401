"""Times kernel calls, in ms: by CUDA events where torch drives a GPU, else by the host's clock from the start of a call
until all its work is done."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, cast

from tessera.runtime.cuda import driver_api as cuda

# Written before each timed call on a GPU, so that no call finds its data in L2.
L2_BYTES = 256 * 1024 * 1024
RETURN_MODES = ("min", "max", "mean", "median", "all")
Timer = Callable[..., Any]  # of a call: `timer(call, quantiles=...)` returns times in ms
# Says whether all launches run on the host now, whatever torch uses. Filled by what chooses drivers.
ON_HOST: list[Callable[[], bool]] = []


def quantile(values: Sequence[float], q: Sequence[float]) -> list[float]:
    """Return quantiles by linear interpolation between the two nearest ranks."""
    ordered = sorted(values)
    found: list[float] = []
    for fraction in q:
        if not 0 <= fraction <= 1:
            raise ValueError(f"a quantile lies in [0, 1], got {fraction}")
        at = fraction * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        found.append(ordered[low] + (ordered[high] - ordered[low]) * (at - low))
    return found


def summarize(times: Sequence[float], quantiles: Sequence[float] | None, return_mode: str) -> Any:
    """Return a list of quantiles (one number if one was asked for), or what `return_mode` names."""
    if quantiles is not None:
        found = quantile(times, quantiles)
        return found[0] if len(found) == 1 else found
    if return_mode == "all":
        return list(times)
    import statistics  # loads decimal and fractions, which no launch needs

    reduce: dict[str, Callable[[Sequence[float]], float]] = {
        "min": min,
        "max": max,
        "mean": statistics.fmean,
        "median": statistics.median,
    }
    return reduce[return_mode](times)


def cuda_torch() -> Any | None:
    """Return torch if the program has loaded it and uses CUDA through it, and launches may run there; never import
    it."""
    torch = sys.modules.get("torch")
    if any(on_host() for on_host in ON_HOST):
        return None
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return torch


def device_name() -> str:
    """Return the name of the hardware on which timings are taken now."""
    torch = cuda_torch()
    if torch is not None:
        return str(torch.cuda.get_device_name())
    try:
        with open("/proc/cpuinfo", errors="replace") as info:
            model = next((line for line in info if line.startswith("model name")), "")
    except OSError:
        model = ""
    return model.partition(":")[2].strip() or platform.processor() or platform.machine()


def clear_gradients(tensors: Sequence[Any] | None) -> None:
    for tensor in tensors or ():
        tensor.grad = None


def do_bench(
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[object] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Return the time of `fn()` in ms, measured for about `rep` ms after about `warmup` ms.

    Where torch uses a GPU every call is timed separately there, after the L2 cache was overwritten, unless launches
    were sent to the host (`TESSERA_DEVICE=cpu`, `driver.set_active("cpu")`). On the host, caches stay as the last
    call left them. `quantiles` asks for a list of them (a number for one); otherwise `return_mode` is one of "min",
    "max", "mean", "median" and "all". Gradients of `grad_to_none` are dropped before each call. It raises
    AssertionError for another mode.

    Example:
        >>> low, high = tessera.testing.do_bench(lambda: sum(range(1000)), warmup=1, rep=1, quantiles=[0.2, 0.8])
        >>> 0 < low <= high
        True
        >>> tessera.testing.do_bench(lambda: None, return_mode="best")
        Traceback (most recent call last):
        AssertionError: return_mode must be one of ('min', 'max', 'mean', 'median', 'all')...
    """
    assert return_mode in RETURN_MODES, f"return_mode must be one of {RETURN_MODES}"
    if not callable(cast("object", fn)):
        error = TypeError(f"do_bench calls a function, and a {type(fn).__name__} is none")
        error.add_note("  = help: write `do_bench(lambda: kernel[grid](...))`")
        raise error
    torch = cuda_torch()
    if torch is None:
        return summarize(_time_on_host(fn, warmup, rep, grad_to_none), quantiles, return_mode)
    return summarize(_time_on_gpu(torch, fn, warmup, rep, grad_to_none), quantiles, return_mode)


def do_bench_on_host(
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    quantiles: Sequence[float] | None = None,
) -> float | list[float]:
    """As `do_bench` of what runs on the host. Events of a GPU would not see what a call does while the GPU is busy."""
    return summarize(_time_on_host(fn, warmup, rep, None), quantiles, "mean")


def timer_on_host(timer: Timer) -> Timer:
    """Return what times on the host as `timer` does, where that is one of this module, which may replay a CUDA graph;
    another timer is its owner's affair."""
    given = cast("partial[object]", timer if hasattr(timer, "func") else partial(timer))
    if given.func in (do_bench, do_bench_cudagraph):
        return partial(do_bench_on_host, *given.args, **given.keywords)
    return timer


def _time_on_host(
    fn: Callable[[], object], warmup: float, rep: float, grad_to_none: Sequence[object] | None
) -> list[float]:
    def once() -> float:
        clear_gradients(grad_to_none)
        start = time.perf_counter_ns()
        fn()
        cuda.finish()
        return (time.perf_counter_ns() - start) / 1e6

    fn()
    cuda.finish()
    # A few calls are enough for the estimate if one call already exceeds the whole budget.
    first = once()
    estimate = first if first > rep else sum(once() for _ in range(5)) / 5
    estimate = max(estimate, 1e-6)
    if first <= rep:
        for _ in range(max(1, int(warmup / estimate))):
            fn()
    return [once() for _ in range(max(1, int(rep / estimate)))]


def _time_on_gpu(
    torch: ModuleType,
    fn: Callable[[], object],
    warmup: float,
    rep: float,
    grad_to_none: Sequence[object] | None,
) -> list[float]:
    def event() -> Any:
        return torch.cuda.Event(enable_timing=True)

    fn()
    torch.cuda.synchronize()
    cache = torch.empty(L2_BYTES // 4, dtype=torch.int, device="cuda")
    start, end = event(), event()
    start.record()
    for _ in range(5):
        cache.zero_()
        fn()
    end.record()
    torch.cuda.synchronize()
    estimate = max(start.elapsed_time(end) / 5, 1e-6)
    for _ in range(max(1, int(warmup / estimate))):
        fn()
    spans = [(event(), event()) for _ in range(max(1, int(rep / estimate)))]
    for start, end in spans:
        clear_gradients(grad_to_none)
        cache.zero_()
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in spans]


def do_bench_cudagraph(
    fn: Callable[[], object],
    rep: float = 20,
    grad_to_none: Sequence[object] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Time `fn()` in ms without its launch overhead: replay a CUDA graph of many calls ten times.

    The graph fills about `rep` ms. Needs torch and a CUDA device (RuntimeError).
    """
    assert return_mode in RETURN_MODES, f"return_mode must be one of {RETURN_MODES}"
    torch = cuda_torch()
    if torch is None:
        raise RuntimeError(
            "do_bench_cudagraph needs torch and tensors on a CUDA device; use do_bench on the CPU"
        )
    with torch.cuda.stream(torch.cuda.Stream()):
        times = _time_graph(torch, fn, rep, grad_to_none)
    return summarize(times, quantiles, return_mode)


def _time_graph(
    torch: ModuleType, fn: Callable[[], Any], rep: float, grad_to_none: Sequence[Any] | None
) -> list[float]:
    fn()
    for tensor in grad_to_none or ():
        tensor.detach_()
        tensor.requires_grad_(True)
        tensor.grad = None
    calls = max(1, int(rep / max(_estimate_on_stream(torch, fn), 1e-6)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            clear_gradients(grad_to_none)
            fn()
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(10):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return times


def _estimate_on_stream(torch: ModuleType, fn: Callable[[], object]) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(5):
        fn()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 5
