"""Training steps of some models through stock TorchInductor, in this process, on the Triton that it imports.

Started by run.py. First every model is compiled and its gradients are compared with eager's; then, when all processes
of the run have come that far, each generated kernel is timed while no other process uses the GPU.
"""

# pyright: basic, reportMissingImports=warning
from __future__ import annotations

import argparse
import copy
import fcntl
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import models
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
import triton
from distance import distance
from torch.autograd import DeviceType
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


def compiled(name: str, dtype: torch.dtype) -> Case:
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
    expected = Case(name, exact, floats, list(exact.parameters())).gradients()
    case.row["cold_s"], found = seconds(case.gradients)
    case.row["error"] = distance(found, expected)
    case.row["gradients"] = [x.cpu() for x in found]
    return case


def kernels_of_a_step(case: Case) -> list[tuple[str, float]]:
    """Each launch of a generated kernel in a step, in order: name and µs (median of the steps)."""
    for _ in range(3):
        case.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS):
            case.step()
        torch.cuda.synchronize()
    launches = sorted(
        (e.time_range.start, e.name, e.time_range.elapsed_us())
        for e in found.events() or []
        if e.device_type == DeviceType.CUDA and e.name.startswith("triton_")
    )
    if not launches or len(launches) % STEPS:
        raise RuntimeError(f"{len(launches)} launches in {STEPS} steps")
    count = len(launches) // STEPS
    return [
        (launches[i][1], statistics.median(x[2] for x in launches[i::count])) for i in range(count)
    ]


def timed(case: Case) -> None:
    case.row["kernels"] = kernels_of_a_step(case)
    case.row["step_ms"] = 1e3 * statistics.median(seconds(case.step)[0] for _ in range(10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="+", help="model:dtype")
    parser.add_argument("--lock", required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    inductor_config.fallback_random = True
    inductor_config.shape_padding = False  # decided by timing: kernels would differ from run to run
    about = {"triton": triton.__file__, "torch": str(torch.__version__)}
    cases: list[Case] = []
    with open(options.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # nobody times kernels as long as one compiles
        torch.compile(lambda x: (x * x).sum(-1))(torch.ones(64, 64, device="cuda"))
        for name, _, dtype in (c.partition(":") for c in options.cases):
            try:
                cases.append(compiled(name, getattr(torch, dtype)))
                torch.save({**cases[-1].row, **about}, options.folder / f"{cases[-1].name}.pt")
            except Exception:
                print(f"{name} {dtype}\n{traceback.format_exc()[-3000:]}", flush=True)
        fcntl.flock(lock, fcntl.LOCK_UN)
        for case in cases:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                timed(case)
            except Exception:
                print(f"{case.name}\n{traceback.format_exc()[-3000:]}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_UN)
            torch.save({**case.row, **about}, options.folder / f"{case.name}.pt")


if __name__ == "__main__":
    main()
