"""Times matrix products and attention under torch.compile on a CPU: eager, ours with eager's
product, ours with a kernel of ours.

    python -m benchmarks.graph_matmul [--threads 1] [--dtype float32] [--rounds 15] [--only gelu]

The three run in random turn; medians of rounds, and the ratio of the kernel to each of the others.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

import tessera.torch  # noqa: F401  registers the backend

SIZES = (
    (16, 16, 16), (64, 64, 64), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (512, 2048, 512),
    (4096, 256, 256), (8, 512, 512), (1, 1024, 1024), (1, 4096, 1024),
)  # fmt: skip
LEAST = 0.01  # seconds of a measurement
CASES: dict[str, Callable[..., Any]] = {
    "linear": F.linear,
    "gelu": lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "residual": lambda x, w, b: torch.relu(F.linear(x, w, b)) + b,
}

ATTENTIONS = ((1, 8, 1024, 64), (4, 8, 128, 64), (2, 4, 512, 32), (8, 12, 64, 64), (1, 8, 1000, 80))
ATTENTION: dict[str, Callable[..., Any]] = {
    "attention": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
}


def variants(f: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Eager, and the function compiled with eager's products and with ours."""
    made = [f]
    for how in ("extern", "kernel"):
        torch._dynamo.reset()
        options: dict[str, Any] = {"matmul": how}
        made.append(torch.compile(f, backend="tessera", dynamic=False, options=options))
    return made


def seconds(f: Callable[..., Any], inputs: Sequence[Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        f(*inputs)
    return (time.perf_counter() - start) / calls


def medians(
    functions: Sequence[Callable[..., Any]], inputs: Sequence[Any], rounds: int
) -> list[float]:
    """The median seconds of a call of each function."""
    once = [seconds(f, inputs, 2) for f in functions]
    calls = max(1, int(LEAST / max(once[0], 1e-6)))
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for k in random.sample(range(len(functions)), len(functions)):
            found[k].append(seconds(functions[k], inputs, calls))
    return [statistics.median(x) for x in found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["TESSERA_NUM_THREADS"] = str(args.threads)
    print(
        "case      M x K x N          eager us  extern us  kernel us  kernel/eager  kernel/extern"
    )
    dtype = getattr(torch, args.dtype)
    for m, k, n in SIZES:
        inputs = [torch.randn(s).to(dtype) for s in ((m, k), (n, k), (n,))]
        report(CASES, f"{m}x{k}x{n}", inputs, args.only, args.rounds)
    for sizes in ATTENTIONS:
        inputs = [torch.randn(sizes).to(dtype) for _ in range(3)]
        report(ATTENTION, "x".join(map(str, sizes)), inputs, args.only, args.rounds)


def report(
    cases: dict[str, Callable[..., Any]], size: str, inputs: Sequence[Any], only: str, rounds: int
) -> None:
    """Print a row for each case."""
    for name, f in cases.items():
        if only in name:
            eager, extern, kernel = medians(variants(f), inputs, rounds)
            row = "  ".join(f"{t * 1e6:9.0f}" for t in (eager, extern, kernel))
            ratios = f"{kernel / eager:12.2f}  {kernel / extern:13.2f}"
            print(f"{name:9} {size:16} {row}  {ratios}", flush=True)


if __name__ == "__main__":
    main()
