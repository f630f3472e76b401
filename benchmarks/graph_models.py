"""Small models under torch.compile: eager, this backend and Inductor; step times, cold compiles, kernels, peak memory.

    python -m benchmarks.graph_models [--models mlp gpt2] [--rivals tessera inductor] [--device cuda] [--json FILE]

Each model and backend has a process with empty caches. In it the first training step is timed as the cold compile;
then steps of eager and of the compiled model follow each other in random turn, medians count. Ratios above 1 mean that
tessera is better. Inductor on a CPU needs a C++ compiler, and is left out where there is none. The models are those of
the tests in other sizes; where torchvision and transformers are, `--models` takes those of benchmarks/inductor, too.
Needs torch and pytest.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE, HERE / "inductor"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import record  # noqa: E402
from record import Row  # noqa: E402

RIVALS = ("tessera", "inductor")
MODELS = ("perceptrons", "transformer", "attention", "convolutions", "u-net", "recurrence", "small")
WIDTH = 256


# --- one model and backend, in a process of its own ---------------------------------------------------------------
def case(name: str) -> tuple[Any, Callable[..., Any]]:
    """(a module, a function that calls what is given in its place, for a loss)."""
    import torch
    from torch import nn

    from tests.graph import test_torch_models as tested

    def perceptrons() -> Any:
        layers = [(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(4)]
        return nn.Sequential(*(layer for group in layers for layer in group))

    sized: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
        "perceptrons": (perceptrons, (512, WIDTH)),
        "transformer": (lambda: tested.Block(WIDTH, 8, False), (2, 128, WIDTH)),
        "attention": (lambda: tested.Block(WIDTH, 8, True), (2, 128, WIDTH)),
        "convolutions": (tested.Convolutions, (8, 3, 64, 64)),
        "u-net": (tested.Residual, (4, 4, 64, 64)),
        "recurrence": (tested.StateSpace, (16, 512, 6)),
        "small": (tested.mlp, (6, 10)),
    }
    if name not in sized:
        return library_case(name)
    make, shape = sized[name]
    placed = {"cpu": torch.randn(shape)}

    def loss(run: Any, device: str) -> Any:
        x = (
            placed[device]
            if device in placed
            else placed.setdefault(device, placed["cpu"].to(device))
        )
        return tested.loss_of(run(x))

    return make(), loss


def library_case(name: str) -> tuple[Any, Callable[..., Any]]:
    """A model of benchmarks/inductor, which has its own loss."""
    import models

    module, inputs = models.MODELS[name]()

    def loss(run: Any, device: str) -> Any:
        inputs.update({k: v.to(device) for k, v in inputs.items()})  # once
        out = run(**inputs)
        return out.loss if hasattr(out, "loss") else out

    return module, loss


def step_of(
    run: Any, parameters: list[Any], loss_of: Callable[..., Any], device: str
) -> Callable[[], Any]:
    """A training step without an optimizer."""

    def step() -> Any:
        for p in parameters:
            p.grad = None
        loss = loss_of(run, device)
        loss.backward()
        return loss.detach()

    return step


def measure(name: str, rival: str, device: str, rounds: int) -> dict[str, Any]:
    """What the table says of a model under a backend, and of eager beside it."""
    import torch

    from tessera.graph.torch_measure import peak_bytes, synchronizer

    torch.manual_seed(0)
    module, loss_of = case(name)
    module = module.to(device).train()
    parameters, wait = list(module.parameters()), synchronizer(device)
    torch.compile(lambda x: x, backend="eager")(torch.ones(1))  # what Dynamo imports is nobody's
    runs = {"eager": module, rival: torch.compile(module, backend=rival)}
    steps = {who: step_of(run, parameters, loss_of, device) for who, run in runs.items()}
    expected = steps["eager"]()
    cold, (loss, kernels) = seconds(lambda: counted(steps[rival], rival), wait)
    times: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(rounds):
        for who in random.sample(list(steps), len(steps)):
            times[who].append(seconds(steps[who], wait)[0])
    return {
        "cold_s": cold, "kernels": kernels, "loss": float(abs(loss - expected) / abs(expected)),
        "step_ms": {who: 1e3 * statistics.median(t) for who, t in times.items()},
        "peak_bytes": {who: peak_bytes(step)[0] for who, step in steps.items()},
        "operations": operations(steps["eager"]),
    }  # fmt: skip


def seconds(action: Callable[[], Any], wait: Callable[[], object]) -> tuple[float, Any]:
    wait()
    start = time.perf_counter()
    found = action()
    wait()
    return time.perf_counter() - start, found


def counted(step: Callable[[], Any], rival: str) -> tuple[Any, int]:
    """The loss of the first step, and how many kernels and externs the graphs launch that it compiles."""
    if rival == "inductor":
        from torch._inductor import metrics

        metrics.reset()
        return step(), metrics.generated_kernel_count
    import tessera.torch  # noqa: F401  # registers the backend
    from tessera.graph.plan import Launch
    from tessera.graph.torch_records import recording

    with recording() as records:
        loss = step()
    plans = [r.run.plan for r in records if hasattr(r.run, "plan")]
    return loss, sum(isinstance(s, Launch) for plan in plans for s in plan.steps)


def operations(step: Callable[[], Any]) -> int:
    """How many operations eager runs that compute something."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += not func.is_view
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        step()
    return counter.count


