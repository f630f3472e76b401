"""Measures one model under eager, tessera and Inductor, in this process; graph_models.py starts several of these."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import copy
import fcntl
import gc
import os
import random
import re
import shutil
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import model_cases
import torch
import torch._inductor.config as inductor_config
from distance import distance
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map

import tessera.torch  # noqa: F401  registers the backend
from tessera.graph.calls.executable import LARGE
from tessera.graph.planning.plan import Launch
from tessera.graph.torch.measure import peak_bytes, synchronizer
from tessera.graph.torch.records import recording

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}  # those of benchmarks/inductor
PERTURBED = 8
TRACED = 4  # steps in a trace
SLOWEST = 6  # functions that are named
SAMPLE_S = 0.004  # a timed sample takes about so long
MARK = "spin_kernel"  # what the GPU runs between the steps of two programs in a trace
CALLS = re.compile(
    r"^\s+(?:\w+ = )?(?:\w+\.run\(|cpp_\w+\(|extern_kernels\.|torch\.ops\.|aten\.)", re.MULTILINE
)


def prepare(device: str) -> None:
    """What is nobody's: imports, the first use of the device, Inductor's compiler processes, the first trace."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    inductor_config.fallback_random = True
    torch._dynamo.config.cache_size_limit = 64
    x = torch.ones(64, 64, device=device, requires_grad=True)
    for backend in ("tessera", "inductor"):
        with caches():
            torch.compile(lambda x: torch.softmax(x @ x, -1).sum(), backend=backend)(x).backward()
    if device == "cuda":
        gpu_sums(traced({"nobody": lambda: x * x}), ["nobody"])


def measure(
    name: str,
    mode: str,
    dtype: str,
    device: str,
    rivals: Sequence[str],
    rounds: int,
    lock: str,
    warm: bool,
    threads: int = 0,
) -> dict[str, Any]:
    """What the tables say of a model. `lock`: a file; who holds it times, and others do not. `threads`: as many as the
    process has, where that was asked for. Steps of one thread on a CPU are timed by the processor's own time, which
    other processes change little."""
    torch._dynamo.reset()
    case = model_cases.made(name, mode, getattr(torch, dtype), device)
    wait = synchronizer(device)
    eager = case.step(case.module)
    row: dict[str, Any] = {"model": name, "mode": mode, "dtype": dtype, "failed": {}}
    expected, steps = eager(), {"eager": eager}
    reference = Reference(name, mode, dtype, device)
    row["error"] = {"eager": distance(numbers(expected), reference.exact)}
    row.update({"kernels": {}, "cold_s": {}, "warm_s": {}, "apart": {}})
    kept = 0
    with caches():
        for who in random.sample(rivals, len(rivals)):
            step = case.step(torch.compile(case.module, backend=who))
            try:
                row["cold_s"][who], (found, row["kernels"][who], arenas) = seconds(
                    lambda step=step: counted(step), wait
                )
            except Exception as error:
                row["failed"][who] = told(error)
                continue
            steps[who], kept = step, max(kept, arenas)
            row["apart"][who] = distance(numbers(found), numbers(expected))
            row["error"][who] = distance(numbers(found), reference.exact)
            del found
        if warm:
            forget_memory()
            row["warm_s"] = {who: seconds(steps[who], wait)[0] for who in list(steps)[1:]}
        row["right"], row["rounding"] = judged(row, dtype, reference)
        del expected, reference
        for step in steps.values():
            for _ in range(2):
                step()
        row["peak_bytes"] = {who: peak_bytes(step)[0] for who, step in steps.items()}
        if device == "cpu" and "tessera" in steps:
            row["peak_bytes"]["tessera"] += kept  # between calls, which hides it from the profiler
        with alone(lock):
            clock = time.process_time if (device, threads) == ("cpu", 1) else time.perf_counter
            row["step_ms"] = step_times(steps, wait, rounds, clock)
            trace = traced(steps) if device == "cuda" else None
        try:
            if trace is not None:
                row.update(gpu_sums(trace, list(steps)))
        except ValueError as error:
            row["failed"]["trace"] = str(error)
    del steps, case, eager, step
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return row


