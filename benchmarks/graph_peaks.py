"""Peak memory of steps of models, beside that of eager and Inductor, on any machine.

    python -m benchmarks.graph_peaks [--models perceptrons gpt2 library families] [--modes training inference]
                                     [--dtypes float32 bfloat16] [--device cpu|cuda] [--plans-of gpu|cpu] [--plans]
                                     [--jobs 1] [--steps] [--json FILE]

On the CPU fusion, tilings and arenas are those of a GPU, with products as externs, or with `--plans-of cpu` the CPU's
own; torch's profiler sees allocations, and of Inductor's calls the kernels compute nothing, so that no C++ is
compiled: they allocate no tensor. With `--device cuda` the caching allocator counts. `--plans` runs no kernel: it
accounts for the calls that both compilers write for a GPU (`peak_plans.py`), at the sizes of a GPU. `--steps` shows
what is held at each point of the plan. Models are three of 256 features, and those of `graph_models` by name. tessera
has to hold no more than eager, and 1.02 of what Inductor holds.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE, HERE / "inductor"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import record  # noqa: E402
from record import Row  # noqa: E402

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


@contextmanager
def idle_kernels() -> Generator[None]:
    """Let Inductor's kernels of a CPU only clear what they write, which calls of the library may take as indices."""
    from torch._inductor.async_compile import AsyncCompile

    def idle(self: Any, kinds: list[str], code: str) -> Any:
        writes = [k for k, kind in enumerate(kinds) if "*" in kind and "const" not in kind]

        def kernel(*args: Any) -> None:
            for k in writes:
                args[k].zero_()

        return kernel

    with mock.patch.object(AsyncCompile, "cpp_pybinding", idle):
        yield


def peaks(case: tuple[str, str, str], args: argparse.Namespace) -> dict[str, int]:
    """What a step of a model holds at most, by eager, tessera and Inductor. Large arenas that a CPU keeps between calls
    count, too: the profiler does not see them."""
    import torch

    from tessera.graph.calls.executable import LARGE
    from tessera.graph.torch.measure import peak_bytes
    from tessera.graph.torch.records import recording

    found: dict[str, int] = {}
    for who in WHO:
        torch._dynamo.reset()
        made = case_of(*case, args.device)
        as_gpu = args.device == "cpu" and args.plans_of == "gpu"
        options: Any = {"matmul": "extern"} if who == "tessera" and as_gpu else None
        run = (
            made.module
            if who == "eager"
            else torch.compile(made.module, backend=who, options=options)
        )
        step = made.step(run)
        idle = who == "inductor" and args.device == "cpu"
        with idle_kernels() if idle else nullcontext(), recording() as records:
            step()
            found[who] = peak_bytes(step)[0]
        frames = [f for r in records if hasattr(r.run, "plan") for f in r.run.frames.values()]
        if args.device == "cpu":
            found[who] += max((sum(n for n in f.arenas if n >= LARGE) for f in frames), default=0)
        for r in records if args.steps else ():
            show(r)
        del made, run, step, records, frames
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


def show(compiled: Any) -> None:
    """What each point of a plan holds beside what was there before the call."""
    plan = compiled.run.plan
    made = list(plan.allocations({}, 512))
    held = [sum(a.at(group) for a in made) for group in plan.groups()]
    print(
        f"  {compiled.purpose}: {len(plan.donated)} donated, {len(plan.arenas)} arenas; held, in KB:"
    )
    print("   ", *(f"{n / 1e3:.0f}" for n in held))


def measured(
    given: tuple[tuple[str, str, str], argparse.Namespace],
) -> tuple[str, Row | None]:
    """A line for a model, and its peaks in MB; None where something failed."""
    import tessera.torch  # noqa: F401  # registers the backend

    case, args = given
    shown = ", ".join(case)
    try:
        if args.plans:
            found = planned_peaks(case, args.steps)
        else:
            if args.device == "cpu" and args.plans_of == "gpu":
                as_on_a_gpu()
            found = peaks(case, args)
    except Exception as error:
        return f"{shown}: failed: {type(error).__name__}: {str(error)[:200]}", None
    mb = {who: n / 1e6 for who, n in found.items()}
    ours = max(1, found["tessera"])
    ratios = {who: n / ours for who, n in found.items() if who != "tessera"}
    row = Row("peak memory", ", ".join(case[:2]), case[2], "MB", mb, ratios=ratios)
    held = ", ".join(f"{who} {n:.4f} MB" for who, n in mb.items())
    faults = [f"MORE THAN {who.upper()}" for who in above(row)]
    beside = ", ".join(f"{1 / max(r, 1e-9):.3f} of {who}'s" for who, r in ratios.items())
    return f"{shown:40} {held}: {beside} {' '.join(faults)}".rstrip(), row


def above(row: Row) -> list[str]:
    """Of whom tessera holds more than it may."""
    return [who for who in MOST if row.times["tessera"] > MOST[who] * row.times[who]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--modes", nargs="+", default=["training"])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--plans-of", default="gpu", choices=("gpu", "cpu"))
    parser.add_argument("--plans", action="store_true", help="account for plans, run no kernel")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--steps", action="store_true")
    record.add_arguments(parser)
    args = parser.parse_args()
    import model_cases

    groups = {"library": model_cases.LIBRARY, "families": model_cases.FAMILIES}
    names = [m for given in args.models for m in groups.get(given, (given,))]
    work = [(case, args) for case in product(names, args.modes, args.dtypes)]
    rows: list[Row] = []
    with get_context("spawn").Pool(args.jobs, maxtasksperchild=8) as pool:
        for text, row in pool.imap_unordered(measured, work):
            print(text, flush=True)
            rows += [row] if row else []
    large, failed = sum(bool(above(r)) for r in rows), len(work) - len(rows)
    print(
        f"{len(work)} steps: {len(rows) - large} as they must be, {large} too large, {failed} failed"
    )
    record.write(args, "graph_peaks", rows, plans_of=args.plans_of, above=large, failed=failed)


if __name__ == "__main__":
    main()