# --- all of them ----------------------------------------------------------------------------------------------------
def run_alone(name: str, rival: str, args: argparse.Namespace) -> dict[str, Any] | None:
    """The same in a process with empty caches; None, and its error printed, if it fails."""
    with tempfile.TemporaryDirectory(prefix="graph-models-") as folder:
        settings = {
            **os.environ, "TESSERA_CACHE_DIR": f"{folder}/tessera", "TRITON_CACHE_DIR": f"{folder}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRANSFORMERS_VERBOSITY": "error",
        }  # fmt: skip
        out = Path(folder) / "found.json"
        command = [
            sys.executable, "-W", "ignore", __file__, "--one", name, rival, str(out),
            "--device", args.device, "--rounds", str(args.rounds),
        ]  # fmt: skip
        done = subprocess.run(command, env=settings, capture_output=True, text=True)
        if done.returncode:
            print(f"{name} {rival}: {done.stderr.strip().splitlines()[-1:]}")
            return None
        return json.loads(out.read_text())


def rows_of(name: str, found: dict[str, dict[str, Any]]) -> list[Row]:
    """A model's rows: step, cold compile, kernels, peak memory. Of eager's numbers those beside tessera's count."""
    ours = found["tessera"]
    steps = {"tessera": ours["step_ms"]["tessera"], "eager": ours["step_ms"]["eager"]}
    peaks = {"tessera": ours["peak_bytes"]["tessera"], "eager": ours["peak_bytes"]["eager"]}
    colds, kernels = {"tessera": ours["cold_s"]}, {"tessera": ours["kernels"]}
    kernels["eager"] = ours["operations"]
    if "inductor" in found:
        # Both were measured beside eager: what the machine did meanwhile cancels out.
        theirs = found["inductor"]
        quiet = steps["eager"] / theirs["step_ms"]["eager"]
        steps["inductor"] = theirs["step_ms"]["inductor"] * quiet
        peaks["inductor"], colds["inductor"] = theirs["peak_bytes"]["inductor"], theirs["cold_s"]
        kernels["inductor"] = theirs["kernels"]

    def row(what: str, unit: str, values: dict[str, Any]) -> Row:
        ratios = {k: v / max(values["tessera"], 1e-12) for k, v in values.items() if k != "tessera"}
        return Row(
            what, name, "float32", unit, {k: float(v) for k, v in values.items()}, ratios=ratios
        )

    made = row("step", "ms", steps)
    made.deviations = {"tessera": ours["loss"]}
    return [
        made, row("cold compile", "s", colds), row("kernels", "", kernels),
        row("peak memory", "MB", {k: v / 1e6 for k, v in peaks.items()}),
    ]  # fmt: skip


def show(rows: list[Row]) -> None:
    for r in rows:
        times = ", ".join(f"{who} {t:.4g}" for who, t in r.times.items())
        ratios = ", ".join(f"{v:.3f}x {who}" for who, v in r.ratios.items())
        print(f"{r.shape:10} {r.name:13} {times} {r.time_unit}: {ratios}", flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rivals", nargs="+", default=list(RIVALS), choices=RIVALS)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--one", nargs=3, metavar=("MODEL", "RIVAL", "FILE"), help=argparse.SUPPRESS
    )
    record.add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parsed()
    if args.one is not None:
        name, rival, out = args.one
        Path(out).write_text(json.dumps(measure(name, rival, args.device, args.rounds)))
        return
    rivals = [r for r in args.rivals if r != "tessera"]
    if args.device == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        print("no C++ compiler: Inductor is left out")
        rivals = []
    rows: list[Row] = []
    for name in args.models:
        found = {r: x for r in ("tessera", *rivals) if (x := run_alone(name, r, args)) is not None}
        if "tessera" in found:
            rows += rows_of(name, found)
            show(rows[-4:])
    record.write(args, "graph_models", rows, device=args.device)


if __name__ == "__main__":
    main()