# --- numbers --------------------------------------------------------------------------------------------------------
def numbers(found: Sequence[Any]) -> list[Any]:
    return [x.detach().float() for x in found]


class Reference:
    """Eager with the same weights in a wider type: fp32 as in benchmarks/inductor, for models in fp32 fp64."""

    def __init__(self, name: str, mode: str, dtype: str, device: str):
        self.kind = getattr(torch, dtype)
        self.case = self.widened(
            name, mode, device, torch.float64 if dtype == "float32" else torch.float32
        )
        try:
            found = self.case.step(self.case.module)()
        except RuntimeError:  # a model that names a type
            self.case = self.widened(name, mode, device, torch.float32)
            found = self.case.step(self.case.module)()
        self.exact = numbers(found)

    def widened(self, name: str, mode: str, device: str, wide: Any) -> model_cases.Case:
        case = model_cases.made(name, mode, self.kind, device)
        case.module = copy.deepcopy(case.module).to(wide)
        case.args, case.kwargs = tree_map(
            lambda x: x.to(wide) if x.is_floating_point() else x, (case.args, case.kwargs)
        )
        return case

    def rounding(self) -> float:
        """How far the numbers move when weights change in their last place: networks jump where a ReLU turns."""
        eps, found = torch.finfo(self.kind).eps, 0.0
        parameters = list(self.case.module.parameters())
        given = [p.detach().clone() for p in parameters]
        step = self.case.step(self.case.module)
        for _ in range(PERTURBED):
            with torch.no_grad():
                for p, w in zip(parameters, given, strict=True):
                    p.copy_(w * (1 + eps / 2 * torch.randn_like(w)))
            found = max(found, distance(numbers(step()), self.exact))
        return found


def judged(row: dict[str, Any], dtype: str, reference: Reference) -> tuple[dict[str, bool], float]:
    """Who is right by the rule of benchmarks/inductor: no further from eager than the tolerance or than eager moves by
    rounding, or no further from the wider type than 1.2 times eager; and that move, 0 where nobody asked for it."""
    rounding, right = 0.0, {}
    for who, apart in row["apart"].items():
        good = apart <= TOLERANCE[dtype] or row["error"][who] <= 1.2 * row["error"]["eager"]
        if not good:
            rounding = rounding or reference.rounding()
            good = apart <= rounding
        right[who] = bool(good)
    return right, rounding


# --- compiling ------------------------------------------------------------------------------------------------------
@contextmanager
def caches() -> Generator[None]:
    """Empty caches for all backends, thrown away afterwards."""
    from torch._inductor.utils import fresh_cache

    folder = tempfile.mkdtemp(prefix="graph-models-")
    with mock.patch.dict(os.environ, {"TESSERA_CACHE_DIR": f"{folder}/tessera"}):
        try:
            with fresh_cache(dir=folder):
                yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def forget_memory() -> None:
    """What was compiled is on the disk only, as in a new process."""
    from torch._inductor.utils import clear_caches

    torch._dynamo.reset()
    clear_caches()


def seconds(
    action: Callable[[], Any],
    wait: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, Any]:
    wait()
    start = clock()
    found = action()
    wait()
    return clock() - start, found


def counted(step: Callable[[], Any]) -> tuple[Any, dict[str, int], int]:
    """What a first step gives, how many generated kernels and externs its graphs launch, and bytes of the arena that
    graphs share on a CPU. Inductor writes up to 16 loop nests into one function of C++: each counts, as each of ours
    is a launch."""
    from torch._inductor.codegen.cpp import KernelGroup
    from torch._inductor.graph import GraphLowering

    codes: list[str] = []
    nests: list[object] = []
    write_nest = KernelGroup.finalize_kernel

    def write_and_count(group: KernelGroup, kernel: Any, nodes: Any) -> None:
        nests.append(nodes)
        write_nest(group, kernel, nodes)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(KernelGroup, "finalize_kernel", write_and_count))
        stack.enter_context(mock.patch.object(GraphLowering, "save_output_code", codes.append))
        records = stack.enter_context(recording())
        found = step()
    planned = [s for r in records if hasattr(r.run, "plan") for s in r.run.plan.steps]
    calls = [c for code in codes for c in CALLS.findall(code.partition("async_compile.wait(")[2])]
    externs = [c for c in calls if ".run(" not in c and "cpp_" not in c]
    triton = sum(".run(" in c for c in calls)
    own = triton + len(nests) + sum(isinstance(s, Launch) for s in planned)
    frames = [f for r in records if hasattr(r.run, "plan") for f in r.run.frames.values()]
    arenas = max((sum(n for n in f.arenas if n >= LARGE) for f in frames), default=0)
    return found, {"own": own, "all": triton + len(nests) + len(externs) + len(planned)}, arenas


