"""Peak memory of steps of models with the memory plan of GPUs, beside that of eager and Inductor, on any machine.

    python -m benchmarks.graph_peaks [--models perceptrons gpt2 library families] [--modes training inference]
                                     [--dtypes float32 bfloat16] [--device cpu|cuda] [--plans] [--jobs 1] [--steps]

On the CPU fusion, tilings and arenas are those of a GPU, products are externs, and torch's profiler sees allocations;
with `--device cuda` the caching allocator counts. `--plans` runs no kernel: it accounts for the calls that both
compilers write for a GPU (`peak_plans.py`), at the sizes of a GPU. `--steps` shows what is held at each point of the
plan. Inductor on a CPU needs a C++ compiler, but for `--plans`. Models are three of 256 features, and those of
`graph_models` by name. tessera has to hold no more than eager, and 1.02 of what Inductor holds.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import gc
import sys
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE, HERE / "inductor"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

WIDTH = 256
MODELS = ("perceptrons", "attention", "transformer")
WHO = ("eager", "tessera", "inductor")
MOST = {"eager": 1.0, "inductor": 1.02}  # of what they hold


def as_on_a_gpu() -> None:
    """Let CPU graphs have the plans of GPUs, and take memory anew for each call."""
    from tessera.backends.compiler import GPUTarget
    from tessera.graph.calls import executable
    from tessera.graph.passes import cost

    machine = executable.machine_of(GPUTarget("cuda", 90, 32))
    executable.machine_of = lambda target: machine
    cost.machine_of = lambda device: cost.GPU
    executable.LARGE = sys.maxsize


def case_of(name: str, mode: str, dtype: str, device: str) -> Any:
    """The model, which leaves no gradients behind: of those the profiler would see the end alone."""
    import torch
    from model_cases import Case, made
    from torch import nn

    from tests.graph.blocks import Block
    from tests.graph.model_sweep import loss_of

    kind = getattr(torch, dtype)
    if name not in MODELS:
        return made(name, mode, kind, device)
    torch.manual_seed(0)
    if name == "perceptrons":
        layers = [(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(4)]
        module, x = nn.Sequential(*(m for group in layers for m in group)), torch.randn(512, WIDTH)
    else:
        module, x = Block(WIDTH, 8, name == "attention"), torch.randn(2, 128, WIDTH)
    return Case(module.to(device, kind), (x.to(device, kind),), {}, loss_of, mode == "training")


def peaks(case: tuple[str, str, str], device: str, steps: bool) -> dict[str, int]:
    """What a step of a model holds at most, by eager, tessera and Inductor."""
    import torch

    from tessera.graph.torch.measure import peak_bytes
    from tessera.graph.torch.records import recording

    found: dict[str, int] = {}
    for who in WHO:
        torch._dynamo.reset()
        made = case_of(*case, device)
        options: Any = {"matmul": "extern"} if who == "tessera" and device == "cpu" else None
        run = (
            made.module
            if who == "eager"
            else torch.compile(made.module, backend=who, options=options)
        )
        step = made.step(run)
        with recording() as records:
            step()
        for record in records if steps else ():
            show(record)
        found[who] = peak_bytes(step)[0]
        del made, run, step, records
        gc.collect()
    return found


def planned_peaks(case: tuple[str, str, str], steps: bool) -> dict[str, int]:
    """The same by the account of what both compilers plan for a GPU."""
    import model_cases
    import models
    import torch
    from peak_plans import Accounts, inductor_plans, peak_of, tessera_plans

    model_cases.SMALL_BATCH, model_cases.SMALL_TOKENS = models.BATCH, models.TOKENS
    found: dict[str, int] = {}
    for who in WHO:
        torch._dynamo.reset()
        made = case_of(*case, "cpu")
        if who == "eager":
            found[who] = peak_of(made.step(made.module), Accounts())
            continue
        with (tessera_plans if who == "tessera" else inductor_plans)() as accounts:
            step = made.step(torch.compile(made.module, backend=who))
            found[who] = peak_of(step, accounts)
        for k, held in enumerate(accounts.held if steps else ()):
            print(f"  {who}, graph {k}: {held.most:,} bytes at most; (held, taken, by whom):")
            print(*(f"    {total:12,} {new:+12,} {by}" for total, new, by in held.events), sep="\n")
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


def line(case: tuple[str, str, str], args: argparse.Namespace) -> tuple[str, bool | None]:
    """A line for a model, and whether it holds no more than it may; None where something failed."""
    import tessera.torch  # noqa: F401  # registers the backend

    shown = ", ".join(case)
    try:
        if args.plans:
            found = planned_peaks(case, args.steps)
        else:
            if args.device == "cpu":
                as_on_a_gpu()
            found = peaks(case, args.device, args.steps)
    except Exception as error:
        return f"{shown}: failed: {type(error).__name__}: {str(error)[:200]}", None
    mb = ", ".join(f"{who} {n / 1e6:.4f} MB" for who, n in found.items())
    ratios = {who: found["tessera"] / max(1, found[who]) for who in ("eager", "inductor")}
    faults = [f"MORE THAN {who.upper()}" for who, r in ratios.items() if r > MOST[who]]
    beside = ", ".join(f"{r:.3f} of {who}'s" for who, r in ratios.items())
    return f"{shown:40} {mb}: {beside} {' '.join(faults)}".rstrip(), not faults


def _line_of(given: tuple[tuple[str, str, str], argparse.Namespace]) -> tuple[str, bool | None]:
    return line(*given)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--modes", nargs="+", default=["training"])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--plans", action="store_true", help="account for plans, run no kernel")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--steps", action="store_true")
    args = parser.parse_args()
    import model_cases

    groups = {"library": model_cases.LIBRARY, "families": model_cases.FAMILIES}
    names = [m for given in args.models for m in groups.get(given, (given,))]
    work = [(case, args) for case in product(names, args.modes, args.dtypes)]
    verdicts: list[bool | None] = []
    with get_context("spawn").Pool(args.jobs, maxtasksperchild=8) as pool:
        for text, good in pool.imap_unordered(_line_of, work):
            print(text, flush=True)
            verdicts.append(good)
    print(
        f"{len(verdicts)} steps: {verdicts.count(True)} as they must be, {verdicts.count(False)} too large, "
        f"{verdicts.count(None)} failed"
    )


if __name__ == "__main__":
    main()
