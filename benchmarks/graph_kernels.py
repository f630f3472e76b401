"""Kernels that a step of each model launches on a GPU, by the plans of both compilers, on any machine: none is needed.

    python -m benchmarks.graph_kernels [--models llama mlp | library | families] [--modes training] [--dtypes float32]
                                       [--rivals inductor] [--names]

Graphs of CPU tensors are planned as for an H200, while eager computes them; nothing is compiled. Launches of generated
kernels and calls of externs count, as in graph_models.py. Inductor schedules the same graphs for Triton, which need not
be there. `--names` shows what is launched. A step should launch at most 1.1 of what Inductor's does.
Needs torch, and for twenty of the models torchvision and transformers.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import exp, log
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent, HERE, HERE / "inductor"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from inductor_code import writing_for_h200  # noqa: E402

MOST = 1.1  # of Inductor's launches
CALL = re.compile(
    r"^\s+(?:[\w, ]+ = )?(?:(\w+)\.run\(|((?:extern_kernels|torch\.ops|aten)\.[\w.]+)\()", re.M
)


# --- Inductor ---------------------------------------------------------------------------------------------------------
@contextmanager
def triton_code() -> Generator[list[str]]:
    """Let Inductor write code for Triton on an H200 for graphs of CPU tensors, while eager computes them; the code."""
    codes: list[str] = []

    def by_eager(graph: Any, code: str) -> Callable[[list[Any]], Any]:
        codes.append(code)

        def call(inputs: list[Any]) -> Any:
            given = list(inputs)
            inputs.clear()
            return graph.orig_gm(*given)

        return call

    with writing_for_h200(by_eager, cpu_backend="triton", fallback_random=True):
        yield codes


def of_inductor(step: Callable[[], object]) -> Any:
    import torch

    from tests.graph.gpu_plans import Steps

    torch._dynamo.reset()
    with triton_code() as codes:
        step()
    calls = [c for code in codes for c in CALL.findall(code.partition("async_compile.wait(")[2])]
    return Steps([own for own, _ in calls if own], [extern for _, extern in calls if extern])


# --- the command ------------------------------------------------------------------------------------------------------
def measured(name: str, mode: str, dtype: str, rivals: list[str], names: bool) -> float | None:
    """Print a line for a model; what tessera launches by what Inductor does."""
    import model_cases
    import torch

    from tests.graph.gpu_plans import launched

    found: dict[str, Any] = {}
    for who in ("tessera", *rivals):
        case = model_cases.made(name, mode, getattr(torch, dtype), "cpu")
        step = case.step(torch.compile(case.module, backend=who))
        try:
            found[who] = launched(step) if who == "tessera" else of_inductor(step)
        except Exception as error:
            print(f"{name}, {mode}, {dtype}: {who} failed: {type(error).__name__}: {error}"[:300])
            return None
    shown = ", ".join(
        f"{who} {x.count} ({len(x.own)} kernels, {len(x.externs)} externs)"
        for who, x in found.items()
    )
    ratio = found["tessera"].count / max(1, found["inductor"].count) if rivals else None
    verdict = "" if ratio is None else f": {ratio:.2f}{'' if ratio <= MOST else ' TOO MANY'}"
    print(f"{name:22} {mode:9} {dtype:8} {shown}{verdict}", flush=True)
    for who, x in found.items() if names else ():
        for what, count in Counter([*x.own, *x.externs]).most_common():
            print(f"    {who:9} {count:3} {what}")
    return ratio or None


def main() -> None:
    import model_cases

    groups = {"library": model_cases.LIBRARY, "families": model_cases.FAMILIES}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["library", "families"])
    parser.add_argument("--modes", nargs="+", default=["training", "inference"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rivals", nargs="*", default=["inductor"], choices=["inductor"])
    parser.add_argument("--names", action="store_true", help="show what is launched")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    import models

    import tessera.torch  # noqa: F401  # registers the backend

    model_cases.SMALL_BATCH, model_cases.SMALL_TOKENS = models.BATCH, models.TOKENS  # as on a GPU
    ratios: list[float] = []
    for name in [m for given in args.models for m in groups.get(given, (given,))]:
        for mode in args.modes:
            for dtype in args.dtypes:
                ratio = measured(name, mode, dtype, args.rivals, args.names)
                ratios += [] if ratio is None else [ratio]
    if ratios:
        mean = exp(sum(map(log, ratios)) / len(ratios))
        print(
            f"tessera by Inductor, {len(ratios)} steps: geomean {mean:.3f}, most {max(ratios):.2f}, "
            f"{sum(r > MOST for r in ratios)} above {MOST}"
        )


if __name__ == "__main__":
    main()