# --- times ----------------------------------------------------------------------------------------------------------
@contextmanager
def alone(lock: str) -> Generator[None]:
    """Nobody else times meanwhile; the lock of a process that dies is free."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def step_times(
    steps: dict[str, Callable[[], Any]],
    wait: Callable[[], object],
    rounds: int,
    clock: Callable[[], float],
) -> dict[str, float]:
    """Median milliseconds of a step, in random turn."""
    once = seconds(steps["eager"], wait, clock)[0]
    calls = max(1, min(20, round(SAMPLE_S / once)))

    def sample(step: Callable[[], Any]) -> None:
        for _ in range(calls):
            step()

    times: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(rounds):
        for who in random.sample(list(steps), len(steps)):
            action = partial(sample, steps[who])
            times[who].append(seconds(action, wait, clock)[0] / calls)
    return {who: 1e3 * statistics.median(t) for who, t in times.items()}


def traced(steps: dict[str, Callable[[], Any]]) -> profile:
    """A trace of TRACED steps of each program, with a mark before each."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for step in steps.values():
            torch.cuda._sleep(1)
            for _ in range(TRACED):
                step()
            torch.cuda.synchronize()
    return found


def gpu_sums(trace: profile, programs: list[str]) -> dict[str, dict[str, Any]]:
    """By program: microseconds that the GPU computes in a step (the sum of its launches' medians over the steps, if
    all steps launch the same); launches, copies and fills among them; the slowest functions with their launches."""
    assert trace.profiler is not None and trace.profiler.kineto_results is not None
    events: list[Any] = [
        e
        for e in trace.profiler.kineto_results.events()
        if e.device_type() == DeviceType.CUDA
        and not (e.is_user_annotation() or e.name().endswith("Sync"))
    ]
    parts: list[list[tuple[str, float]]] = []
    for e in sorted(events, key=lambda e: e.start_ns()):
        if MARK in e.name():
            parts.append([])
        elif parts:
            parts[-1].append((e.name(), e.duration_ns() / 1e3))
    found: dict[str, dict[str, Any]] = {"gpu_us": {}, "launched": {}, "slowest": {}}
    for who, launches in zip(programs, parts, strict=True):
        count, odd = divmod(len(launches), TRACED)
        times = [us for _, us in launches]
        medians = sum(statistics.median(times[i::count]) for i in range(count))
        found["gpu_us"][who] = sum(times) / TRACED if odd else medians
        found["launched"][who] = count
        found["slowest"][who] = slowest(launches)
    return found


def slowest(launches: Sequence[tuple[str, float]]) -> list[tuple[str, float, float]]:
    """(name, microseconds and launches in a step) of the functions that take most time."""
    of: dict[str, list[float]] = {}
    for name, us in launches:
        of.setdefault(name[:90], []).append(us)
    found = [(name, sum(t) / TRACED, len(t) / TRACED) for name, t in of.items()]
    return sorted(found, key=lambda f: -f[1])[:SLOWEST]


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else ""


def answer(connection: Any, settings: dict[str, Any]) -> None:
    """Measure what comes through `connection`, until None comes."""
    prepare(settings["device"])
    connection.send({"device": device_name(settings["device"])})
    while (asked := connection.recv()) is not None:
        try:
            connection.send(measure(*asked, **settings))
        except Exception as error:
            connection.send({"failed": {"all": told(error)}})


def told(error: Exception) -> str:
    """An error, and the last calls that led to it."""
    at = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {str(error)[:300]} (at {', '.join(at[-3:])})"
