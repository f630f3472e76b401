"""Measures models of torch for reports: memory, the machine's peaks, how far outputs are from eager."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_map

from tessera.analysis.machines import SHARE, gpu
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.pool import default_threads
from tessera.graph.report.rows import GRADIENT, Distance, Peak
from tessera.graph.report.timing import bandwidth_of
from tessera.graph.torch.host import TorchHost

FMA = 2  # operations
PORTS = 2  # vector units for products and sums of a CPU core
CLOCK = 2.5e9  # Hz, where the system does not tell


def training_step(run: Any, model: Any, inputs: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """Results of a call, and by name the gradients of a weighted sum of them where they have any: the plain sum of
    a softmax is constant."""
    results = run(*inputs)
    tensors = [x for x in tree_flatten(results)[0] if isinstance(x, torch.Tensor)]
    floats = [x for x in tensors if x.requires_grad]
    if not floats:
        return results, {}
    leaves = _leaves(model, inputs)
    total: Any = sum(_weighted(x.real if x.is_complex() else x) for x in floats)
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return results, dict(zip(leaves, found, strict=True))


def _leaves(model: Any, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
    """What may have gradients: `inputs[0]` and parts of inputs, parameters of a module by their names."""
    paths, _ = tree_flatten_with_path(list(inputs))
    found = {f"inputs{keystr(path)}": x for path, x in paths if isinstance(x, torch.Tensor)}
    if isinstance(model, torch.nn.Module):
        found.update(model.named_parameters())
    return {name: x for name, x in found.items() if x.requires_grad}


def _weighted(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.numel(), device=x.device, dtype=torch.float32)
    return (x * torch.sin(places + 1).reshape(x.shape).to(x.dtype)).sum()


def synchronizer(device: str) -> Callable[[], object]:
    """What waits for all work of a device."""
    if device.startswith("cuda"):
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


# --- memory -----------------------------------------------------------------------------------------------------
def peak_bytes(run: Callable[[], object]) -> tuple[int, str]:
    """The most memory that a call holds beside what was there before it, and how it was measured: that of GPUs, or the
    host's where the call allocates none there."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # free blocks that others left may be larger than what is asked for, and count whole
    run()  # what is allocated once, as arenas, is not the call's
    if torch.cuda.is_available() and (most := _peak_on_gpus(run)):
        return most, "CUDA's allocator, second call"
    return _peak_on_the_host(run), "allocations that torch's profiler saw in a call after the first"


def _peak_on_gpus(run: Callable[[], object]) -> int:
    devices = range(torch.cuda.device_count())
    for device in devices:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    before = sum(map(torch.cuda.memory_allocated, devices))
    result = run()
    for device in devices:
        torch.cuda.synchronize(device)
    del result
    return sum(map(torch.cuda.max_memory_allocated, devices)) - before  # of each one its own


def _peak_on_the_host(run: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        result = run()
    del result
    assert p.profiler is not None and p.profiler.kineto_results is not None
    events: list[Any] = [e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for e in sorted(events, key=lambda e: e.start_ns()):
        now += e.nbytes()
        most = max(most, now)
    return most


# --- the machine ------------------------------------------------------------------------------------------------
@cache
def peak_of(device: str) -> Peak:
    """What a device can do at most: its bandwidth by a copy, the rest by its data."""
    host = TorchHost({}, {}, device)
    if not device.startswith("cuda"):
        flops = default_threads() * _clock() * PORTS * FMA * _lanes()
        return Peak(bandwidth_of(host, None, device, synchronizer(device)), flops, flops)
    about = torch.cuda.get_device_properties(device)
    target = GPUTarget("cuda", 10 * about.major + about.minor, 32)
    known = gpu(int(target.arch), about.name)
    # Of the table's machine, for as many multiprocessors as this one has: a part of one may be lent.
    part = about.multi_processor_count / known.units
    bandwidth = bandwidth_of(host, target, device, synchronizer(device))
    return Peak(bandwidth, part * known.flops, part * known.products["bf16"] / SHARE)


def _lanes() -> int:
    """Elements of fp32 in a vector."""
    wide = torch.backends.cpu.get_cpu_capability()
    return {"AVX512": 16, "AVX2": 8}.get(wide, 4)


def _clock() -> float:
    """The highest clock of a core that the system tells, in Hz."""
    limit = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if limit.exists():
        return int(limit.read_text()) * 1e3
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if os.name == "posix" and info.exists() else []
    found = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return max(found) * 1e6 if found else CLOCK


# --- numbers ----------------------------------------------------------------------------------------------------
def distances(model: Any, compiled: Any, inputs: Sequence[Any], notes: list[str]) -> list[Distance]:
    """How far each result and gradient is from eager's, and both from those in float64. Each run begins with the same
    seed; random numbers are eager's own only with `options={"random": "eager"}`."""
    ours, eager = (_numbers(run, model, inputs) for run in (compiled, model))
    try:
        exact = _exact(model, inputs)
    except Exception as error:
        exact = {}
        notes.append(f"float64 does not run this model: {str(error).splitlines()[0][:120]}")
    found: list[Distance] = []
    for name, x in ours.items():
        true = exact.get(name)
        both = (None, None) if true is None else (_far(x, true), _far(eager[name], true))
        found.append(Distance(name, _far(x, eager[name]), *both))
    return found


def _numbers(run: Any, model: Any, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Results by number, gradients by what they are of."""
    torch.manual_seed(0)
    results, gradients = training_step(run, model, tree_map(_own, inputs))
    tensors = [x for x in tree_flatten(results)[0] if isinstance(x, torch.Tensor)]
    found = {f"output {k}": _plain(x) for k, x in enumerate(tensors)}
    found.update({GRADIENT + k: _plain(x) for k, x in gradients.items() if x is not None})
    return found


def _own(x: Any) -> Any:
    """A copy, which the model may change."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().clone().requires_grad_(x.requires_grad)


def _plain(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    x = torch.view_as_real(x) if x.is_complex() else x
    return x.to(torch.float64)


def _exact(model: Any, inputs: Sequence[Any]) -> dict[str, torch.Tensor]:
    def wide(x: Any) -> Any:
        floats = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.detach().to(torch.float64).requires_grad_(x.requires_grad) if floats else x

    double = copy.deepcopy(model).double() if isinstance(model, torch.nn.Module) else model
    return _numbers(double, double, tree_map(wide, inputs))


def _far(x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest difference as a part of the largest element; infinite where one has a NaN or infinity alone."""
    if x.shape != y.shape:
        return float("inf")
    same = (x == y) | (x.isnan() & y.isnan())
    if bool(same.all()):
        return 0.0
    off = (x - y).abs()[~same].max()
    return float(off / y[y.isfinite()].abs().max()) if bool(off.isfinite()) else float("inf")
