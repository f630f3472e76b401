"""Training steps of some models through stock TorchInductor, in this process, on the Triton that it imports.

Started by run.py, several at a time for each side. First the models of the side's queue are compiled and their
gradients compared with eager's; then, when all processes of the run have come that far, each generated kernel is timed
while no other process uses the GPU. NAME.pt gets the gradients of a case, NAME.json all else, as soon as it is known.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import os
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import models
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
import triton
from distance import distance
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.profiler import ProfilerActivity, profile

STEPS = 7


@dataclass
class Case:
    """A model in a dtype, called by `call`, and what has been measured."""

    name: str
    call: Callable[..., Any]
    inputs: dict[str, torch.Tensor]
    parameters: list[torch.nn.Parameter]
    row: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        (folder / f"{self.name}.json").write_text(json.dumps(self.row))

    def step(self) -> torch.Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        out = self.call(**self.inputs)
        loss = out if isinstance(out, torch.Tensor) else out.loss
        loss.backward()
        return loss.detach()

    def gradients(self) -> list[torch.Tensor]:
        loss = self.step()
        return [
            loss.float(),
            *(p.grad.float().clone() for p in self.parameters if p.grad is not None),
        ]


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = action()
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def moved_by_rounding(case: Case, expected: list[torch.Tensor], eps: float) -> float:
    """How far gradients move when weights change in their last place: networks jump where a ReLU or a maximum turns."""
    found, given = 0.0, [p.detach().clone() for p in case.parameters]
    for _ in range(8):
        with torch.no_grad():
            for p, w in zip(case.parameters, given, strict=True):
                p.copy_(w * (1 + eps / 2 * torch.randn_like(w)))
        found = max(found, distance(case.gradients(), expected))
    return found


def taken(queue: Path) -> str | None:
    """The next case of a queue that several processes share; None at its end."""
    with open(queue, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cases = file.read().split()
        file.seek(0)
        file.truncate()
        file.write(" ".join(cases[1:]))
    return cases[0] if cases else None


def compiled(name: str, dtype: torch.dtype, folder: Path) -> Case:
    """Compile a model for the first time, and compare its gradients with eager's of the same weights in fp32."""
    torch.manual_seed(0)
    model, inputs = models.MODELS[name]()
    model = model.cuda().to(dtype).train()
    inputs = {
        k: v.cuda().to(dtype) if v.is_floating_point() else v.cuda() for k, v in inputs.items()
    }
    exact = copy.deepcopy(model).float()
    case = Case(f"{name} {str(dtype)[6:]}", torch.compile(model), inputs, list(model.parameters()))
    floats = {k: v.float() if v.is_floating_point() else v for k, v in inputs.items()}
    reference = Case(name, exact, floats, list(exact.parameters()))
    expected = reference.gradients()
    case.row["rounding"] = moved_by_rounding(reference, expected, torch.finfo(dtype).eps)
    case.row["cold_s"], found = seconds(case.gradients)
    case.row["error"] = distance(found, expected)
    case.row["triton"], case.row["torch"] = triton.__file__, str(torch.__version__)
    case.row["caches"] = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    torch.save([x.cpu() for x in found], folder / f"{case.name}.pt")
    case.write(folder)
    return case


def traced(case: Case) -> profile:
    """A trace of STEPS steps."""
    for _ in range(3):
        case.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS):
            case.step()
        torch.cuda.synchronize()
    return found


def kernels_of_a_step(trace: profile) -> list[tuple[str, float]]:
    """Each launch of a generated kernel in a step, in order: name and µs (median of the steps)."""
    launches = sorted(
        (e.time_range.start, e.name, e.time_range.elapsed_us())
        for e in trace.events() or []
        if e.device_type == DeviceType.CUDA and e.name.startswith("triton_")
    )
    if not launches or len(launches) % STEPS:
        raise RuntimeError(f"{len(launches)} launches in {STEPS} steps")
    count = len(launches) // STEPS
    return [
        (launches[i][1], statistics.median(x[2] for x in launches[i::count])) for i in range(count)
    ]


def timed(case: Case, lock: IO[str]) -> None:
    """Time a case's kernels and whole steps, alone on the GPU."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        trace = traced(case)
        case.row["step_ms"] = 1e3 * statistics.median(seconds(case.step)[0] for _ in range(10))
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
    case.row["kernels"] = kernels_of_a_step(trace)


@contextmanager
def reported(about: str) -> Iterator[None]:
    """What fails is printed, and the next case goes on."""
    try:
        yield
    except Exception:
        print(f"{about}\n{traceback.format_exc()[-3000:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--queue", type=Path, required=True, help="file of model:dtype")
    parser.add_argument("--lock", required=True)
    parser.add_argument("--until", type=float, required=True, help="no model is begun later")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    inductor_config.fallback_random = True
    inductor_config.shape_padding = False  # decided by timing: kernels would differ from run to run
    cases: list[Case] = []
    with open(options.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # nobody times kernels as long as one compiles
        torch.compile(lambda x: (x * x).sum(-1))(torch.ones(64, 64, device="cuda"))
        while time.time() < options.until and (taken_case := taken(options.queue)):
            name, _, dtype = taken_case.partition(":")
            with reported(taken_case):
                cases.append(compiled(name, getattr(torch, dtype), options.folder))
        for case in cases[:1]:
            with reported(case.name):
                traced(case)  # the first trace of a process takes seconds
        fcntl.flock(lock, fcntl.LOCK_UN)
        for case in cases:
            with reported(case.name):
                timed(case, lock)
                case.write(options.folder)


if __name__ == "__main__":
    main()
