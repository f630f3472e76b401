"""Peak memory of training steps with the memory plan of GPUs, beside that of eager and Inductor, on any machine.

    python -m benchmarks.graph_peaks [--models perceptrons lstm gpt2] [--device cpu|cuda] [--steps]

On the CPU fusion, tilings and arenas are those of a GPU, products are externs, and torch's profiler sees allocations;
with `--device cuda` the caching allocator counts. `--steps` shows what is held at each point of the plan. Inductor on a
CPU needs a C++ compiler. Models are three of 256 features, and those of `graph_models` by name, in fp32. tessera has to
hold no more than eager, and 1.02 of what Inductor holds.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE, HERE / "inductor"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

WIDTH = 256
MODELS = ("perceptrons", "attention", "transformer")


def as_on_a_gpu() -> None:
    """Let CPU graphs have the plans of GPUs, and take memory anew for each call."""
    from tessera.backends.compiler import GPUTarget
    from tessera.graph.calls import executable
    from tessera.graph.calls.executable import Arenas
    from tessera.graph.passes import cost

    machine = executable.machine_of(GPUTarget("cuda", 90, 32))
    executable.machine_of = lambda target: machine
    cost.machine_of = lambda device: cost.GPU
    Arenas.take = lambda self, host, size: host.empty(size)
    Arenas.give = lambda self, arena: None


def case_of(name: str, device: str) -> Any:
    """The model, which leaves no gradients behind: of those the profiler would see the end alone."""
    import torch
    from model_cases import Case, made
    from torch import nn

    from tests.graph.blocks import Block
    from tests.graph.model_sweep import loss_of

    if name not in MODELS:
        return made(name, "training", torch.float32, device)
    torch.manual_seed(0)
    if name == "perceptrons":
        layers = [(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(4)]
        module, x = nn.Sequential(*(m for group in layers for m in group)), torch.randn(512, WIDTH)
    else:
        module, x = Block(WIDTH, 8, name == "attention"), torch.randn(2, 128, WIDTH)
    return Case(module.to(device), (x.to(device),), {}, loss_of, True)


def peaks(name: str, device: str, steps: bool) -> dict[str, int]:
    import torch

    from tessera.graph.torch.measure import peak_bytes
    from tessera.graph.torch.records import recording

    found: dict[str, int] = {}
    for who in ("eager", "tessera", "inductor"):
        torch._dynamo.reset()
        case = case_of(name, device)
        options: Any = {"matmul": "extern"} if who == "tessera" and device == "cpu" else None
        run = (
            case.module
            if who == "eager"
            else torch.compile(case.module, backend=who, options=options)
        )
        step = case.step(run)
        with recording() as records:
            step()
        for record in records if steps else ():
            show(record)
        found[who] = peak_bytes(step)[0]
    return found


def show(record: Any) -> None:
    """What each point of a plan holds beside what was there before the call."""
    plan = record.run.plan
    made = list(plan.allocations({}, 512))
    held = [sum(a.at(group) for a in made) for group in plan.groups()]
    print(
        f"  {record.purpose}: {len(plan.donated)} donated, {len(plan.arenas)} arenas; held, in KB:"
    )
    print("   ", *(f"{n / 1e3:.0f}" for n in held))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", action="store_true")
    args = parser.parse_args()
    import tessera.torch  # noqa: F401  # registers the backend

    if args.device == "cpu":
        as_on_a_gpu()
    for name in args.models:
        found = peaks(name, args.device, args.steps)
        mb = ", ".join(f"{who} {n / 1e6:.3f} MB" for who, n in found.items())
        ratios = {who: found["tessera"] / found[who] for who in ("eager", "inductor")}
        good = ratios["eager"] <= 1 and ratios["inductor"] <= 1.02
        shown = ", ".join(f"{r:.3f} of {who}'s" for who, r in ratios.items())
        print(f"{name:12} {mb}: {shown}: {'as it must be' if good else 'TOO MUCH'}", flush=True)


if __name__ == "__main__":
    main()
