"""Times small programs under torch.compile: eager, this backend and Inductor, in random turn; medians and ratios.

    python -m benchmarks.graph [--device cuda] [--rounds 30] [--rivals eager,inductor] [--only softmax]

Needs torch. Inductor on a CPU needs a C++ compiler: leave it out where there is none.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

import tessera.torch

ROWS, COLUMNS = 2048, 1024
Case = tuple[Callable[..., Any], list[tuple[int, ...]]]

CASES: dict[str, Case] = {
    "pointwise": (
        lambda x, y: torch.tanh(x * y + 1) / (y * y + 1),
        [(ROWS, COLUMNS), (ROWS, COLUMNS)],
    ),
    "bias-gelu": (lambda x, b: F.gelu(x + b), [(ROWS, COLUMNS), (COLUMNS,)]),
    "transposed": (lambda x, y: x + y.t(), [(ROWS, COLUMNS), (COLUMNS, ROWS)]),
    "softmax": (lambda x: torch.softmax(x, -1), [(ROWS, COLUMNS)]),
    "layer-norm": (
        lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b),
        [(ROWS, COLUMNS), (COLUMNS,), (COLUMNS,)],
    ),
    "column-sums": (lambda x: x.sum(0), [(ROWS, COLUMNS)]),
    "few-columns": (lambda x: x.sum(0), [(1_000_000, 4)]),
    "total": (lambda x: (x * x).sum(), [(ROWS, COLUMNS)]),
    "small": (lambda x, y: torch.relu(x + y), [(16, 16), (16, 16)]),
}


def compiled(f: Callable[..., Any], rival: str) -> Callable[..., Any]:
    """The function as a rival runs it: "eager", or a backend of torch.compile."""
    return f if rival == "eager" else torch.compile(f, backend=rival)


def timed(f: Callable[..., Any], inputs: Sequence[Any], device: str) -> float:
    """Seconds of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    f(*inputs)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(case: Case, rivals: Sequence[str], device: str, rounds: int) -> dict[str, float]:
    """Median seconds of a call, by rival; results are compared with eager's first."""
    torch._dynamo.reset()
    function, shapes = case
    inputs = [torch.randn(shape, device=device) for shape in shapes]
    runs = {rival: compiled(function, rival) for rival in rivals}
    wanted = function(*inputs)
    for f in runs.values():
        torch.testing.assert_close(f(*inputs), wanted, rtol=1e-3, atol=1e-3)
    times: dict[str, list[float]] = {rival: [] for rival in rivals}
    for _ in range(rounds):
        for rival in random.sample(list(rivals), len(rivals)):
            times[rival].append(timed(runs[rival], inputs, device))
    return {rival: statistics.median(t) for rival, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rivals", default="eager,inductor")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    rivals = ["tessera", *filter(None, given.rivals.split(","))]
    print(f"torch {torch.__version__}, {tessera.torch.__name__}, {given.device}")
    for name, case in CASES.items():
        if given.only in name:
            found = measure(case, rivals, given.device, given.rounds)
            ours = found["tessera"]
            parts = [f"{r} {t * 1e6:9.1f} us ({t / ours:4.2f})" for r, t in found.items()]
            print(f"{name:12} " + "   ".join(parts), flush=True)


if __name__ == "__main__":
    main()
